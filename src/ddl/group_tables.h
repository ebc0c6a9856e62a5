/*
 * group_tables.h
 *	  Tables that schema changes bring into a node group.
 */
#ifndef WEFT_GROUP_TABLES_H
#define WEFT_GROUP_TABLES_H

#include "nodes/pg_list.h"

extern void group_tables_add(Oid publication, const List *created);
extern void group_tables_changed(const List *relids);

#endif							/* WEFT_GROUP_TABLES_H */
