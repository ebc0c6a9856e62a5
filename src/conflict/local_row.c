/*
 * local_row.c
 *	  Finds, stores and deletes local rows.
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/genam.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "compat.h"
#include "conflict/claim.h"
#include "conflict/deleted_counter.h"
#include "conflict/local_row.h"
#include "conflict/tombstone.h"
#include "executor/executor.h"
#include "group_times.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/*
 * Makes scan keys of the key of "search".  Returns false if a value is null: no row has such a key.
 */
static bool
make_scan_keys(Relation index, TupleTableSlot *search, ScanKey keys)
{
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
	{
		StrategyNumber strategy = compat_equality_strategy(index, i);
		Oid			operator = get_opfamily_member(index->rd_opfamily[i], index->rd_opcintype[i],
												   index->rd_opcintype[i], strategy);
		bool		isnull;
		Datum		value = slot_getattr(search, index->rd_index->indkey.values[i], &isnull);

		if (isnull)
			return false;
		ScanKeyEntryInitialize(&keys[i], 0, i + 1, strategy, InvalidOid,
							   index->rd_indcollation[i], get_opcode(operator), value);
	}
	return true;
}

/* Does a snapshot taken now see a row with the key of "search"? */
static bool
is_visible(Target *target, TupleTableSlot *search)
{
	Relation	index = index_open(target->key_index, AccessShareLock);
	int			num_keys = IndexRelationGetNumberOfKeyAttributes(index);
	TupleTableSlot *found;
	ScanKeyData keys[INDEX_MAX_KEYS];
	IndexScanDesc scan;
	bool		result;

	if (!make_scan_keys(index, search, keys))
	{
		index_close(index, NoLock);
		return false;
	}
	found = table_slot_create(target->rel, &target->estate->es_tupleTable);
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
 * Finds and locks the local row with the key of "search".  Returns NULL if there is none.
 *
 * The server's search also sees uncommitted rows.  If a session updates the row while
 * the search is under way, then the search may see neither the old version, which is
 * dead by the time the search reaches it, nor the new one, whose index entry the search
 * has passed already.  A snapshot always sees one of the two.  Therefore, if a snapshot
 * sees a row, the search is repeated.
 */
TupleTableSlot *
local_row_find(Target *target, TupleTableSlot *search)
{
	TupleTableSlot *result = table_slot_create(target->rel, &target->estate->es_tupleTable);

	do
	{
		CHECK_FOR_INTERRUPTS();
		if (compat_find_by_index(target->rel, target->key_index, LockTupleExclusive, search, result))
			return result;
	} while (is_visible(target, search));
	return NULL;
}

void
local_row_insert(Target *target, TupleTableSlot *row)
{
	ExecSimpleRelationInsert(target->info, target->estate, row);
	group_times_changed(target->rel, row);
}

void
local_row_update(Target *target, TupleTableSlot *local, TupleTableSlot *row)
{
	EvalPlanQualSetSlot(&target->epq, row);
	ExecSimpleRelationUpdate(target->info, target->estate, &target->epq, local, row);
	group_times_changed(target->rel, row);
}

/*
 * Deletes a local row.  "version" is what its tombstone gets; NULL stands for that of the
 * change that is being applied.
 */
void
local_row_remove(Target *target, TupleTableSlot *local, const RowVersion *version)
{
	tombstone_write(target, local, version);
	claim_release(target, local, NULL);
	deleted_counter_keep(target->rel, target->key_index, target->deltas, local);
	EvalPlanQualSetSlot(&target->epq, local);
	ExecSimpleRelationDelete(target->info, target->estate, &target->epq, local);
}

/*
 * The change that is being applied deletes a row that is missing here, and leaves a tombstone.
 * Fails if another process has stored the row meanwhile (tombstone.c).
 */
void
local_row_remove_missing(Target *target, TupleTableSlot *key)
{
	compat_injection_point("weft-conflict-missing");
	tombstone_write(target, key, NULL);
	if (local_row_find(target, key))
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg_internal("a row that was missing was stored meanwhile")));
}

/* Deletes the rows (LocalRow) that are in the way of a change, except "own". */
void
local_row_remove_all(Target *target, List *rows, TupleTableSlot *own)
{
	List	   *done = own ? list_make1(own) : NIL;

	foreach_ptr(LocalRow, row, rows)
	{
		TupleTableSlot *slot = row->slot;
		bool		again = slot == NULL;

		/* One row may violate several indexes. */
		foreach_ptr(TupleTableSlot, other, done)
			again = again || ItemPointerEquals(&other->tts_tid, &slot->tts_tid);
		if (again)
			continue;
		local_row_remove(target, slot, &row->version);
		done = lappend(done, slot);
	}
}
