/*
 * transaction.h
 *	  Putting a transaction into the ring.
 */
#ifndef WEFT_TRANSACTION_H
#define WEFT_TRANSACTION_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "shmem.h"

extern void transaction_begin(const char *message, int length);
extern void transaction_change(const char *message, int length);
extern void transaction_relation(const char *message, int length);
extern void transaction_truncate(const char *message, int length);
extern void transaction_ddl(const char *json, int length);
extern void transaction_commit(XLogRecPtr end_lsn, TimestampTz commit_time);
extern void transaction_stream(StreamShared *stream, XLogRecPtr end_lsn,
							   TimestampTz commit_time);

#endif							/* WEFT_TRANSACTION_H */
