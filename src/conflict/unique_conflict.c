/*
 * unique_conflict.c
 *	  Local rows with which a row to be stored would share a value that is
 *	  unique.
 *
 * A row that somebody has in hands is waited for, and looked at again; what is
 * returned is locked.  Between that and the store somebody may add another one: the
 * violation that this gives is no error of the change, which is applied again
 * (conflict_may_retry).  Constraints that are checked at the end of a transaction,
 * and exclusion constraints, are not looked at: to violate one is an error.
 */
#include "postgres.h"
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
 * Locks the row at a place.  Returns NULL if it has changed meanwhile, so that the
 * index must be asked again.
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

/* Returns the locked row that has a value of an index, other than "own"; or NULL. */
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
 * Returns the rows (LocalRow) that are in the way of a row, one for each index that
 * would be violated; "own" is the row that it would replace, or NULL.  The key's
 * is not looked at.
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

		if (!unique_index_counts(index, target->key_index))
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
