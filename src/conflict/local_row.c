/*
 * local_row.c
 *	  Finding, storing and deleting local rows.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "catalog/pg_am.h"
#include "compat.h"
#include "conflict/claim.h"
#include "conflict/deleted_counter.h"
#include "conflict/local_row.h"
#include "conflict/tombstone.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* Is a row with the key of "search" to be seen, or was it until just now? */
static bool
is_visible(Target *target, TupleTableSlot *search)
{
	Relation	index = index_open(target->key_index, AccessShareLock);
	int			num_keys = IndexRelationGetNumberOfKeyAttributes(index);
	TupleTableSlot *found = table_slot_create(target->rel, &target->estate->es_tupleTable);
	ScanKeyData keys[INDEX_MAX_KEYS];
	IndexScanDesc scan;
	bool		result;

	for (int i = 0; i < num_keys; i++)
	{
		bool		isnull;
		Oid			operator = get_opfamily_member(index->rd_opfamily[i], index->rd_opcintype[i],
												   index->rd_opcintype[i],
												   BTEqualStrategyNumber);

		ScanKeyEntryInitialize(&keys[i], 0, i + 1, BTEqualStrategyNumber, InvalidOid,
							   index->rd_indcollation[i], get_opcode(operator),
							   slot_getattr(search, index->rd_index->indkey.values[i], &isnull));
	}
	PushActiveSnapshot(GetLatestSnapshot());
	scan = compat_index_beginscan(target->rel, index, GetActiveSnapshot(), num_keys);
	index_rescan(scan, keys, num_keys, NULL, 0);
	result = index_getnext_slot(scan, ForwardScanDirection, found);
	ExecClearTuple(found);
	index_endscan(scan);
	PopActiveSnapshot();
	index_close(index, NoLock);
	return result;
}

/*
 * Finds and locks the local row with the key of "search"; NULL if there is none.
 *
 * The server's search sees what is not committed.  If a session updates the row
 * just then, it may see neither the old version, which is dead by the time it gets
 * there, nor the new one, whose entry in the index it has passed already.  A snapshot
 * always sees one of them; so what it sees is looked for again.
 */
TupleTableSlot *
local_row_find(Target *target, TupleTableSlot *search)
{
	TupleTableSlot *result = table_slot_create(target->rel, &target->estate->es_tupleTable);

	do
	{
		CHECK_FOR_INTERRUPTS();
		if (RelationFindReplTupleByIndex(target->rel, target->key_index, LockTupleExclusive,
										 search, result))
			return result;
	} while (is_visible(target, search));
	return NULL;
}

void
local_row_insert(Target *target, TupleTableSlot *row)
{
	ExecSimpleRelationInsert(target->info, target->estate, row);
}

void
local_row_update(Target *target, TupleTableSlot *local, TupleTableSlot *row)
{
	EvalPlanQualSetSlot(&target->epq, row);
	ExecSimpleRelationUpdate(target->info, target->estate, &target->epq, local, row);
}

/* Deletes a local row; "version" is that of the tombstone, NULL for our own. */
void
local_row_remove(Target *target, TupleTableSlot *local, const RowVersion *version)
{
	tombstone_write(target, local, version);
	claim_release(target, local, NULL);
	deleted_counter_keep(target->rel, target->key_index, target->deltas, local);
	EvalPlanQualSetSlot(&target->epq, local);
	ExecSimpleRelationDelete(target->info, target->estate, &target->epq, local);
}

/* Deletes the rows that are in the way, other than "own". */
void
local_row_remove_all(Target *target, List *conflicts, TupleTableSlot *own)
{
	List	   *done = own ? list_make1(own) : NIL;
	ListCell   *cell;

	foreach(cell, conflicts)
	{
		LocalRow   *conflict = lfirst(cell);
		TupleTableSlot *slot = conflict->slot;
		bool		again = slot == NULL;
		ListCell   *other;

		/* One row may violate several indexes. */
		foreach(other, done)
			if (slot && ItemPointerEquals(&((TupleTableSlot *) lfirst(other))->tts_tid, &slot->tts_tid))
			again = true;
		if (again)
			continue;
		local_row_remove(target, slot, &conflict->version);
		done = lappend(done, slot);
	}
}
