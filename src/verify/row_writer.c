/*
 * row_writer.c
 *	  Writes rows of a local table as apply would.
 *
 * As in the server's apply worker, rows are stored by the executor's functions for
 * replication: row triggers fire according to session_replication_role, statement triggers
 * and rules do not; constraints are checked, foreign keys are not; generated columns are
 * computed, and a new row gets the defaults of columns that the publisher does not have.  An
 * identity column takes the publisher's value.
 *
 * A row of a partitioned table is written in its partition.  If an update moves it to
 * another one, then it is deleted here and inserted there.
 *
 * The caller has called row_table_begin(), and has an active snapshot.
 */
#include "postgres.h"

#include "access/attmap.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/tupconvert.h"
#include "access/xact.h"
#include "commands/trigger.h"
#include "compat.h"
#include "executor/execPartition.h"
#include "executor/executor.h"
#include "local_table.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_relation.h"
#include "rewrite/rewriteHandler.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "verify/row_writer.h"

/* An ordinary table, or a partition, that is open for one change. */
typedef struct Leaf
{
	Relation	rel;
	EState	   *estate;
	ResultRelInfo *info;
	EPQState	epq;
} Leaf;

/* Opens a table for a change of "changed" columns, numbered from 0. */
static void
open_leaf(Leaf *leaf, Oid relid, AclMode mode, const AttrMap *changed)
{
	leaf->rel = table_open(relid, RowExclusiveLock);
	if (leaf->rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not an ordinary table",
						RelationGetRelationName(leaf->rel))));
	local_table_check_rights(leaf->rel, mode);
	leaf->estate = local_table_prepare(leaf->rel, changed, false, &leaf->info);
	leaf->estate->es_opened_result_relations =
		lappend(leaf->estate->es_opened_result_relations, leaf->info);
	leaf->estate->es_output_cid = GetCurrentCommandId(true);
	leaf->estate->es_snapshot = GetActiveSnapshot();
	EvalPlanQualInit(&leaf->epq, leaf->estate, NULL, NIL, -1, NIL);
	AfterTriggerBeginQuery();
}

static void
close_leaf(Leaf *leaf)
{
	AfterTriggerEndQuery(leaf->estate);
	leaf->estate->es_snapshot = InvalidSnapshot;
	EvalPlanQualEnd(&leaf->epq);
	ExecCloseIndices(leaf->info);
	ExecResetTupleTable(leaf->estate->es_tupleTable, false);
	FreeExecutorState(leaf->estate);
	table_close(leaf->rel, NoLock);
	CommandCounterIncrement();
}

static AttrMap *
no_columns(TupleDesc desc)
{
	AttrMap    *result = make_attrmap(desc->natts);

	for (int i = 0; i < result->maplen; i++)
		result->attnums[i] = -1;
	return result;
}

/* Sets a column of a row to a value that is given as text. */
static void
set_column(TupleTableSlot *slot, AttrNumber number, char *text)
{
	Form_pg_attribute attribute = TupleDescAttr(slot->tts_tupleDescriptor, number - 1);
	Oid			function;
	Oid			param;

	/* The input function of a domain checks its constraints for null, too. */
	getTypeInputInfo(attribute->atttypid, &function, &param);
	slot->tts_values[number - 1] = OidInputFunctionCall(function, text, param,
														attribute->atttypmod);
	slot->tts_isnull[number - 1] = text == NULL;
}

static bool
is_generated(Relation rel, AttrNumber number)
{
	return TupleDescAttr(RelationGetDescr(rel), number - 1)->attgenerated != '\0';
}

/* Sets a column that is not sent to its default. */
static void
set_default(RowTable *table, TupleTableSlot *slot, int i, EState *estate)
{
	Form_pg_attribute attribute = TupleDescAttr(slot->tts_tupleDescriptor, i);
	Expr	   *expression = NULL;

	slot->tts_values[i] = (Datum) 0;
	slot->tts_isnull[i] = true;
	if (!attribute->attisdropped && !attribute->attgenerated)
		expression = (Expr *) build_column_default(table->rel, i + 1);
	if (expression)
		slot->tts_values[i] =
			ExecEvalExpr(ExecInitExpr(expression_planner(expression), NULL),
						 GetPerTupleExprContext(estate), &slot->tts_isnull[i]);
}

/* Makes an empty slot for rows of a table, which need not be dropped. */
static TupleTableSlot *
make_slot(TupleDesc desc)
{
	return MakeSingleTupleTableSlot(CreateTupleDescCopyConstr(desc), &TTSOpsVirtual);
}

/*
 * Stores the values of a slot whose arrays have been filled, and forgets what they were made in:
 * a value can have up to 1 GB, and the executor makes copies of its own.
 */
static TupleTableSlot *
store_values(TupleTableSlot *slot, MemoryContext values)
{
	ExecStoreVirtualTuple(slot);
	ExecMaterializeSlot(slot);
	MemoryContextDelete(values);
	return slot;
}

static MemoryContext
create_values_context(void)
{
	return AllocSetContextCreate(CurrentMemoryContext, "weft values of a row",
								 ALLOCSET_DEFAULT_SIZES);
}

/* Sets up the executor for a partitioned table, whose indexes cannot be opened like others. */
static EState *
prepare_root(Relation rel, ResultRelInfo **info)
{
	EState	   *estate = CreateExecutorState();
	RangeTblEntry *rte = makeNode(RangeTblEntry);
	List	   *perminfos = NIL;

	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(rel);
	rte->relkind = rel->rd_rel->relkind;
	rte->rellockmode = AccessShareLock;
	(void) addRTEPermissionInfo(&perminfos, rte);
	compat_init_range_table(estate, rte, perminfos);
	*info = makeNode(ResultRelInfo);
	InitResultRelInfo(*info, rel, 1, NULL, 0);
	return estate;
}

/* Finds the partition to which a row, in the form of its root, belongs. */
static Oid
find_partition(RowTable *table, TupleTableSlot *row)
{
	ResultRelInfo *info;
	EState	   *estate = prepare_root(table->rel, &info);
	ModifyTableState *state = makeNode(ModifyTableState);
	PartitionTupleRouting *routing;
	Oid			result;

	state->ps.state = estate;
	state->operation = CMD_INSERT;
	state->resultRelInfo = info;
	routing = ExecSetupPartitionTupleRouting(estate, table->rel);
	result = RelationGetRelid(ExecFindPartition(state, info, routing, row,
												estate)->ri_RelationDesc);
	ExecCleanupTupleRouting(state, routing);
	ExecResetTupleTable(estate->es_tupleTable, false);
	FreeExecutorState(estate);
	return result;
}

/* Converts a row of table "from" to one of table "to". */
static TupleTableSlot *
convert(TupleTableSlot *row, TupleDesc to)
{
	TupleTableSlot *result = make_slot(to);
	AttrMap    *map = build_attrmap_by_name(row->tts_tupleDescriptor, to, false);

	return execute_attr_map_slot(map, row, result);
}

/* Stores a new row, in the form of the table itself. */
static void
insert_slot(RowTable *table, TupleTableSlot *row)
{
	Oid			relid = table->rel->rd_rel->relkind == RELKIND_RELATION ?
		RelationGetRelid(table->rel) : find_partition(table, row);
	Leaf		leaf;
	TupleTableSlot *slot;
	Relation	rel = table_open(relid, RowExclusiveLock);
	AttrMap    *none = no_columns(RelationGetDescr(rel));

	table_close(rel, NoLock);
	open_leaf(&leaf, relid, ACL_INSERT, none);
	slot = relid == RelationGetRelid(table->rel) ? row :
		convert(row, RelationGetDescr(leaf.rel));
	slot->tts_tableOid = relid;
	ExecSimpleRelationInsert(leaf.info, leaf.estate, slot);
	close_leaf(&leaf);
}

/* Inserts a row. */
void
row_writer_insert(RowTable *table, RowValues row)
{
	TupleDesc	desc = RelationGetDescr(table->rel);
	TupleTableSlot *slot = make_slot(desc);
	bool	   *given = palloc0(desc->natts * sizeof(bool));
	EState	   *estate = CreateExecutorState();
	MemoryContext values = create_values_context();
	MemoryContext old = MemoryContextSwitchTo(values);

	ExecClearTuple(slot);
	for (int i = 0; i < table->count; i++)
	{
		AttrNumber	number = table->columns[i]->attnum;

		if (is_generated(table->rel, number))
			continue;
		set_column(slot, number, row[i]);
		given[number - 1] = true;
	}
	for (int i = 0; i < desc->natts; i++)
		if (!given[i])
			set_default(table, slot, i, estate);
	MemoryContextSwitchTo(old);
	insert_slot(table, store_values(slot, values));
	FreeExecutorState(estate);
}

/*
 * Makes the new version of a row in its table, which may be a partition.  It has been compared
 * with "row".
 */
static TupleTableSlot *
make_new_version(RowTable *table, const FoundRow *found, RowValues row, Relation rel,
				 TupleTableSlot *old, AttrMap *changed)
{
	TupleTableSlot *slot = make_slot(RelationGetDescr(rel));
	MemoryContext values = create_values_context();
	MemoryContext caller = MemoryContextSwitchTo(values);

	ExecClearTuple(slot);
	slot_getallattrs(old);
	memcpy(slot->tts_values, old->tts_values, RelationGetDescr(rel)->natts * sizeof(Datum));
	memcpy(slot->tts_isnull, old->tts_isnull, RelationGetDescr(rel)->natts * sizeof(bool));
	for (int i = 0; i < table->count; i++)
	{
		AttrNumber	number = get_attnum(RelationGetRelid(rel), table->columns[i]->name);

		if (found->same[i] || is_generated(rel, number))
			continue;
		set_column(slot, number, row[i]);
		changed->attnums[number - 1] = i;
	}
	slot->tts_tableOid = RelationGetRelid(rel);
	MemoryContextSwitchTo(caller);
	return store_values(slot, values);
}

/* Reads the version of a row that has been found. */
static TupleTableSlot *
fetch(Relation rel, const FoundRow *found)
{
	TupleTableSlot *result = table_slot_create(rel, NULL);
	ItemPointerData place = found->place;

	if (!table_tuple_fetch_row_version(rel, &place, GetActiveSnapshot(), result))
		elog(ERROR, "could not read a locked row");
	return result;
}

/*
 * Reads a locked row of an ordinary table, with its system columns.  The caller drops the slot.
 */
TupleTableSlot *
row_writer_fetch(RowTable *table, const FoundRow *found)
{
	return fetch(table->rel, found);
}

/* Makes a row of the table that has the columns of the key only. */
TupleTableSlot *
row_writer_key(RowTable *table, RowValues row)
{
	TupleTableSlot *slot = make_slot(RelationGetDescr(table->rel));

	ExecClearTuple(slot);
	memset(slot->tts_isnull, true, slot->tts_tupleDescriptor->natts * sizeof(bool));
	for (int i = 0; i < table->count; i++)
		if (table->in_key[i])
			set_column(slot, table->columns[i]->attnum, row[i]);
	return ExecStoreVirtualTuple(slot);
}

/*
 * Gives a locked row the values of "row", with which it has been compared.  Columns whose text
 * is the same already are not touched, nor are columns that the publisher does not have.
 */
void
row_writer_update(RowTable *table, const FoundRow *found, RowValues row)
{
	Relation	rel = table_open(found->relid, RowExclusiveLock);
	AttrMap    *changed = no_columns(RelationGetDescr(rel));
	TupleTableSlot *old = fetch(rel, found);
	TupleTableSlot *new = make_new_version(table, found, row, rel, old, changed);
	Leaf		leaf;

	open_leaf(&leaf, found->relid, ACL_UPDATE, changed);
	if (rel->rd_rel->relispartition && rel != table->rel &&
		!ExecPartitionCheck(leaf.info, new, leaf.estate, false))
	{
		TupleTableSlot *moved = convert(new, RelationGetDescr(table->rel));

		close_leaf(&leaf);
		row_writer_delete(table, found);
		insert_slot(table, moved);
	}
	else
	{
		EvalPlanQualSetSlot(&leaf.epq, new);
		ExecSimpleRelationUpdate(leaf.info, leaf.estate, &leaf.epq, old, new);
		close_leaf(&leaf);
	}
	ExecDropSingleTupleTableSlot(old);
	table_close(rel, NoLock);
}

/*
 * Deletes a locked row, and returns what row_writer_update() would have made of it, for
 * row_writer_put().  A unique value that it had is free in between.
 */
TupleTableSlot *
row_writer_lift(RowTable *table, const FoundRow *found, RowValues row)
{
	Relation	rel = table_open(found->relid, RowExclusiveLock);
	TupleTableSlot *old = fetch(rel, found);
	TupleTableSlot *result = make_new_version(table, found, row, rel, old,
											  no_columns(RelationGetDescr(rel)));

	if (rel != table->rel)
		result = convert(result, RelationGetDescr(table->rel));
	ExecMaterializeSlot(result);
	ExecDropSingleTupleTableSlot(old);
	table_close(rel, NoLock);
	row_writer_delete(table, found);
	return result;
}

/* Stores a row that has been lifted. */
void
row_writer_put(RowTable *table, TupleTableSlot *row)
{
	insert_slot(table, row);
}

/* Deletes a locked row. */
void
row_writer_delete(RowTable *table, const FoundRow *found)
{
	Relation	rel = table_open(found->relid, RowExclusiveLock);
	TupleTableSlot *old = fetch(rel, found);
	Leaf		leaf;

	open_leaf(&leaf, found->relid, ACL_DELETE, no_columns(RelationGetDescr(rel)));
	EvalPlanQualSetSlot(&leaf.epq, old);
	ExecSimpleRelationDelete(leaf.info, leaf.estate, &leaf.epq, old);
	close_leaf(&leaf);
	ExecDropSingleTupleTableSlot(old);
	table_close(rel, NoLock);
}
