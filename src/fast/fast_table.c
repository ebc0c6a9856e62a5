/*
 * fast_table.c
 *	  Which tables take the fast path, and what is kept open of them.
 *
 * A table takes the fast path if nothing about it needs more than to find,
 * store and index a row: no trigger that fires on a replica, no generated
 * column, no row security, no routing to partitions.  Whatever is not sure
 * takes the general path, which is the server's own code.
 *
 * What was found out, with input functions and scan keys looked up, is kept
 * for as long as the table does not change.  Relation, indexes, index scan,
 * executor state and slots are open within one local transaction, that is for
 * a group of remote ones: our lock on the table keeps what they rest on as it
 * is, just as it does for the plan of a statement.  Privileges are checked each
 * time the table is opened.
 *
 * All of it is given back before the commit; after an error the server has
 * released it, and it only has to be forgotten.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "fast/fast.h"
#include "apply/order.h"
#include "apply/writer.h"
#include "catalog/pg_am.h"
#include "catalog/pg_subscription_rel.h"
#include "conflict/settings.h"
#include "conflict/watched_columns.h"
#include "local_table.h"
#include "misspeculate.h"
#include "replication/logicalrelation.h"
#include "replication/worker_internal.h"
#include "rewrite/rewriteHandler.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

static HTAB *relations;
dlist_head	fast_open_relations = DLIST_STATIC_INIT(fast_open_relations);

/* A local table, or every one, has changed. */
static void
table_changed(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS scan;
	FastRelation *relation;

	hash_seq_init(&scan, relations);
	while ((relation = hash_seq_search(&scan)) != NULL)
		if (relid == InvalidOid || relation->local_relid == relid)
			relation->valid = false;
}

/* Called once in a writer. */
void
fast_init(void)
{
	HASHCTL		info;

	info.keysize = sizeof(LogicalRepRelId);
	info.entrysize = sizeof(FastRelation);
	info.hcxt = ApplyContext;
	relations = hash_create("weft fast relations", 64, &info,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	CacheRegisterRelcacheCallback(table_changed, (Datum) 0);
}

/* A RELATION message has come. */
void
fast_relation_changed(LogicalRepRelId relid)
{
	FastRelation *relation = hash_search(relations, &relid, HASH_FIND, NULL);

	if (relation)
		relation->valid = false;
	if (relation && relation->rel)
		fast_close_all();
}

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
		return "the table is partitioned or not an ordinary one";
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
				relation->insert_reason = "a column that is not sent has a default";
			continue;
		}
		column = &relation->columns[remote];
		column->local = i;
		fast_describe_values(column, attribute->atttypid, attribute->atttypmod);
	}
	for (int i = 0; i < relation->num_columns; i++)
		if (relation->columns[i].local < 0)
			relation->reason = "a column that is sent is not there";
}

/* Prepares to find rows by the primary key or replica identity. */
static void
describe_key(FastRelation *relation, LogicalRepRelMapEntry *entry, Relation rel)
{
	Relation	index;

	relation->index = GetRelationIdentityOrPK(rel);
	if (!OidIsValid(relation->index) || !entry->updatable)
	{
		relation->key_reason = "there is no primary key or replica identity index that could be used";
		return;
	}

	if (writer.detect_conflicts && conflict_has_delta_columns(RelationGetRelid(rel)))
	{
		relation->key_reason = "there are delta columns";
		return;
	}

	if (writer.detect_conflicts)
		relation->watched = conflict_watched_columns(rel);

	index = index_open(relation->index, AccessShareLock);
	relation->num_keys = IndexRelationGetNumberOfKeyAttributes(index);
	if (index->rd_rel->relam != BTREE_AM_OID)
		relation->key_reason = "the replica identity index is no btree";
	for (int i = 0; i < relation->num_keys && relation->key_reason == NULL; i++)
	{
		int			column = index->rd_index->indkey.values[i];
		Oid			operator = get_opfamily_member(index->rd_opfamily[i],
												   index->rd_opcintype[i],
												   index->rd_opcintype[i],
												   BTEqualStrategyNumber);

		if (!AttributeNumberIsValid(column) || !OidIsValid(operator))
		{
			relation->key_reason = "the replica identity index has a part that is no column";
			break;
		}
		relation->key_columns[i] = column - 1;
		ScanKeyEntryInitialize(&relation->keys[i], 0, i + 1, BTEqualStrategyNumber,
							   InvalidOid, index->rd_indcollation[i],
							   get_opcode(operator), (Datum) 0);
	}
	if (relation->key_reason == NULL)
		relation->leaves = fast_describe_leaves(index);
	index_close(index, AccessShareLock);
}

/* Finds out all that is kept about a relation; its table is open. */
static void
describe(FastRelation *relation, LogicalRepRelMapEntry *entry, Relation rel)
{
	MemoryContext old;

	if (relation->context == NULL)
		relation->context = AllocSetContextCreate(ApplyContext, "weft fast relation",
												  ALLOCSET_SMALL_SIZES);
	if (relation->leaves)
		fast_forget_leaves(relation->leaves);
	relation->leaves = NULL;
	MemoryContextReset(relation->context);
	fast_forget_places(relation);
	relation->local_relid = RelationGetRelid(rel);
	relation->insert_reason = relation->key_reason = NULL;
	relation->watched = NULL;
	if (writer.detect_conflicts)
		relation->insert_reason = "conflicts are detected";

	/* An invalidation that arrives meanwhile takes this back. */
	relation->valid = true;
	relation->fires_triggers = local_table_fires_triggers(rel);
	relation->reason = classify(entry, rel, relation->fires_triggers);
	if (relation->reason == NULL)
	{
		old = MemoryContextSwitchTo(relation->context);
		describe_columns(relation, entry, rel);
		describe_key(relation, entry, rel);
		relation->own_order = fast_describe_order(relation, rel);
		relation->coalesces = fast_describe_coalescing(relation, rel);
		MemoryContextSwitchTo(old);
	}
	else if (entry->state != SUBREL_STATE_READY)
		relation->valid = false;
}

/*
 * Opens what a change needs, in memory of the local transaction; "columns" has the
 * columns that are sent.
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
	dlist_push_tail(&fast_open_relations, &relation->open_node);
	fast_count_touch(relation);
	MemoryContextSwitchTo(old);
}

/*
 * Triggers see what is committed, and what the transaction has done before.  The
 * leader makes such changes run alone, but it may not have known of the trigger
 * yet.
 */
static void
check_turn(FastRelation *relation)
{
	if (relation->fires_triggers && (!transaction_is_oldest() || order_pending()))
		misspeculate("a trigger would fire in a speculative transaction");
}

/* Returns what is known of a relation, which may be nothing. */
FastRelation *
fast_find_relation(LogicalRepRelId relid)
{
	static FastRelation *latest = NULL;
	bool		known;

	/* Entries are never removed, so the pointer stays good. */
	if (latest == NULL || latest->remote_relid != relid)
	{
		latest = hash_search(relations, &relid, HASH_ENTER, &known);
		if (!known)
			memset((char *) latest + sizeof(relid), 0, sizeof(FastRelation) - sizeof(relid));
	}
	return latest;
}

/*
 * Is it known that the relation's changes, either its INSERTs or the others, take
 * the fast path?
 */
bool
fast_known(LogicalRepRelId relid, bool insert)
{
	FastRelation *relation = fast_find_relation(relid);

	/* A conflict is decided in its turn. */
	return !writer.detect_conflicts && relation->valid && relation->reason == NULL &&
		(insert ? relation->insert_reason : relation->key_reason) == NULL;
}

/*
 * Returns the relation with its table open and locked, or NULL if its changes
 * take the general path.
 */
FastRelation *
fast_open(LogicalRepRelId relid)
{
	FastRelation *relation = fast_find_relation(relid);
	LogicalRepRelMapEntry *entry;

	if (relation->rel != NULL)
		return relation;
	if (relation->valid && relation->reason != NULL)
	{
		check_turn(relation);
		return NULL;
	}

	/* Locks the table, and takes notice of changes to it. */
	entry = logicalrep_rel_open(relid, RowExclusiveLock);
	if (!relation->valid)
		describe(relation, entry, entry->localrel);
	if (relation->reason == NULL)
		open_table(relation, table_open(entry->localreloid, NoLock), entry->attrmap);
	logicalrep_rel_close(entry, NoLock);
	check_turn(relation);
	return relation->reason == NULL ? relation : NULL;
}

/* Is the local table of a relation READY?  Locks it for a change. */
bool
fast_ready(LogicalRepRelId relid)
{
	LogicalRepRelMapEntry *entry;
	bool		result;

	PushActiveSnapshot(GetTransactionSnapshot());
	entry = logicalrep_rel_open(relid, RowExclusiveLock);
	result = entry->state == SUBREL_STATE_READY;
	logicalrep_rel_close(entry, NoLock);
	PopActiveSnapshot();
	return result;
}

/*
 * Returns the relation of a change that the server's own code has just applied,
 * for what is known of its table; NULL if the change was left out because the
 * table is being synchronized.
 */
FastRelation *
fast_look_up(LogicalRepRelId relid)
{
	FastRelation *relation = fast_find_relation(relid);
	LogicalRepRelMapEntry *entry;
	bool		applied;

	/* What is open must stay as it is. */
	if (relation->valid || relation->rel != NULL)
		return relation;

	/* If the change was applied, we have the lock already. */
	PushActiveSnapshot(GetTransactionSnapshot());
	entry = logicalrep_rel_open(relid, RowExclusiveLock);
	describe(relation, entry, entry->localrel);
	applied = entry->state == SUBREL_STATE_READY ||
		(entry->state == SUBREL_STATE_SYNCDONE && entry->statelsn <= writer.final_lsn);
	logicalrep_rel_close(entry, applied ? NoLock : RowExclusiveLock);
	PopActiveSnapshot();
	return applied ? relation : NULL;
}

/* Closes all tables, with the transaction going on; locks are kept. */
void
fast_close_all(void)
{
	dlist_mutable_iter iter;

	fast_store_all();
	dlist_foreach_modify(iter, &fast_open_relations)
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
	dlist_init(&fast_open_relations);
}

/* The transaction was rolled back, and everything closed with it. */
void
fast_forget_open(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &fast_open_relations)
		dlist_container(FastRelation, open_node, iter.cur)->rel = NULL;
	dlist_init(&fast_open_relations);
}
