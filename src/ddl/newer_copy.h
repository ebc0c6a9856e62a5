/*
 * newer_copy.h
 *	  Tables whose initial copy is newer than a schema change.
 */
#ifndef WEFT_NEWER_COPY_H
#define WEFT_NEWER_COPY_H

#include "access/xlogdefs.h"
#include "nodes/pg_list.h"

extern List *newer_copy_find(XLogRecPtr final_lsn);
extern void newer_copy_before_partition(List *copies, Oid parent);
extern void newer_copy_settle(List *copies);
extern void newer_copy_empty(Oid relid);

#endif							/* WEFT_NEWER_COPY_H */
