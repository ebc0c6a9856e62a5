/*
 * lock_tables.h
 *	  The tables of a schema change.
 */
#ifndef WEFT_LOCK_TABLES_H
#define WEFT_LOCK_TABLES_H

#include "nodes/nodes.h"
#include "nodes/pg_list.h"

extern bool lock_tables_are_local(Node *statement);
extern void lock_tables_check_rights(Node *statement);
extern List *lock_tables_of(Node *statement);
extern List *lock_tables_granted(Node *statement);

#endif							/* WEFT_LOCK_TABLES_H */
