/*
 * target_table.c
 *	  The subscriber's table: may helpers fill it?
 *
 * Helpers are the server's parallel workers (helper.c says why they may write), so
 * functions that are not safe in parallel workers must not run there: functions in defaults
 * of columns that the publisher does not send, in generated columns, CHECK constraints,
 * constraints of domains, partition keys, and indexes that are not suspended (indexes.c).
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "catalog/partition.h"
#include "catalog/pg_am.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "copy/target_table.h"
#include "executor/tuptable.h"
#include "local_table.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "nodes/nodeFuncs.h"
#include "nodes/value.h"
#include "oid_alias.h"
#include "rewrite/rewriteHandler.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/typcache.h"
#include "utils/wait_event.h"

/* How often to try to get a lock, and the pause between attempts, in milliseconds. */
#define LOCK_ATTEMPTS 10
#define LOCK_INTERVAL 100

static bool
function_is_unsafe(Oid function, void *context)
{
	return func_parallel(function) != PROPARALLEL_SAFE;
}

static bool
is_unsafe(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, NextValueExpr) || IsA(node, CoerceToDomain) ||
		check_functions_in_node(node, function_is_unsafe, context))
		return true;
	return expression_tree_walker(node, is_unsafe, context);
}

static bool
domain_is_unsafe(Oid type)
{
	DomainConstraintRef *ref;
	ListCell   *cell;

	if (get_typtype(type) != TYPTYPE_DOMAIN || !compat_domain_has_constraints(type))
		return false;
	/* Released with the memory context. */
	ref = palloc(sizeof(DomainConstraintRef));
	InitDomainConstraintRef(type, ref, CurrentMemoryContext, false);
	foreach(cell, ref->constraints)
	{
		DomainConstraintState *constraint = lfirst(cell);

		if (is_unsafe((Node *) constraint->check_expr, NULL))
			return true;
	}
	return false;
}

static bool
is_copied(const CopyCommand *command, const char *column)
{
	ListCell   *cell;

	foreach(cell, command->columns)
		if (strcmp(strVal(lfirst(cell)), column) == 0)
		return true;
	return false;
}

static bool
columns_are_unsafe(Relation rel, const CopyCommand *command)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (attribute->attisdropped)
			continue;
		if (domain_is_unsafe(attribute->atttypid))
			return true;
		if ((attribute->attgenerated || !is_copied(command, NameStr(attribute->attname))) &&
			is_unsafe(build_column_default(rel, i + 1), NULL))
			return true;
	}
	return false;
}

/*
 * Do helpers exclude each other when they insert into the table's indexes?  Buffer locks and
 * locks for extending an index do that, but other locks do not conflict within a parallel
 * group.  GIN takes others, and indexes of unknown access methods may.
 */
static bool
indexes_take_helpers(Relation rel)
{
	bool		result = true;

	foreach_oid(relid, RelationGetIndexList(rel))
	{
		Relation	index = index_open(relid, RowExclusiveLock);
		Oid			am = index->rd_rel->relam;

		result = result && (am == BTREE_AM_OID || am == HASH_AM_OID || am == BRIN_AM_OID ||
							am == GIST_AM_OID);
		index_close(index, NoLock);
	}
	return result;
}

/*
 * Indexes of deferrable constraints are maintained while helpers copy, or all indexes, if
 * none is suspended.
 */
static bool
indexes_are_unsafe(Relation rel, bool all)
{
	bool		result = false;

	foreach_oid(relid, RelationGetIndexList(rel))
	{
		Relation	index = index_open(relid, RowExclusiveLock);

		result = result ||
			((all || !index->rd_index->indimmediate) &&
			 (is_unsafe((Node *) RelationGetIndexExpressions(index), NULL) ||
			  is_unsafe((Node *) RelationGetIndexPredicate(index), NULL)));
		index_close(index, NoLock);
	}
	return result;
}

static bool
expressions_are_unsafe(Relation rel, const CopyCommand *command, bool all_indexes)
{
	TupleConstr *constraints = RelationGetDescr(rel)->constr;

	for (int i = 0; constraints != NULL && i < constraints->num_check; i++)
		if (is_unsafe(stringToNode(constraints->check[i].ccbin), NULL))
			return true;
	if (rel->rd_rel->relispartition && is_unsafe((Node *) RelationGetPartitionQual(rel), NULL))
		return true;
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE &&
		is_unsafe((Node *) RelationGetPartitionKey(rel)->partexprs, NULL))
		return true;
	return indexes_are_unsafe(rel, all_indexes) || columns_are_unsafe(rel, command);
}

static const char *
obstacle_in(Relation rel, const CopyCommand *command, bool all_indexes)
{
	char		kind = rel->rd_rel->relkind;

	if (kind != RELKIND_RELATION && kind != RELKIND_PARTITIONED_TABLE)
		return "a partition is not a table";
	if (kind == RELKIND_RELATION && rel->rd_rel->relam != HEAP_TABLE_AM_OID)
		return "its access method is not heap";
	if (local_table_fires_triggers(rel))
		return "it has triggers that fire on a replica";
	if (expressions_are_unsafe(rel, command, all_indexes))
		return "its expressions are not safe in parallel workers";
	if (all_indexes && !indexes_take_helpers(rel))
		return "it has an index that only one process may fill";
	return NULL;
}

/*
 * Locks a table against schema changes, VACUUM and ANALYZE; returns false if another session
 * does one of these, or copies the table, too, for longer than a moment.
 */
static bool
lock_table(Oid relid)
{
	for (int i = 0; i < LOCK_ATTEMPTS; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (ConditionalLockRelationOid(relid, ShareUpdateExclusiveLock))
			return true;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LOCK_INTERVAL, WAIT_EVENT_LOGICAL_SYNC_DATA);
		ResetLatch(MyLatch);
	}
	return false;
}

/*
 * Returns why helpers cannot fill the table or one of its partitions, or NULL if they can.
 * All of these are locked from then on.  "all_indexes" says that none will be suspended.
 *
 * Deadlocks, between this process P and a session X:
 * 1. X waits for this lock, and thereby for the copy.  Therefore P must not wait for X when
 *	  it builds the indexes.
 * 2. X holds this lock.  X may be waiting for P to end, or may be about to build indexes,
 *	  too.  Therefore P does not wait for the lock, either.
 */
const char *
target_table_obstacle(Relation rel, const CopyCommand *command, bool all_indexes)
{
	List	   *relids = list_make1_oid(RelationGetRelid(rel));
	const char *result = NULL;
	ListCell   *cell;

	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		relids = find_all_inheritors(RelationGetRelid(rel), AccessShareLock, NULL);

	foreach(cell, relids)
	{
		Relation	part;

		if (!lock_table(lfirst_oid(cell)))
			return "another session has locked it";
		part = table_open(lfirst_oid(cell), NoLock);
		result = obstacle_in(part, command, all_indexes);
		table_close(part, NoLock);
		if (result)
			break;
	}
	return result;
}

/* Does "test" hold for the table, or for a partition of it with storage? */
static bool
any_heap(Relation rel, bool (*test) (Relation part))
{
	List	   *relids = list_make1_oid(RelationGetRelid(rel));
	bool		result = false;
	ListCell   *cell;

	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		relids = find_all_inheritors(RelationGetRelid(rel), AccessShareLock, NULL);
	foreach(cell, relids)
	{
		Relation	part = table_open(lfirst_oid(cell), NoLock);

		if (!result && part->rd_rel->relkind == RELKIND_RELATION)
			result = test(part);
		table_close(part, NoLock);
	}
	return result;
}

static bool
heap_has_rows(Relation rel)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = compat_table_beginscan(rel, GetActiveSnapshot());
	bool		result = table_scan_getnextslot(scan, ForwardScanDirection, slot);

	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return result;
}

/* Is the table empty, with all its partitions? */
bool
target_table_empty(Relation rel)
{
	return !any_heap(rel, heap_has_rows);
}

static bool
heap_decoded(Relation rel)
{
	return RelationIsLogicallyLogged(rel);
}

/* Can logical decoding read what is written into the table? */
bool
target_table_decoded(Relation rel)
{
	return any_heap(rel, heap_decoded);
}

static bool
heap_out_of_line(Relation rel)
{
	Relation	toast;
	bool		result;

	if (!OidIsValid(rel->rd_rel->reltoastrelid))
		return false;
	toast = table_open(rel->rd_rel->reltoastrelid, AccessShareLock);
	result = RelationGetNumberOfBlocks(toast) > 0;
	table_close(toast, AccessShareLock);
	return result;
}

/* Have values of the table, even of dead rows, been stored out of line? */
bool
target_table_out_of_line(Relation rel)
{
	return any_heap(rel, heap_out_of_line);
}

/* Does a value of this type arrive the same whether it is sent as text or in binary? */
static bool
same_in_binary(Oid type)
{
	HeapTuple	tuple;
	bool		result;

	/* Other types may have another OID, or another meaning, on the publisher. */
	if (type >= FirstGenbkiObjectId || oid_alias_type(type))
		return false;

	if (OidIsValid(get_element_type(type)))
		return same_in_binary(get_element_type(type));
	switch (type)
	{
			/* lc_monetary says what its binary number counts. */
		case MONEYOID:

			/*
			 * A name that has become too long by conversion to this encoding
			 * is truncated only as text.
			 */
		case NAMEOID:
			/* In binary it gets an encoding declaration. */
		case XMLOID:
			return false;
	}

	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	if (!HeapTupleIsValid(tuple))
		return false;
	result = OidIsValid(((Form_pg_type) GETSTRUCT(tuple))->typreceive) &&
		OidIsValid(((Form_pg_type) GETSTRUCT(tuple))->typsend) &&
		((Form_pg_type) GETSTRUCT(tuple))->typtype != TYPTYPE_PSEUDO &&
		((Form_pg_type) GETSTRUCT(tuple))->typtype != TYPTYPE_COMPOSITE;
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Can all columns be copied in binary, even though the subscription does not ask for it?
 * "types" are the publisher's.
 */
bool
target_table_binary(Relation rel, const CopyCommand *command, List *types)
{
	ListCell   *name;
	ListCell   *type;

	if (list_length(types) != list_length(command->columns))
		return false;
	forboth(name, command->columns, type, types)
	{
		AttrNumber	number = get_attnum(RelationGetRelid(rel), strVal(lfirst(name)));

		if (number <= 0 ||
			get_atttype(RelationGetRelid(rel), number) != lfirst_oid(type) ||
			!same_in_binary(lfirst_oid(type)))
			return false;
	}
	return true;
}
