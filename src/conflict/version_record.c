/*
 * version_record.c
 *	  Versions that are stored by key: the rows of weft.tombstone and weft.merged_row.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "conflict/version.h"
#include "conflict/version_record.h"
#include "store.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

/* Columns of weft.tombstone and weft.merged_row. */
#define RELATION_COLUMN 1
#define KEY_COLUMN 2
#define TIME_COLUMN 3
#define NODE_COLUMN 4
#define RECORDED_COLUMN 5
#define XID_COLUMN 6

/*
 * Begins a scan of one of the tables for the hash of a key, and for the transaction that
 * wrote the row unless that is invalid.
 */
SysScanDesc
version_record_scan(Relation rel, Oid index, Oid relid, pg_uuid_t *hash, TransactionId xid,
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

RowVersion
version_record_read(Relation rel, HeapTuple tuple)
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

void
version_record_write(Oid table, Relation rel, pg_uuid_t hash, const RowVersion *version, TransactionId xid)
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

/* Stores a copy of a row, with the version that it lacks. */
void
version_record_complete(Relation rel, HeapTuple tuple, const RowVersion *version)
{
	Datum		values[XID_COLUMN];
	bool		nulls[XID_COLUMN];

	heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
	nulls[TIME_COLUMN - 1] = nulls[NODE_COLUMN - 1] = false;
	values[TIME_COLUMN - 1] = TimestampTzGetDatum(version->time);
	values[NODE_COLUMN - 1] = Int32GetDatum(version->node);
	store_row(RelationGetRelid(rel), values, nulls);
}
