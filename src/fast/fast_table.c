/*
 * fast_table.c
 *	  Which tables take the fast path, and opening and closing them.
 *
 * A table takes the fast path if finding, storing and indexing a row is all that its
 * changes need: it has no trigger that fires on a replica, no generated column, no row
 * security, no routing to partitions.  All other tables, and all doubtful ones, take the
 * general path, which is the server's own code.
 *
 * The description of a table, including input functions and scan keys, is kept until the
 * table changes.  Relation, indexes, index scan, executor state and slots are open within
 * one local transaction, that is for a group of remote ones.  The writer's lock on the
 * table keeps everything that they depend on unchanged, as it does for the plan of a
 * statement.  Privileges are checked each time the table is opened.
 *
 * The writer closes everything before the commit.  After an error the server has released
 * it, and the writer only forgets it.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_subscription_rel.h"
#include "executor/executor.h"
#include "fast/coalesce.h"
#include "fast/fast_insert.h"
#include "fast/fast_session.h"
#include "fast/fast_table.h"
#include "fast/key_order.h"
#include "fast/lookup.h"
#include "fast/row_count.h"
#include "gate.h"
#include "group_times.h"
#include "local_table.h"
#include "misspeculate.h"
#include "replication/logicalrelation.h"
#include "replication/worker_internal.h"
#include "rewrite/rewriteHandler.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

static bool
has_generated_column(Relation rel)
{
	for (int i = 0; i < RelationGetNumberOfAttributes(rel); i++)
		if (TupleDescAttr(RelationGetDescr(rel), i)->attgenerated)
			return true;
	return false;
}

/* Returns why the table as a whole takes the general path, or NULL. */
static const char *
classify(LogicalRepRelMapEntry *entry, Relation rel, bool fires_triggers)
{
	if (entry->state != SUBREL_STATE_READY)
		return "the table is being synchronized";
	if (rel->rd_rel->relkind != RELKIND_RELATION)
		return "the table is not an ordinary table";
	if (rel->rd_tableam != GetHeapamTableAmRoutine())
		return "the table's access method is not heap";
	if (fires_triggers)
		return "a trigger fires on a replica";
	if (has_generated_column(rel))
		return "there is a generated column";
	if (rel->rd_rel->relrowsecurity)
		return "row-level security is enabled";
	return NULL;
}

/* Fills in how the columns that are sent map to those of the table. */
static void
describe_columns(FastRelation *relation, LogicalRepRelMapEntry *entry, Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	relation->num_columns = entry->remoterel.natts;
	relation->columns = palloc0(Max(relation->num_columns, 1) * sizeof(FastColumn));
	for (int i = 0; i < relation->num_columns; i++)
		relation->columns[i].local = -1;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);
		int			remote = entry->attrmap->attnums[i];
		FastColumn *column;

		if (attribute->attisdropped)
			continue;
		if (remote < 0)
		{
			if (build_column_default(rel, i + 1) != NULL)
				relation->insert_reason = "a column that is not published has a default";
			continue;
		}
		column = &relation->columns[remote];
		column->local = i;
		fast_column_describe(column, attribute->atttypid, attribute->atttypmod);
	}
	for (int i = 0; i < relation->num_columns; i++)
		if (relation->columns[i].local < 0)
			relation->reason = "a published column is missing";
}

/* Describes how to find rows by the primary key or replica identity. */
static void
describe_key(FastRelation *relation, LogicalRepRelMapEntry *entry, Relation rel)
{
	Relation	index;

	relation->index = GetRelationIdentityOrPK(rel);
	row_time_key(rel, &relation->time_key);
	if (!OidIsValid(relation->index) || !entry->updatable)
	{
		relation->key_reason = "no primary key or replica identity index can be used";
		return;
	}

	if (fast_context.detect_conflicts && fast_context.has_delta_columns(RelationGetRelid(rel)))
	{
		relation->key_reason = "there are delta columns";
		return;
	}

	if (fast_context.detect_conflicts)
		relation->watched = fast_context.watched_columns(rel);

	index = index_open(relation->index, AccessShareLock);
	relation->num_keys = IndexRelationGetNumberOfKeyAttributes(index);
	if (index->rd_rel->relam != BTREE_AM_OID)
		relation->key_reason = "the replica identity index is not a btree";
	for (int i = 0; i < relation->num_keys && relation->key_reason == NULL; i++)
	{
		int			column = index->rd_index->indkey.values[i];
		Oid			operator = get_opfamily_member(index->rd_opfamily[i],
												   index->rd_opcintype[i],
												   index->rd_opcintype[i],
												   BTEqualStrategyNumber);

		if (!AttributeNumberIsValid(column) || !OidIsValid(operator))
		{
			relation->key_reason = "the replica identity index has a part that is not a column";
			break;
		}
		relation->key_columns[i] = column - 1;
		ScanKeyEntryInitialize(&relation->keys[i], 0, i + 1, BTEqualStrategyNumber,
							   InvalidOid, index->rd_indcollation[i],
							   get_opcode(operator), (Datum) 0);
	}
	if (relation->key_reason == NULL)
		relation->leaf_map = leaf_map_describe(index);
	index_close(index, AccessShareLock);
}

/* Which inserts can be in conflict?  Columns and key have been described. */
static void
describe_conflicts(FastRelation *relation)
{
	/* A row without a key is in conflict with nothing. */
	relation->checks_deletes = fast_context.detect_conflicts && OidIsValid(relation->index);
	if (!relation->checks_deletes)
		return;
	if (relation->key_reason != NULL)
		relation->insert_reason = relation->key_reason;
	else if (relation->watched != NULL)
		relation->insert_reason = "rows can be in conflict with other rows";
}

/* Finds out whether a change fires a trigger, of the table or of a partition alone. */
static void
describe_triggers(FastRelation *relation, Relation rel)
{
	MemoryContext old = MemoryContextSwitchTo(relation->context);

	relation->partitioned = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
	relation->fires_triggers = local_table_fires_row_triggers(rel);
	if (relation->partitioned)
	{
		relation->partitions = find_all_inheritors(RelationGetRelid(rel), NoLock, NULL);
		if (local_table_any_fires_row_triggers(relation->partitions))
			relation->fires_triggers = true;
	}
	MemoryContextSwitchTo(old);
}

/*
 * Finds out everything that is kept about a relation, whose table is open.  To be called as the table's
 * owner: whoever is the first to look at the expressions of an index simplifies them, which executes
 * functions.
 */
static void
describe(FastRelation *relation, LogicalRepRelMapEntry *entry, Relation rel)
{
	MemoryContext old;

	if (relation->context == NULL)
		relation->context = AllocSetContextCreate(ApplyContext, "weft fast relation",
												  ALLOCSET_SMALL_SIZES);
	if (relation->leaf_map)
		leaf_map_forget(relation->leaf_map);
	relation->leaf_map = NULL;
	relation->partitions = NIL;
	MemoryContextReset(relation->context);
	lookup_forget_places(relation);
	relation->local_relid = RelationGetRelid(rel);
	relation->insert_reason = relation->key_reason = NULL;
	relation->watched = NULL;

	/*
	 * An invalidation that arrives meanwhile sets this.  An error leaves the
	 * description invalid: it may be that of a table with fewer key columns.
	 */
	relation->changed = false;
	describe_triggers(relation, rel);
	relation->reason = classify(entry, rel, relation->fires_triggers);
	if (relation->reason == NULL)
	{
		old = MemoryContextSwitchTo(relation->context);
		describe_columns(relation, entry, rel);
		describe_key(relation, entry, rel);
		describe_conflicts(relation);
		relation->own_order = key_order_describe(relation, rel);
		relation->coalesces = coalesce_describe(relation, rel);
		MemoryContextSwitchTo(old);
	}
	relation->valid = entry->state == SUBREL_STATE_READY && !relation->changed;
}

/* Switches to the user as whom a table is changed; returns false if that is the current one. */
static bool
become_owner(Relation rel, UserContext *context)
{
	Oid			owner = rel->rd_rel->relowner;

	if (MySubscription->runasowner || owner == GetUserId())
		return false;
	SwitchToUntrustedUser(owner, context);
	return true;
}

/*
 * Opens everything that a change needs, in memory of the local transaction; "columns" are
 * those that are sent.  To be called as the table's owner, as describe().
 */
static void
open_table(FastRelation *relation, Relation rel, const AttrMap *columns)
{
	MemoryContext old = MemoryContextSwitchTo(CurTransactionContext);
	EState	   *estate = local_table_prepare(rel, columns, false, &relation->info);

	relation->rel = rel;
	relation->estate = estate;
	relation->found = table_slot_create(rel, &estate->es_tupleTable);
	relation->row = ExecInitExtraTupleSlot(estate, RelationGetDescr(rel), &TTSOpsVirtual);
	relation->key_index = NULL;
	relation->scan = NULL;
	ItemPointerSetInvalid(&relation->last);
	relation->in_a_row = 0;
	relation->num_gathered = relation->num_slots = 0;
	relation->allowed = ACL_NO_RIGHTS;
	dlist_push_tail(&fast_relations_open, &relation->open_node);
	row_count_touch(relation);
	MemoryContextSwitchTo(old);
}

/*
 * A trigger sees what is committed, and what its transaction has done before.  The leader
 * makes changes of tables with triggers run alone, but it may not have known of the
 * trigger yet.
 */
static void
check_turn(FastRelation *relation)
{
	if (!relation->fires_triggers)
		return;
	if (!fast_context.everything_before_is_there())
		misspeculate("a trigger would fire in a speculative transaction");

	/* It may change rows of any table. */
	group_times_unknown(InvalidOid);
}

/*
 * Returns the relation with its table open and locked, or NULL if its changes
 * take the general path.
 */
FastRelation *
fast_table_open(LogicalRepRelId relid)
{
	FastRelation *relation = fast_relation_find(relid);
	LogicalRepRelMapEntry *entry;
	UserContext context;
	bool		switched;
	LOCKMODE	mode;

	if (relation->rel != NULL)
		return relation;
	if (relation->valid && relation->reason != NULL)
	{
		check_turn(relation);
		return NULL;
	}

	/* This locks the table, and processes invalidations. */
	entry = gate_open_relation(relid, &mode);
	switched = become_owner(entry->localrel, &context);

	/*
	 * If the relation was looked up by its name again, another table may have
	 * that.
	 */
	if (!relation->valid || relation->local_relid != entry->localreloid)
		describe(relation, entry, entry->localrel);
	if (relation->reason == NULL)
		open_table(relation, table_open(entry->localreloid, NoLock), entry->attrmap);
	if (switched)
		RestoreUserContext(&context);
	logicalrep_rel_close(entry, NoLock);
	check_turn(relation);
	return relation->reason == NULL ? relation : NULL;
}

/*
 * Returns the relation, with its table described, of a change that the server's own
 * code has just applied; NULL if the server has skipped the change because the
 * table is being synchronized.  "final_lsn" is that of the change's transaction.
 *
 * If a trigger has come while the table was not locked, the server has fired it: the table is described
 * again here, since it, or its partition, was then locked, which processes invalidations.
 */
FastRelation *
fast_table_look_up(LogicalRepRelId relid, XLogRecPtr final_lsn)
{
	FastRelation *relation = fast_relation_find(relid);
	LogicalRepRelMapEntry *entry;
	UserContext context;
	bool		switched;
	LOCKMODE	mode;
	bool		applied;

	/* An open table must keep its description. */
	if (relation->valid || relation->rel != NULL)
		return relation;

	/* If the change was applied, this transaction has the lock already. */
	PushActiveSnapshot(GetTransactionSnapshot());
	entry = gate_open_relation(relid, &mode);
	switched = become_owner(entry->localrel, &context);
	describe(relation, entry, entry->localrel);
	if (switched)
		RestoreUserContext(&context);
	applied = entry->state == SUBREL_STATE_READY ||
		(entry->state == SUBREL_STATE_SYNCDONE && entry->statelsn <= final_lsn);
	logicalrep_rel_close(entry, applied ? NoLock : mode);
	PopActiveSnapshot();
	if (!applied)
		return NULL;
	check_turn(relation);
	return relation;
}

/*
 * Switches to the user as whom an open table is changed.  Returns true if the caller
 * has to call RestoreUserContext.
 */
bool
fast_table_become_owner(FastRelation *relation, UserContext *context)
{
	return become_owner(relation->rel, context);
}

/* Stores the gathered rows of all tables. */
void
fast_table_store_all(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &fast_relations_open)
	{
		FastRelation *relation = dlist_container(FastRelation, open_node, iter.cur);
		UserContext context;
		bool		switched;

		if (relation->num_gathered == 0)
			continue;
		fast_session_enter(relation->remote_relid);
		switched = fast_table_become_owner(relation, &context);
		fast_insert_store(relation);
		if (switched)
			RestoreUserContext(&context);
		fast_session_leave();
	}
}

/* Closes all tables, within a transaction; locks are kept. */
void
fast_table_close_all(void)
{
	dlist_mutable_iter iter;

	fast_table_store_all();
	dlist_foreach_modify(iter, &fast_relations_open)
	{
		FastRelation *relation = dlist_container(FastRelation, open_node, iter.cur);

		if (relation->scan)
			index_endscan(relation->scan);
		ExecResetTupleTable(relation->estate->es_tupleTable, false);
		ExecCloseIndices(relation->info);
		FreeExecutorState(relation->estate);
		table_close(relation->rel, NoLock);
		relation->rel = NULL;
	}
	dlist_init(&fast_relations_open);
}

/* Forgets the open tables after a rollback, which has closed them. */
void
fast_table_forget_open(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &fast_relations_open)
		dlist_container(FastRelation, open_node, iter.cur)->rel = NULL;
	dlist_init(&fast_relations_open);
}
