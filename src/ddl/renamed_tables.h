/*
 * renamed_tables.h
 *	  Tables whose rows arrive under another name while they are copied.
 */
#ifndef WEFT_RENAMED_TABLES_H
#define WEFT_RENAMED_TABLES_H

#include "access/xlogdefs.h"
#include "nodes/pg_list.h"

extern bool renamed_tables_settle(Oid relid, XLogRecPtr final_lsn, List **done);
extern void renamed_tables_finish(List *done);
extern bool renamed_tables_is_part(Oid relid, XLogRecPtr final_lsn);
extern void renamed_tables_separate(Oid relid);
extern void renamed_tables_leave(Oid relid);

#endif							/* WEFT_RENAMED_TABLES_H */
