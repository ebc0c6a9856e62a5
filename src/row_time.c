/*
 * row_time.c
 *	  When a stored row was changed, if its transaction shared a commit with others.
 *
 * Transactions T1 to Tn of the publisher form a group: they share one local commit
 * (apply/commit_group.c), and so their rows have one xmin, whose commit timestamp is Tn's
 * commit time, the group's time.  Which of two changes of a row is the newer one depends
 * on its own time (conflict/version.c).  Therefore the writer stores, in the same local
 * transaction, the own time of each row that was last changed by another transaction than
 * Tn, unless the times are equal: a hash of its table and key, and the difference to the
 * group's time.  A row that is not listed has the group's time.  The replication origin is
 * the same for all.
 *
 * weft.row_time has one or more rows for a group: its local transaction's ID, with the
 * epoch, and a list of entries.  These are ordinary rows.  Whoever sees a row of the group
 * as committed finds them, since both become visible at once; a rollback removes both;
 * they reach a standby, and survive a crash, together.  A writer that looks at a row that
 * its own, uncommitted group has changed asks the list in memory (group_times.c).
 *
 * The hash is made of the stored row's own bytes, not of what the publisher sent, and with a
 * random seed for each group.  So it does not depend on settings or hash functions that may
 * change, and nobody can choose keys that collide.  Two rows of a group that collide by
 * chance (once in about 10^13 groups of a thousand rows) both get the later one's time.  Not the
 * place of the row in the table, since VACUUM FULL keeps xmin but not places; not the
 * command ID in the row either, which an update that is rolled back overwrites, and which
 * standbys and recovery do not have.
 *
 * When there is nothing to be found, a row has the time of its xmin, as far as the server knows it:
 *	 - the row is frozen, or its xmin older than what the server keeps: unknown, as ever;
 *	 - after pg_upgrade, which loses commit timestamps: the same, if they were not restored (known_origin.c);
 *	 - a local session has changed it: its xmin is that of the session's transaction;
 *	 - a session's update of it was rolled back: its xmin is still the group's, and so is its key;
 *	 - the row of weft.row_time has expired: the group's time.  No conflict can need the
 *	   exact one any more (conflict/time_expiry.c has the bound);
 *	 - a trigger has changed the row (fast/fast_table.c): that was the group's last transaction;
 *	 - the replica identity was altered: the group's time, until the row is changed
 *	   again.  A tombstone is not found by another key, either.
 *
 * A node that joins reads the times from here (group/recent_rows.c).  Local users do with
 * weft.row_commit_timestamp().
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "common/hashfn.h"
#include "replication/logicalrelation.h"
#include "row_time.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "varatt.h"

/*
 * The table weft.row_time, once it has been found, until its relation cache entry is
 * invalidated.  Globals, because the callback cannot be given anything else.
 */
static Oid	known_table = InvalidOid;
static uint64 invalidations;

static void
relation_changed(Datum arg, Oid relid)
{
	invalidations++;
	if (relid == InvalidOid || relid == known_table)
		known_table = InvalidOid;
}

/* Returns the table weft.row_time, or InvalidOid if this database does not have it. */
Oid
row_time_table(void)
{
	static bool registered = false;
	uint64		before;
	Oid			schema;
	Oid			relid;
	Oid			extension;

	if (!registered)
		CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	registered = true;
	if (OidIsValid(known_table))
		return known_table;

	before = invalidations;
	schema = get_namespace_oid("weft", true);
	relid = OidIsValid(schema) ? get_relname_relid("row_time", schema) : InvalidOid;
	extension = OidIsValid(relid) ? get_extension_oid("weft", true) : InvalidOid;

	/*
	 * A table of the same name that is not the extension's could have any
	 * columns.
	 */
	if (!OidIsValid(extension) || getExtensionOfObject(RelationRelationId, relid) != extension)
		return InvalidOid;
	if (before == invalidations)
		known_table = relid;
	return relid;
}

/* Returns a transaction's ID with its epoch.  It is not in the future. */
int64
row_time_xid(TransactionId xid)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint32		epoch = EpochFromFullTransactionId(next);

	if (xid > XidFromFullTransactionId(next))
		epoch--;
	return (int64) U64FromFullTransactionId(FullTransactionIdFromEpochAndXid(epoch, xid));
}

/* Finds the columns of a table's key. */
void
row_time_key(Relation rel, RowTimeKey *key)
{
	Oid			index = GetRelationIdentityOrPK(rel);
	Relation	index_rel;

	key->relid = RelationGetRelid(rel);
	key->count = 0;
	if (!OidIsValid(index))
		return;
	index_rel = index_open(index, AccessShareLock);
	key->count = IndexRelationGetNumberOfKeyAttributes(index_rel);
	for (int i = 0; i < key->count; i++)
		key->columns[i] = index_rel->rd_index->indkey.values[i] - 1;
	index_close(index_rel, AccessShareLock);
}

/* Hashes the bytes of a value as a table stores it. */
static uint64
hash_value(Form_pg_attribute attribute, Datum value, uint64 seed)
{
	uint64		result;

	if (attribute->attbyval)
	{
		/* The upper bits are not the same wherever a datum comes from. */
		uint64		bits = (uint64) value;

		if (attribute->attlen < (int) sizeof(Datum))
			bits &= (UINT64CONST(1) << (attribute->attlen * BITS_PER_BYTE)) - 1;
		return murmurhash64(bits + seed * UINT64CONST(0x9e3779b97f4a7c15));
	}
	if (attribute->attlen == -1)
	{
		struct varlena *plain = pg_detoast_datum_packed((struct varlena *) DatumGetPointer(value));

		result = hash_bytes_extended((unsigned char *) VARDATA_ANY(plain),
									 VARSIZE_ANY_EXHDR(plain), seed);
		if ((Pointer) plain != DatumGetPointer(value))
			pfree(plain);
		return result;
	}
	return hash_bytes_extended((unsigned char *) DatumGetPointer(value),
							   attribute->attlen == -2 ? (int) strlen(DatumGetCString(value)) :
							   attribute->attlen, seed);
}

/* Hashes a row's table and key. */
uint64
row_time_hash(const RowTimeKey *key, TupleTableSlot *row, uint64 seed)
{
	uint64		result = murmurhash64(seed ^ key->relid);

	for (int i = 0; i < key->count; i++)
	{
		bool		isnull;
		Datum		value = slot_getattr(row, key->columns[i] + 1, &isnull);

		if (!isnull)
			result = hash_value(TupleDescAttr(row->tts_tupleDescriptor, key->columns[i]),
								value, result);
	}
	return result;
}

/* Looks for a row in one part of a group's list. */
static bool
find_in_part(Relation table, HeapTuple part, const RowTimeKey *key, TupleTableSlot *row,
			 TimestampTz *time)
{
	Datum		values[ROW_TIME_COLUMNS];
	bool		nulls[ROW_TIME_COLUMNS];
	bytea	   *list;
	uint64		hash;
	RowTimeEntry wanted;
	const char *next;
	const char *end;

	heap_deform_tuple(part, RelationGetDescr(table), values, nulls);
	hash = row_time_hash(key, row, (uint64) DatumGetInt64(values[ROW_TIME_SEED - 1]));
	memcpy(wanted.hash, &hash, sizeof(hash));
	list = DatumGetByteaPP(values[ROW_TIME_ENTRIES - 1]);
	end = VARDATA_ANY(list) + VARSIZE_ANY_EXHDR(list);
	for (next = VARDATA_ANY(list); next + sizeof(RowTimeEntry) <= end; next += sizeof(RowTimeEntry))
	{
		if (memcmp(next, wanted.hash, sizeof(hash)) != 0)
			continue;
		memcpy(&wanted, next, sizeof(wanted));
		*time = DatumGetTimestampTz(values[ROW_TIME_COMMITTED - 1]) + wanted.offset;
		return true;
	}
	return false;
}

/*
 * Finds out when a row was changed whose committed xmin is "xid", if that is not the commit
 * timestamp of xid.  Returns false if it is.  The snapshot is the one that has seen the row.  A
 * newer one may miss what time_expiry.c has removed since, because of changes that the older
 * one, from which a joining node goes on, has not seen.
 */
bool
row_time_find(Relation rel, TupleTableSlot *row, TransactionId xid, Snapshot snapshot,
			  TimestampTz *time)
{
	Oid			relid = row_time_table();
	RowTimeKey	key;
	Relation	table;
	ScanKeyData search;
	SysScanDesc scan;
	HeapTuple	part;
	bool		found = false;

	if (!OidIsValid(relid))
		return false;
	row_time_key(rel, &key);
	if (key.count == 0)
		return false;
	table = table_open(relid, AccessShareLock);
	ScanKeyInit(&search, ROW_TIME_XID, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(row_time_xid(xid)));
	scan = systable_beginscan(table, GetRelationIdentityOrPK(table), true, snapshot, 1, &search);
	while (!found && HeapTupleIsValid(part = systable_getnext(scan)))
		found = find_in_part(table, part, &key, row, time);
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	return found;
}

/*
 * Fetches the row at a place, which may be any, as the active snapshot sees it.  A partitioned
 * table, a view or a foreign table has no places.
 */
bool
row_time_fetch(Relation rel, ItemPointer place, TupleTableSlot *row)
{
	TableScanDesc scan;
	bool		result;

	if (!RELKIND_HAS_TABLE_AM(rel->rd_rel->relkind))
		return false;
	scan = table_beginscan_tid(rel, GetActiveSnapshot());
	result = table_tuple_tid_valid(scan, place) &&
		table_tuple_fetch_row_version(rel, place, GetActiveSnapshot(), row);
	table_endscan(scan);
	return result;
}

/*
 * The same as row_time_find(), for the row at a place in a table, if that is still the one that
 * transaction "xid" has written.
 */
bool
row_time_find_at(Oid relid, ItemPointer place, TransactionId xid, TimestampTz *time)
{
	Relation	rel = try_table_open(relid, AccessShareLock);
	TupleTableSlot *row;
	bool		isnull;
	bool		result;

	if (rel == NULL)
		return false;
	row = table_slot_create(rel, NULL);
	result = row_time_fetch(rel, place, row) &&
		DatumGetTransactionId(slot_getsysattr(row, MinTransactionIdAttributeNumber, &isnull)) == xid &&
		row_time_find(rel, row, xid, GetActiveSnapshot(), time);
	ExecDropSingleTupleTableSlot(row);
	table_close(rel, AccessShareLock);
	return result;
}
