/*
 * unique_conflict.c
 *	  Finds the local rows that share a unique value with a row to be stored.
 *
 * If an open transaction holds such a row, then the writer waits for that transaction to
 * end, and rechecks the row.  All rows that are returned are locked.  Before the writer
 * stores its row, a session may add another one with the same value.  The unique violation
 * that follows is no error of the change: the writer applies its transaction again
 * (conflict_may_retry).
 *
 * Deferrable constraints and exclusion constraints are not looked at.  To violate an exclusion
 * constraint is an error.  The server does not check deferrable ones of rows that are replicated.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "compat.h"
#include "conflict/row_version.h"
#include "conflict/unique_conflict.h"
#include "conflict/unique_index.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/*
 * Locks the row at a place in the table.  Returns NULL if the row has changed meanwhile,
 * so that the index must be searched again.
 */
static TupleTableSlot *
lock_row(Target *target, ItemPointer tid)
{
	TupleTableSlot *slot = table_slot_create(target->rel, &target->estate->es_tupleTable);
	TM_FailureData failure;
	TM_Result	result;

	PushActiveSnapshot(GetLatestSnapshot());
	result = table_tuple_lock(target->rel, tid, GetActiveSnapshot(), slot,
							  GetCurrentCommandId(false), LockTupleExclusive,
							  LockWaitBlock, 0, &failure);
	PopActiveSnapshot();
	switch (result)
	{
		case TM_Ok:
			return slot;
		case TM_Updated:
		case TM_Deleted:
			return NULL;
		default:
			elog(ERROR, "unexpected result of locking a row: %u", result);
	}
}

/* Locks and returns the row, other than "own", that has row's value in an index, or NULL. */
static TupleTableSlot *
find_row(Target *target, Oid index, TupleTableSlot *row, TupleTableSlot *own)
{
	ItemPointerData tid;
	TupleTableSlot *result;

	do
	{
		CHECK_FOR_INTERRUPTS();
		if (compat_check_index_constraints(target->info, row, target->estate, &tid,
										   own ? &own->tts_tid : NULL, list_make1_oid(index)))
			return NULL;
		if (own && ItemPointerEquals(&tid, &own->tts_tid))
			return NULL;
		result = lock_row(target, &tid);
	} while (result == NULL);
	return result;
}

/*
 * Returns the local rows (LocalRow) that share a unique value with "row", one for each
 * index that would be violated, except the key's.  "own" is the row that "row" would
 * replace, or NULL.
 */
List *
unique_conflicts(Target *target, TupleTableSlot *row, TupleTableSlot *own)
{
	List	   *result = NIL;

	for (int i = 0; i < target->info->ri_NumIndices; i++)
	{
		Relation	index = target->info->ri_IndexRelationDescs[i];
		LocalRow   *found;
		TupleTableSlot *slot;

		if (!unique_index_is_checked(index, target->key_index))
			continue;
		slot = find_row(target, RelationGetRelid(index), row, own);
		if (slot == NULL)
			continue;
		found = palloc(sizeof(LocalRow));
		found->slot = slot;
		found->index = RelationGetRelid(index);
		found->version = row_version_in(target, slot);
		result = lappend(result, found);
	}
	return result;
}
