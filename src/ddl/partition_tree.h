/*
 * partition_tree.h
 *	  A table with its partitions, and what it is a partition of.
 */
#ifndef WEFT_PARTITION_TREE_H
#define WEFT_PARTITION_TREE_H

#include "nodes/pg_list.h"
#include "storage/lockdefs.h"

extern List *partition_tree(Oid relid, LOCKMODE lockmode);
extern List *partition_ancestors(Oid relid);

#endif							/* WEFT_PARTITION_TREE_H */
