/*
 * fast_insert.c
 *	  The fast path: inserted rows are gathered, and stored together.
 *
 * Storing several rows at once takes one lock and one WAL record for each page that they
 * go to.  A gathered row does not exist yet: it blocks nobody, and nobody sees it.
 * Therefore the writer stores gathered rows
 *	 - before a change of the same table that is not an INSERT;
 *	 - before any change that takes the general path, since its triggers and default
 *	   values may look at any table;
 *	 - when they are many, or large;
 *	 - before the transaction waits for its turn, commits, or can no longer be
 *	   applied from its beginning.
 * An error while storing is one of the fast path: the attempt is rolled back, and its
 * changes are applied again on the general path.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "compat.h"
#include "executor/executor.h"
#include "fast/fast_context.h"
#include "fast/fast_insert.h"
#include "misspeculate.h"
#include "utils/memutils.h"

/* Gathered rows are stored when their values take more memory than this. */
#define MAX_GATHERED_BYTES (256 * 1024)

/* Makes one more slot, in memory that lives as long as the table is open. */
static void
add_slot(FastRelation *relation)
{
	EState	   *estate = relation->estate;
	MemoryContext old = MemoryContextSwitchTo(estate->es_query_cxt);

	if (relation->num_slots == 0)
		relation->gathered_context = AllocSetContextCreate(estate->es_query_cxt,
														   "weft gathered rows",
														   ALLOCSET_DEFAULT_SIZES);
	relation->gathered[relation->num_slots++] = table_slot_create(relation->rel,
																  &estate->es_tupleTable);
	MemoryContextSwitchTo(old);
}

/*
 * Returns the slot for a row to insert.  The caller fills it in, with values in
 * gathered_context, and counts it in num_gathered.
 */
TupleTableSlot *
fast_insert_slot(FastRelation *relation)
{
	if (relation->num_gathered == FAST_MAX_GATHERED ||
		(relation->num_gathered > 0 &&
		 MemoryContextMemAllocated(relation->gathered_context, false) > MAX_GATHERED_BYTES))
		fast_insert_store(relation);
	if (relation->num_gathered == relation->num_slots)
		add_slot(relation);
	return ExecClearTuple(relation->gathered[relation->num_gathered]);
}

/* Stores the rows gathered for a table, as the current user, and makes them visible. */
void
fast_insert_store(FastRelation *relation)
{
	EState	   *estate = relation->estate;
	CommandId	cid = GetCurrentCommandId(true);
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(estate));

	if (relation->checks_deletes)
		compat_injection_point("weft-conflict-store");
	if (relation->num_gathered == 1)
		table_tuple_insert(relation->rel, relation->gathered[0], cid, 0, NULL);
	else
		table_multi_insert(relation->rel, relation->gathered, relation->num_gathered,
						   cid, 0, NULL);
	for (int i = 0; i < relation->num_gathered; i++)
	{
		if (relation->info->ri_NumIndices > 0)
			compat_insert_index_entries(relation->info, relation->gathered[i], estate);
		if (relation->checks_deletes &&
			fast_context.was_deleted(relation->rel, relation->gathered[i], true))
			misspeculate("a row was deleted meanwhile");
		ExecClearTuple(relation->gathered[i]);
	}
	MemoryContextSwitchTo(old);
	relation->num_gathered = 0;
	MemoryContextReset(relation->gathered_context);
	ResetPerTupleExprContext(estate);
	CommandCounterIncrement();
}
