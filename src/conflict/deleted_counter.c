/*
 * deleted_counter.c
 *	  Counters of rows that are deleted.
 *
 * An UPDATE that is newer than a DELETE brings the row back.  On a node that received the
 * UPDATE first, the row's counters have everything that was added to them on all nodes,
 * so they must have it, too, where the DELETE came first.  Therefore whoever deletes a
 * row keeps the values of its counters; whatever is added while the row is deleted is
 * added to these values; and a row that is brought back takes their sum.
 *
 * Writer W1 might add to values while writer W2 takes them.  Therefore a writer that finds
 * no row locks the key, and then looks for the row again (deleted_counter_lock).  A session
 * that deletes a row does not know of that lock.  It need not: the row existed until
 * then, so the values that are kept are obsolete, and the session replaces them.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "conflict/deleted_counter.h"
#include "conflict/delta.h"
#include "conflict/row_key.h"
#include "conflict/settings.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "store.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#define COLUMNS 5

/* Keeps these advisory locks apart from users', whose classes are 1 and 2. */
#define LOCK_CLASS 3

typedef void (*VisitFunction) (Relation table, HeapTuple tuple, void *arg);

/* Calls a function, unless it is NULL, for each value kept for a key; returns their number. */
static int
visit(Relation rel, pg_uuid_t *hash, VisitFunction function, void *arg)
{
	const ConflictTables *tables = settings_tables();
	Relation	table = table_open(tables->deleted_counter, RowExclusiveLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	int			count = 0;

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationGetRelid(rel)));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(hash));
	scan = systable_beginscan(table, tables->deleted_counter_key, true, SnapshotSelf, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		if (function)
			function(table, tuple, arg);
		count++;
	}
	systable_endscan(scan);
	table_close(table, NoLock);
	return count;
}

static void
remove_value(Relation table, HeapTuple tuple, void *arg)
{
	store_remove(table, tuple, (Snapshot) arg);
}

/* Removes the values that are kept for a key. */
static void
remove_values(Relation rel, pg_uuid_t *hash)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());

	(void) visit(rel, hash, remove_value, snapshot);
	UnregisterSnapshot(snapshot);
}

static void
store_value(Relation rel, pg_uuid_t *hash, int column, Datum value)
{
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS] = {0};

	values[0] = ObjectIdGetDatum(RelationGetRelid(rel));
	values[1] = UUIDPGetDatum(hash);
	values[2] = NameGetDatum(&TupleDescAttr(RelationGetDescr(rel), column)->attname);
	values[3] = value;
	values[4] = TimestampTzGetDatum(GetCurrentTimestamp());
	store_row(settings_tables()->deleted_counter, values, nulls);
}

/* Keeps the counters of a row that is deleted, and drops values kept for its key before. */
void
deleted_counter_keep(Relation rel, Oid key_index, Bitmapset *counters, TupleTableSlot *row)
{
	pg_uuid_t	hash;
	int			column = -1;

	if (bms_is_empty(counters))
		return;
	hash = row_key_hash(rel, key_index, row);
	remove_values(rel, &hash);
	slot_getallattrs(row);
	while ((column = bms_next_member(counters, column)) >= 0)
	{
		Datum		value;

		if (!row->tts_isnull[column] &&
			delta_to_numeric(TupleDescAttr(RelationGetDescr(rel), column)->atttypid,
							 row->tts_values[column], &value))
			store_value(rel, &hash, column, value);
	}
}

/* A row is stored that does not continue a deleted one: drops the values of its key. */
void
deleted_counter_forget(Target *target, TupleTableSlot *row)
{
	pg_uuid_t	hash;

	if (bms_is_empty(target->deltas))
		return;
	hash = row_key_hash(target->rel, target->key_index, row);
	remove_values(target->rel, &hash);
}

/* Waits for other writers that have found no row with this key, and holds up later ones. */
void
deleted_counter_lock(Target *target, TupleTableSlot *key)
{
	pg_uuid_t	hash = row_key_hash(target->rel, target->key_index, key);
	uint32		parts[2];
	LOCKTAG		tag;

	memcpy(parts, &hash, sizeof(parts));
	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, parts[0], parts[1], LOCK_CLASS);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

/* Adds the differences of an UPDATE to the counters of a row that stays deleted. */
void
deleted_counter_add(Target *target, TupleTableSlot *key, const Remote *remote)
{
	pg_uuid_t	hash = row_key_hash(target->rel, target->key_index, key);
	NullableDatum *differences;
	int			column = -1;

	if (visit(target->rel, &hash, NULL, NULL) == 0)
		return;
	differences = delta_differences(target, remote);
	while ((column = bms_next_member(target->deltas, column)) >= 0)
		if (!differences[column].isnull)
			store_value(target->rel, &hash, column, differences[column].value);
}

/* The sums of the values that are kept, indexed by column; null where there is none. */
typedef struct Sums
{
	Target	   *target;
	NullableDatum *values;
} Sums;

static void
add_value(Relation table, HeapTuple tuple, void *arg)
{
	Sums	   *sums = arg;
	TupleDesc	desc = RelationGetDescr(sums->target->rel);
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS];
	int			column = -1;
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(sums->target->estate));

	heap_deform_tuple(tuple, RelationGetDescr(table), values, nulls);
	while ((column = bms_next_member(sums->target->deltas, column)) >= 0)
	{
		NullableDatum *sum = &sums->values[column];

		if (namestrcmp(&TupleDescAttr(desc, column)->attname,
					   NameStr(*DatumGetName(values[2]))) != 0)
			continue;
		sum->value = DirectFunctionCall2(numeric_add, values[3],
										 sum->isnull ? DirectFunctionCall1(int4_numeric, 0) :
										 sum->value);
		sum->isnull = false;
	}
	MemoryContextSwitchTo(old);
}

/*
 * An UPDATE brings a row back: sets its counters to the values that are kept plus the
 * differences that the UPDATE makes, and drops the values.  If none are kept, the row
 * keeps the values that were sent.
 */
void
deleted_counter_take(Target *target, TupleTableSlot *key, TupleTableSlot *row,
					 const Remote *remote)
{
	pg_uuid_t	hash = row_key_hash(target->rel, target->key_index, key);
	int			natts = RelationGetDescr(target->rel)->natts;
	Sums		sums = {target, palloc(natts * sizeof(NullableDatum))};
	NullableDatum *differences;
	int			column = -1;

	for (int i = 0; i < natts; i++)
		sums.values[i].isnull = true;
	if (visit(target->rel, &hash, add_value, &sums) == 0)
		return;
	differences = delta_differences(target, remote);
	slot_getallattrs(row);
	while ((column = bms_next_member(target->deltas, column)) >= 0)
		if (!sums.values[column].isnull && !differences[column].isnull)
			delta_set(target, row, column, sums.values[column].value,
					  differences[column].value);
	remove_values(target->rel, &hash);
}
