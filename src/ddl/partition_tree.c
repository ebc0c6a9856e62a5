/*
 * partition_tree.c
 *	  A table with its partitions, and what it is a partition of.
 *
 * Tables that inherit from one that is not partitioned are not among them: they are sent, copied and emptied by
 * themselves.
 */
#include "postgres.h"

#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "ddl/partition_tree.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"

/* Returns the OIDs of a table and of all partitions below it, the table's first.  Locks the partitions. */
List *
partition_tree(Oid relid, LOCKMODE lockmode)
{
	return get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE ?
		find_all_inheritors(relid, lockmode, NULL) : list_make1_oid(relid);
}

/* Returns the OIDs of the tables that a table is a partition of, its root's last; none while it is detached concurrently. */
List *
partition_ancestors(Oid relid)
{
	return get_rel_relispartition(relid) ? get_partition_ancestors(relid) : NIL;
}
