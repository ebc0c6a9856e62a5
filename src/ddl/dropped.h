/*
 * dropped.h
 *	  The objects that a statement has dropped, and statements that drop some of them.
 */
#ifndef WEFT_DROPPED_H
#define WEFT_DROPPED_H

#include "nodes/pg_list.h"

/* Does a publication want an object of these publications?  "arg" is the caller's. */
typedef bool (*DroppedWanted) (bool is_of_tables, List *publications, const void *arg);

extern List *dropped_add(List *dropped, Oid class_id, Oid object_id, int sub_id,
						 bool is_of_tables, bool is_replicable, List *publications);
extern bool dropped_all_wanted(List *dropped, DroppedWanted wanted, const void *arg);
extern List *dropped_statements(List *dropped, bool cascade, DroppedWanted wanted,
								const void *arg);

#endif							/* WEFT_DROPPED_H */
