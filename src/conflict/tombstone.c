/*
 * tombstone.c
 *	  Remembering what was deleted, and what a merged counter has hidden.
 *
 * A change may come for a row that is not there: because it is still to come, or
 * because it was deleted.  The difference, and whether the change is older than
 * the delete, decide whether the row comes (back).  So every delete leaves a
 * tombstone, and a tombstone's version is, as a row's, that of the transaction that
 * has written it.  Writers leave them when they delete; a trigger does so for
 * sessions (weft.track_deletes), which does not fire in writers.
 *
 * Tombstones are only ever added, so nobody waits for anybody here, and the newest
 * counts.  One that is older than the row that is there again does no harm.  They
 * are found by a hash of the key, of 128 bits, so they hold nothing of the row.
 * After weft.tombstone_retention they go; a change that is older than that and
 * arrives so late finds nothing, and brings its row back.
 *
 * A tombstone has a version of its own if what won was another change than the
 * one being applied: a remote row that has lost to a newer one with the same value
 * in a unique index counts as deleted by that one.
 *
 * merged_row is the other case in which the transaction that has written
 * something is not what its version is: the row has lost against the local one,
 * except for its counters, which were added.  That writes the local row again,
 * by a transaction that is older than what it has in its other columns.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/xact.h"
#include "commands/trigger.h"
#include "conflict/internal.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

PG_FUNCTION_INFO_V1(weft_record_delete);

/* Columns of weft.tombstone; those of weft.merged_row begin in the same way. */
#define RELATION_COLUMN 1
#define KEY_COLUMN 2
#define TIME_COLUMN 3
#define NODE_COLUMN 4
#define RECORDED_COLUMN 5
#define XID_COLUMN 6

/* Opens a scan of one of the tables for a key, and for who has written it, unless zero. */
static SysScanDesc
begin_scan(Relation rel, Oid index, Oid relid, pg_uuid_t *hash, TransactionId xid)
{
	ScanKeyData keys[3];

	ScanKeyInit(&keys[0], RELATION_COLUMN, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	ScanKeyInit(&keys[1], KEY_COLUMN, BTEqualStrategyNumber, F_UUID_EQ,
				UUIDPGetDatum(hash));
	ScanKeyInit(&keys[2], XID_COLUMN, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(xid));

	/* Whoever has taken the row away is committed, and so is this. */
	return systable_beginscan(rel, index, true, SnapshotSelf,
							  TransactionIdIsValid(xid) ? 3 : 2, keys);
}

static RowVersion
read_version(Relation rel, HeapTuple tuple)
{
	RowVersion	result = {0};
	bool		isnull;
	Datum		time = heap_getattr(tuple, TIME_COLUMN, RelationGetDescr(rel), &isnull);

	if (isnull)
		return version_of_xid(HeapTupleHeaderGetRawXmin(tuple->t_data));
	result.known = true;
	result.time = DatumGetTimestampTz(time);
	result.node = DatumGetInt32(heap_getattr(tuple, NODE_COLUMN, RelationGetDescr(rel),
											 &isnull));
	return result;
}

/*
 * Finds out when the row with a key was deleted last.  Returns false if nothing is
 * known of that.
 */
bool
tombstone_find(Target *target, TupleTableSlot *key, RowVersion *version)
{
	const ConflictTables *tables = settings_tables();
	Relation	rel = table_open(tables->tombstone, AccessShareLock);
	pg_uuid_t	hash = tuple_key_hash(target->rel, target->key_index, key);
	SysScanDesc scan = begin_scan(rel, tables->tombstone_key,
								  RelationGetRelid(target->rel), &hash,
								  InvalidTransactionId);
	HeapTuple	tuple;
	bool		found = false;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		RowVersion	this = read_version(rel, tuple);

		if (!this.known)
			continue;
		if (!found || version_newer(&this, version))
			*version = this;
		found = true;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

static void
write_row(Oid table, Relation rel, pg_uuid_t hash, const RowVersion *version, TransactionId xid)
{
	Datum		values[XID_COLUMN] = {0};
	bool		nulls[XID_COLUMN] = {0};

	values[RELATION_COLUMN - 1] = ObjectIdGetDatum(RelationGetRelid(rel));
	values[KEY_COLUMN - 1] = UUIDPGetDatum(&hash);
	nulls[TIME_COLUMN - 1] = nulls[NODE_COLUMN - 1] = version == NULL;
	if (version)
	{
		values[TIME_COLUMN - 1] = TimestampTzGetDatum(version->time);
		values[NODE_COLUMN - 1] = Int32GetDatum(version->node);
	}
	values[RECORDED_COLUMN - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[XID_COLUMN - 1] = Int64GetDatum(xid);
	store_row(table, values, nulls);
}

/*
 * Remembers that the row with a key is deleted, by the current transaction, or by
 * what has the version that is given.
 */
void
tombstone_write(Target *target, TupleTableSlot *key, const RowVersion *version)
{
	write_row(settings_tables()->tombstone, target->rel,
			  tuple_key_hash(target->rel, target->key_index, key), version,
			  InvalidTransactionId);
}

/*
 * Finds the version that a row had before a counter was merged into it by
 * transaction xid.  Returns false if xid is what has written all of it.
 */
bool
merged_row_find(Target *target, TupleTableSlot *row, TransactionId xid,
				RowVersion *version)
{
	const ConflictTables *tables = settings_tables();
	Relation	rel = table_open(tables->merged_row, AccessShareLock);
	pg_uuid_t	hash = tuple_key_hash(target->rel, target->key_index, row);
	SysScanDesc scan = begin_scan(rel, tables->merged_row_key,
								  RelationGetRelid(target->rel), &hash, xid);
	HeapTuple	tuple;
	bool		found = false;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		*version = read_version(rel, tuple);
		found = true;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/* Remembers the version of a row into which the current transaction merges. */
void
merged_row_write(Target *target, TupleTableSlot *row, const RowVersion *version)
{
	write_row(settings_tables()->merged_row, target->rel,
			  tuple_key_hash(target->rel, target->key_index, row), version,
			  GetCurrentTransactionId());
}

static pg_uuid_t
key_hash(Relation rel, Oid index, HeapTuple tuple)
{
	TupleTableSlot *row = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);
	pg_uuid_t	result;

	ExecStoreHeapTuple(tuple, row, false);
	result = tuple_key_hash(rel, index, row);
	ExecDropSingleTupleTableSlot(row);
	return result;
}

/*
 * weft.record_delete()
 *
 * A row trigger: remembers that the old row's key is gone, if it is.  Fails if it is
 * called otherwise.  A table without a key needs nothing.
 */
Datum
weft_record_delete(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Relation	rel;
	Oid			index;
	pg_uuid_t	hash;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_FOR_ROW(data->tg_event) ||
		!TRIGGER_FIRED_AFTER(data->tg_event) || TRIGGER_FIRED_BY_INSERT(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("\"%s\" must be fired by an AFTER DELETE OR UPDATE row trigger",
						"weft.record_delete")));

	rel = data->tg_relation;
	index = GetRelationIdentityOrPK(rel);
	if (!OidIsValid(index))
		return PointerGetDatum(NULL);
	hash = key_hash(rel, index, data->tg_trigtuple);
	if (TRIGGER_FIRED_BY_UPDATE(data->tg_event))
	{
		pg_uuid_t	new_hash = key_hash(rel, index, data->tg_newtuple);

		if (memcmp(&hash, &new_hash, sizeof(hash)) == 0)
			return PointerGetDatum(NULL);
	}
	write_row(settings_tables()->tombstone, rel, hash, NULL, InvalidTransactionId);
	return PointerGetDatum(NULL);
}
