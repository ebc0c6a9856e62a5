/*
 * needs_lock.h
 *	  Which schema changes of a node group need a lock on their tables.
 */
#ifndef WEFT_NEEDS_LOCK_H
#define WEFT_NEEDS_LOCK_H

#include "nodes/nodes.h"
#include "storage/lockdefs.h"

extern bool ddl_needs_lock(Node *statement);
extern LOCKMODE ddl_lock_mode(Node *statement);

#endif							/* WEFT_NEEDS_LOCK_H */
