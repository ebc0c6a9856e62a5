/*
 * concurrent_detach.c
 *	  DETACH PARTITION CONCURRENTLY.
 *
 * The server takes a partition out in two transactions.  Before 19, the first one marks it, and adds a CHECK
 * constraint to it that says the same as its bounds, unless it has constraints that imply it.  The
 * constraint stays.  A plain DETACH does not add one, nor does 19.  Therefore, if the statement is executed without
 * CONCURRENTLY here (concurrent.c), Weft adds the constraint, if the publisher has done so; and if only one of the two
 * servers does, the statement is executed without CONCURRENTLY.
 *
 * A partition of a table that is partitioned by hash gets no constraint.  Once it is detached on the publisher, it
 * may get rows there that do not belong to it.  They follow the schema change, and would fail as long
 * as it is a partition here.  Therefore that schema change is executed in its place, without CONCURRENTLY.
 *
 * So is that of a table that belongs to the subscription itself (publish_via_partition_root): TRUNCATE of it would
 * empty the partition, which is no part of it on the publisher any more.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/heap.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/tablecmds.h"
#include "compat.h"
#include "ddl/concurrent_detach.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "optimizer/optimizer.h"
#include "replication/worker_internal.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/rel.h"

/* Returns the part of the statement that detaches a partition, or NULL. */
static AlterTableCmd *
find_detach(Node *statement)
{
	if (!IsA(statement, AlterTableStmt))
		return NULL;
	foreach_node(AlterTableCmd, command, ((AlterTableStmt *) statement)->cmds)
		if (command->subtype == AT_DetachPartition)
		return command;
	return NULL;
}

/* Does a server of this version, or of an unknown one, add the constraint? */
static bool
adds_constraint(int server_version)
{
	return server_version < 190000;
}

/* Must it be executed in its place?  "server_version" is the publisher's, as in DdlMessage. */
bool
concurrent_detach_must_be_plain(Node *statement, int server_version)
{
	AlterTableCmd *command = find_detach(statement);
	Oid			relid = command == NULL ? InvalidOid :
		RangeVarGetRelid(((AlterTableStmt *) statement)->relation, AccessShareLock, true);
	XLogRecPtr	lsn;
	Relation	parent;
	bool		result;

	if (!OidIsValid(relid) || get_rel_relkind(relid) != RELKIND_PARTITIONED_TABLE)
		return false;
	parent = table_open(relid, NoLock);
	result = RelationGetPartitionKey(parent)->strategy == PARTITION_STRATEGY_HASH;
	table_close(parent, NoLock);
	return result || adds_constraint(server_version) != adds_constraint(compat_server_version) ||
		GetSubscriptionRelState(MySubscription->oid, relid, &lsn) != SUBREL_STATE_UNKNOWN;
}

/* If an earlier attempt has begun it, makes the statement complete that. */
void
concurrent_detach_finalize(Node *statement)
{
	AlterTableCmd *command = find_detach(statement);
	PartitionCmd *detach;
	Oid			partition;

	if (command == NULL)
		return;
	detach = (PartitionCmd *) command->def;
	partition = RangeVarGetRelid(detach->name, NoLock, true);
	if (!OidIsValid(partition) || !get_rel_relispartition(partition) ||
		!PartitionHasPendingDetach(partition))
		return;
	command->subtype = AT_DetachPartitionFinalize;
	detach->concurrent = false;
}

/* Adds a constraint, which all rows are known to satisfy, to a table and its partitions. */
static void
add_constraint(Relation rel, List *expression, char *name, bool local)
{
	Constraint *constraint = makeNode(Constraint);
	List	   *added;

	constraint->contype = CONSTR_CHECK;
	constraint->conname = name;
	constraint->location = -1;
	constraint->cooked_expr = nodeToString(make_ands_explicit(expression));
	constraint->initially_valid = true;
	constraint->skip_validation = true;
	compat_enforce_constraint(constraint);
	added = AddRelationNewConstraints(rel, NIL, list_make1(constraint), true, local, true, NULL);
	CommandCounterIncrement();
	if (added == NIL)
		return;
	foreach_oid(child, find_inheritance_children(RelationGetRelid(rel), AccessExclusiveLock))
	{
		Relation	partition = table_open(child, NoLock);

		add_constraint(partition, map_partition_varattnos(expression, 1, partition, rel),
					   ((CookedConstraint *) linitial(added))->name, false);
		table_close(partition, NoLock);
	}
}

/*
 * The statement is about to be executed without CONCURRENTLY: adds the constraint that it has added on the
 * publisher, whose version is "server_version".  The statement itself says what is wrong with its tables, if anything is.
 */
void
concurrent_detach_add_constraint(Node *statement, int server_version)
{
	AlterTableCmd *command = find_detach(statement);
	Oid			relid;
	Oid			child;
	Relation	parent;
	Relation	partition;
	List	   *expression;

	if (command == NULL || !adds_constraint(server_version))
		return;
	relid = RangeVarGetRelid(((AlterTableStmt *) statement)->relation, NoLock, true);
	child = RangeVarGetRelid(((PartitionCmd *) command->def)->name, NoLock, true);
	if (!OidIsValid(relid) || !OidIsValid(child) ||
		!object_ownercheck(RelationRelationId, relid, GetUserId()) ||
		!get_rel_relispartition(child) || get_partition_parent(child, true) != relid)
		return;
	parent = table_open(relid, AccessExclusiveLock);
	partition = table_open(child, AccessExclusiveLock);
	if (RelationGetPartitionKey(parent)->strategy != PARTITION_STRATEGY_HASH)
	{
		expression = (List *) eval_const_expressions(NULL, (Node *) RelationGetPartitionQual(partition));
		if (!PartConstraintImpliedByRelConstraint(partition, expression))
			add_constraint(partition, expression, NULL, true);
	}
	table_close(partition, NoLock);
	table_close(parent, NoLock);
}
