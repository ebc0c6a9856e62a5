/*
 * local_table.h
 *	  A subscriber's table: its triggers, the rights on it, and executor state for it.
 */
#ifndef WEFT_LOCAL_TABLE_H
#define WEFT_LOCAL_TABLE_H

#include "access/attmap.h"
#include "nodes/execnodes.h"
#include "nodes/parsenodes.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

extern Relation local_table_open(Oid relid, AclMode mode, LOCKMODE lock);
extern bool local_table_trigger_is_on(char enabled);
extern bool local_table_fires_row_triggers(Relation rel);
extern bool local_table_any_fires_row_triggers(const List *relids);
extern bool local_table_fires_triggers(Relation rel);
extern void local_table_check_rights(Relation rel, AclMode mode);
extern EState *local_table_prepare(Relation rel, const AttrMap *columns, bool speculative,
								   ResultRelInfo **info);

#endif							/* WEFT_LOCAL_TABLE_H */
