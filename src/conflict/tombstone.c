/*
 * tombstone.c
 *	  Remembering what was deleted, and what a merged counter has hidden.
 *
 * A change may come for a row that is not there: because it is still to come, or
 * because it was deleted.  The difference, and whether the change is older than
 * the delete, decide whether the row comes (back).  So every delete leaves a
 * tombstone with its version: time and node.  Writers leave them when they delete; a
 * trigger does so for sessions (weft.track_deletes), which does not fire in writers.
 * A session's commit time is not known before it commits.  Its tombstones are stored
 * without one, and have that of the transaction that wrote them; the next writer that
 * removes old rows (session.c) stores it, since the server forgets commit times.
 *
 * Nobody waits for anybody here, and the newest tombstone counts.  One that is older
 * than the row that is there again does no harm.  They are found by a hash of the
 * key, of 128 bits, so they hold nothing of the row.  After weft.tombstone_retention
 * they go; a change that is older than that and arrives so late finds nothing, and
 * brings its row back.
 *
 * A row that has lost to another one with the same value in a unique index leaves a
 * tombstone with its own version: it is not there, but any newer change of it is
 * decided anew.  The table also has values of unique indexes that rows have had, see
 * claim.c.
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
#include "miscadmin.h"
#include "storage/lmgr.h"
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
begin_scan(Relation rel, Oid index, Oid relid, pg_uuid_t *hash, TransactionId xid,
		   Snapshot snapshot)
{
	ScanKeyData keys[3];

	ScanKeyInit(&keys[0], RELATION_COLUMN, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	ScanKeyInit(&keys[1], KEY_COLUMN, BTEqualStrategyNumber, F_UUID_EQ,
				UUIDPGetDatum(hash));
	ScanKeyInit(&keys[2], XID_COLUMN, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(xid));

	return systable_beginscan(rel, index, true, snapshot,
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
	result.origin = UNKNOWN_ORIGIN;
	result.time = DatumGetTimestampTz(time);
	result.node = DatumGetInt32(heap_getattr(tuple, NODE_COLUMN, RelationGetDescr(rel),
											 &isnull));
	return result;
}

/*
 * Waits for transactions that are writing a tombstone that is newer than what is being
 * applied.
 */
static void
wait_uncommitted(Relation rel, Oid index, Oid relid, pg_uuid_t *hash)
{
	TransactionId xid;

	do
	{
		SnapshotData dirty;
		SysScanDesc scan;
		HeapTuple	tuple;

		CHECK_FOR_INTERRUPTS();
		xid = InvalidTransactionId;
		InitDirtySnapshot(dirty);
		scan = begin_scan(rel, index, relid, hash, InvalidTransactionId, &dirty);
		while (!TransactionIdIsValid(xid) && HeapTupleIsValid(tuple = systable_getnext(scan)))
		{
			RowVersion	version;

			if (!TransactionIdIsValid(dirty.xmin))
				continue;
			version = read_version(rel, tuple);
			if (!version.known || !version_wins(&conflict_session.version, &version))
				xid = dirty.xmin;
		}
		systable_endscan(scan);
		if (TransactionIdIsValid(xid))
			XactLockTableWait(xid, NULL, NULL, XLTW_None);
	} while (TransactionIdIsValid(xid));
}

/*
 * Finds the newest tombstone with a hash; with "uncommitted", waits for those that are
 * not committed.  Returns false if there is none.
 *
 * Whoever has taken a row away is committed, and so is its tombstone.  The snapshot
 * sees one that is replaced by one with a time (tombstone_add_times) exactly once.
 */
bool
tombstone_find_hash(Relation target, pg_uuid_t *hash, bool uncommitted, RowVersion *version)
{
	const ConflictTables *tables = settings_tables();
	Oid			relid = RelationGetRelid(target);
	Relation	rel = table_open(tables->tombstone, AccessShareLock);
	Snapshot	snapshot;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	if (uncommitted)
		wait_uncommitted(rel, tables->tombstone_key, relid, hash);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = begin_scan(rel, tables->tombstone_key, relid, hash, InvalidTransactionId, snapshot);
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
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return found;
}

/*
 * Finds out when the row with a key was deleted last.  Returns false if nothing is
 * known of that.
 */
bool
tombstone_find(Target *target, TupleTableSlot *key, RowVersion *version)
{
	pg_uuid_t	hash = tuple_key_hash(target->rel, target->key_index, key);

	return tombstone_find_hash(target->rel, &hash, false, version);
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
 * Stores a tombstone with a hash.  A session, which does not know its version, leaves
 * its own out.
 */
void
tombstone_write_hash(Relation rel, pg_uuid_t hash, const RowVersion *version)
{
	if (version != NULL && version->own && !conflict_session.applying)
		version = NULL;
	write_row(settings_tables()->tombstone, rel, hash, version, InvalidTransactionId);
}

/*
 * Remembers that the row with a key is deleted: NULL stands for the version of what is
 * being applied.  One that is older than everything needs nothing.
 */
void
tombstone_write(Target *target, TupleTableSlot *key, const RowVersion *version)
{
	if (version == NULL)
		version = &conflict_session.version;
	if (version->known)
		tombstone_write_hash(target->rel,
							 tuple_key_hash(target->rel, target->key_index, key), version);
}

/*
 * Stores the times of up to "limit" tombstones that sessions have left.  Returns
 * whether there may be more.
 */
bool
tombstone_add_times(int limit)
{
	const ConflictTables *tables = settings_tables();
	Relation	rel;
	Snapshot	snapshot;
	SysScanDesc scan;
	HeapTuple	tuple;
	int			count = 0;

	if (!ConditionalLockRelationOid(tables->tombstone, ShareUpdateExclusiveLock))
		return false;
	rel = table_open(tables->tombstone, NoLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = systable_beginscan(rel, tables->tombstone_open_index, true, snapshot, 0, NULL);
	while (count < limit && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		RowVersion	version = read_version(rel, tuple);
		Datum		values[XID_COLUMN];
		bool		nulls[XID_COLUMN];

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		nulls[TIME_COLUMN - 1] = nulls[NODE_COLUMN - 1] = false;
		values[TIME_COLUMN - 1] = TimestampTzGetDatum(version.time);
		values[NODE_COLUMN - 1] = Int32GetDatum(version.node);

		/*
		 * The server has forgotten the time of one that is not known: it is
		 * of no use.
		 */
		if (version.known)
			store_row(tables->tombstone, values, nulls);
		store_remove(rel, tuple, snapshot);
		count++;
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
	return count == limit;
}

/*
 * Finds the version that a row had before a counter was merged into it by
 * transaction xid.  Returns false if xid is what has written all of it.
 */
bool
merged_row_find(Relation target, Oid key_index, TupleTableSlot *row, TransactionId xid,
				RowVersion *version)
{
	const ConflictTables *tables = settings_tables();
	Relation	rel = table_open(tables->merged_row, AccessShareLock);
	pg_uuid_t	hash = tuple_key_hash(target, key_index, row);
	SysScanDesc scan = begin_scan(rel, tables->merged_row_key, RelationGetRelid(target),
								  &hash, xid, SnapshotSelf);
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

static TupleTableSlot *
slot_of(Relation rel, HeapTuple tuple)
{
	TupleTableSlot *row = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);

	return ExecStoreHeapTuple(tuple, row, false);
}

/* A session has deleted a row, or updated it ("new" is not NULL). */
static void
record(Relation rel, Oid index, TupleTableSlot *old, TupleTableSlot *new)
{
	pg_uuid_t	hash = tuple_key_hash(rel, index, old);
	pg_uuid_t	new_hash = {0};

	if (new)
		new_hash = tuple_key_hash(rel, index, new);
	if (new == NULL || memcmp(&hash, &new_hash, sizeof(hash)) != 0)
	{
		tombstone_write_hash(rel, hash, NULL);
		deleted_counter_keep(rel, index, settings_delta_columns(rel), old);
	}
	claim_release_tuple(rel, index, old, new);
}

/*
 * weft.record_delete()
 *
 * A row trigger: remembers the old row's key and unique values, as far as they are
 * gone.  Fails if it is called otherwise.  A table without a key needs nothing.
 */
Datum
weft_record_delete(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Relation	rel;
	Oid			index;
	TupleTableSlot *old;
	TupleTableSlot *new = NULL;

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
	old = slot_of(rel, data->tg_trigtuple);
	if (TRIGGER_FIRED_BY_UPDATE(data->tg_event))
		new = slot_of(rel, data->tg_newtuple);
	record(rel, index, old, new);
	ExecDropSingleTupleTableSlot(old);
	if (new)
		ExecDropSingleTupleTableSlot(new);
	conflict_clean_sometimes();
	return PointerGetDatum(NULL);
}
