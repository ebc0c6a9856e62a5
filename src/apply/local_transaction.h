/*
 * local_transaction.h
 *	  The local transaction that an attempt works in: its origin, and how it ends.
 */
#ifndef WEFT_LOCAL_TRANSACTION_H
#define WEFT_LOCAL_TRANSACTION_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"

extern void local_transaction_init(void);
extern void local_transaction_set_origin(void);
extern XLogRecPtr local_transaction_commit(TransactionId prepare_xid, XLogRecPtr end_lsn,
										   TimestampTz commit_time);
extern void local_transaction_roll_back(void);

#endif							/* WEFT_LOCAL_TRANSACTION_H */
