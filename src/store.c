/*
 * store.c
 *	  Stores and removes rows of Weft's own tables, below the level of SQL.
 *
 * The user who applies or deletes something has no rights on these tables, and needs
 * none.  Their rows are never published, not even by FOR ALL TABLES: logical decoding
 * ignores the inserts, which are marked accordingly, and the deletes, which leave no old
 * row because the tables have no replica identity.  Only weft.ddl_queue is published: its
 * inserts.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "compat.h"
#include "executor/executor.h"
#include "storage/lmgr.h"
#include "store.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

static void
insert(Oid relid, const Datum *values, const bool *nulls, int options)
{
	Relation	rel = table_open(relid, RowExclusiveLock);
	int			natts = RelationGetDescr(rel)->natts;
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *info = makeNode(ResultRelInfo);
	TupleTableSlot *slot = table_slot_create(rel, &estate->es_tupleTable);

	InitResultRelInfo(info, rel, 1, NULL, 0);
	ExecOpenIndices(info, false);
	memcpy(slot->tts_values, values, natts * sizeof(Datum));
	memcpy(slot->tts_isnull, nulls, natts * sizeof(bool));
	ExecStoreVirtualTuple(slot);
	table_tuple_insert(rel, slot, GetCurrentCommandId(true), options, NULL);
	if (info->ri_NumIndices > 0)
		compat_insert_index_entries(info, slot, estate);

	ExecResetTupleTable(estate->es_tupleTable, false);
	ExecCloseIndices(info);
	FreeExecutorState(estate);
	table_close(rel, NoLock);
}

/* Inserts a row. */
void
store_row(Oid relid, const Datum *values, const bool *nulls)
{
	insert(relid, values, nulls, TABLE_INSERT_NO_LOGICAL);
}

/* Inserts a row that is published. */
void
store_row_decoded(Oid relid, const Datum *values, const bool *nulls)
{
	insert(relid, values, nulls, 0);
}

/* Deletes a row that was found by a snapshot, unless another transaction deletes it. */
void
store_remove(Relation rel, HeapTuple tuple, Snapshot snapshot)
{
	TM_FailureData failure;

	(void) compat_table_tuple_delete(rel, &tuple->t_self, GetCurrentCommandId(true),
									 snapshot, false, &failure);
}

/*
 * Deletes those of the first "limit" rows that a scan finds of which "may_remove" says so;
 * NULL stands for all.  Returns the number of rows deleted.
 */
static int
remove_rows(Relation rel, Oid index, ScanKey key, int limit, StoreMayRemove may_remove, void *arg)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(rel, index, true, snapshot, 1, key);
	HeapTuple	tuple;
	int			count = 0;

	while (limit-- > 0 && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		if (may_remove != NULL && !may_remove(rel, tuple, arg))
			continue;
		store_remove(rel, tuple, snapshot);
		count++;
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	return count;
}

/*
 * Removes those of the "limit" oldest rows that are older than a time, and of which "may_remove"
 * says so; NULL stands for all.  The first column of the index has the rows' times.  Returns the
 * number of rows removed, which is 0 if another process is removing rows from the table.
 */
int
store_remove_old(Oid relid, Oid index, TimestampTz before, int limit,
				 StoreMayRemove may_remove, void *arg)
{
	Relation	rel;
	Relation	time_index;
	ScanKeyData key;
	int			result;

	if (!ConditionalLockRelationOid(relid, ShareUpdateExclusiveLock))
		return 0;
	rel = table_open(relid, NoLock);
	time_index = index_open(index, AccessShareLock);
	ScanKeyInit(&key, time_index->rd_index->indkey.values[0], BTLessStrategyNumber,
				F_TIMESTAMPTZ_LT, TimestampTzGetDatum(before));
	index_close(time_index, AccessShareLock);
	result = remove_rows(rel, index, &key, limit, may_remove, arg);
	table_close(rel, NoLock);
	return result;
}

/* Returns the highest number in an index whose first column is of type bigint. */
static int64
highest(Relation rel, Oid index)
{
	Relation	key = index_open(index, AccessShareLock);
	SysScanDesc scan = systable_beginscan_ordered(rel, key, SnapshotSelf, 0, NULL);
	HeapTuple	tuple = systable_getnext_ordered(scan, BackwardScanDirection);
	bool		isnull;
	int64		result = 0;

	if (HeapTupleIsValid(tuple))
		result = DatumGetInt64(heap_getattr(tuple, key->rd_index->indkey.values[0],
											RelationGetDescr(rel), &isnull));
	systable_endscan_ordered(scan);
	index_close(key, AccessShareLock);
	return result;
}

/*
 * Removes up to "limit" of the oldest rows, until about "keep" are left.  They are counted
 * by the first column of the index, an ascending number.
 */
int
store_remove_low(Oid relid, Oid index, int64 keep, int limit)
{
	Relation	rel;
	ScanKeyData key;
	int			result;

	if (!ConditionalLockRelationOid(relid, ShareUpdateExclusiveLock))
		return 0;
	rel = table_open(relid, NoLock);
	ScanKeyInit(&key, 1, BTLessEqualStrategyNumber, F_INT8LE,
				Int64GetDatum(highest(rel, index) - keep));
	result = remove_rows(rel, index, &key, limit, NULL, NULL);
	table_close(rel, NoLock);
	return result;
}
