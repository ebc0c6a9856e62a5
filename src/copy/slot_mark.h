/*
 * slot_mark.h
 *	  Marks for slots on the publisher that may be left behind by weft.resync_table().
 */
#ifndef WEFT_COPY_SLOT_MARK_H
#define WEFT_COPY_SLOT_MARK_H

#include "nodes/pg_list.h"

extern void slot_mark_write(Oid subid, Oid relid);
extern bool slot_mark_found(Oid subid, Oid relid);
extern bool slot_mark_recent(Oid subid, Oid relid);
extern List *slot_mark_tables(Oid subid);
extern void slot_mark_remove(Oid subid, Oid relid);

#endif							/* WEFT_COPY_SLOT_MARK_H */
