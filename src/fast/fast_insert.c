/*
 * fast_insert.c
 *	  The fast path: rows that are inserted are gathered, and stored together.
 *
 * To store several rows at once takes one lock and one WAL record for each page
 * that they go to.  Until they are stored, nothing of them is there: they are in
 * nobody's way, and nobody sees them.  So they are stored
 *	 - before a change of the same table that is no INSERT;
 *	 - before any change that takes the general path: nobody knows what its
 *	   triggers, or default values, look at;
 *	 - when there are many, or large ones;
 *	 - before the transaction waits for its turn, commits, or can no longer be
 *	   applied from its beginning.
 * What goes wrong then is handled as for any change of the fast path: all of it is
 * rolled back, and applied again on the general one.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "fast/fast.h"
#include "executor/executor.h"
#include "utils/memutils.h"

/* With values of so many bytes, rows are not kept for longer. */
#define MAX_GATHERED_BYTES (256 * 1024)

/* Makes the next slot, in memory that lives as long as the table is open. */
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
 * Returns the slot for a row that is to be inserted.  The caller fills it in, with
 * values in gathered_context, and counts it in num_gathered.
 */
TupleTableSlot *
fast_gather(FastRelation *relation)
{
	if (relation->num_gathered == FAST_MAX_GATHERED ||
		(relation->num_gathered > 0 &&
		 MemoryContextMemAllocated(relation->gathered_context, false) > MAX_GATHERED_BYTES))
		fast_store(relation);
	if (relation->num_gathered == relation->num_slots)
		add_slot(relation);
	return ExecClearTuple(relation->gathered[relation->num_gathered]);
}

/* Stores what was gathered for a table, as the current user; it can be seen then. */
void
fast_store(FastRelation *relation)
{
	EState	   *estate = relation->estate;
	CommandId	cid = GetCurrentCommandId(true);
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(estate));

	if (relation->num_gathered == 1)
		table_tuple_insert(relation->rel, relation->gathered[0], cid, 0, NULL);
	else
		table_multi_insert(relation->rel, relation->gathered, relation->num_gathered,
						   cid, 0, NULL);
	for (int i = 0; i < relation->num_gathered; i++)
	{
		if (relation->info->ri_NumIndices > 0)
			ExecInsertIndexTuples(relation->info, relation->gathered[i], estate,
								  false, false, NULL, NIL, false);
		ExecClearTuple(relation->gathered[i]);
	}
	MemoryContextSwitchTo(old);
	relation->num_gathered = 0;
	MemoryContextReset(relation->gathered_context);
	ResetPerTupleExprContext(estate);
	CommandCounterIncrement();
}
