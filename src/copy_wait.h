/*
 * copy_wait.h
 *	  Transactions that wait until tables are copied.
 */
#ifndef WEFT_COPY_WAIT_H
#define WEFT_COPY_WAIT_H

#include "access/xlogdefs.h"

extern void copy_wait_request(void);
extern void copy_wait_startup(void);
extern void copy_wait_set(Oid subid, XLogRecPtr final_lsn);
extern XLogRecPtr copy_wait_get(Oid subid);

#endif							/* WEFT_COPY_WAIT_H */
