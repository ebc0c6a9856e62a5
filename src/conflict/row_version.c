/*
 * row_version.c
 *	  The versions of rows that are stored here.
 *
 * A row has the version of the transaction that wrote it, with one exception.  If an
 * UPDATE loses to the local row, the differences that it makes to counters are added all
 * the same (delta.c).  That writes the local row again, in a transaction that is older
 * than what the row holds in its other columns.  weft.merged_row then tells the version
 * that the row had before.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "compat.h"
#include "conflict/row_key.h"
#include "conflict/row_version.h"
#include "conflict/settings.h"
#include "conflict/version.h"
#include "conflict/version_record.h"
#include "group_times.h"
#include "row_time.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/*
 * Finds the version that a row had before transaction xid merged a counter into it.
 * Returns false if xid wrote the whole row.
 */
static bool
find_merged(Relation target, Oid key_index, TupleTableSlot *row, TransactionId xid,
			RowVersion *version)
{
	const ConflictTables *tables = settings_tables();
	Relation	rel = table_open(tables->merged_row, AccessShareLock);
	pg_uuid_t	hash = row_key_hash(target, key_index, row);
	SysScanDesc scan = version_record_scan(rel, tables->merged_row_key, RelationGetRelid(target),
										   &hash, xid, SnapshotSelf);
	HeapTuple	tuple;
	bool		found = false;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		*version = version_record_read(rel, tuple);
		found = true;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/* Remembers the version of a row into which the current transaction merges a counter. */
void
row_version_keep(Target *target, TupleTableSlot *row, const RowVersion *version)
{
	version_record_write(settings_tables()->merged_row, target->rel,
						 row_key_hash(target->rel, target->key_index, row), version,
						 GetCurrentTransactionId());
}

/*
 * Returns the version of a row.  Transactions that share a commit are told apart: an earlier
 * one of the group at hand counts as any other of its node (group_times.c).
 */
RowVersion
row_version_of(Relation rel, Oid key_index, TupleTableSlot *row)
{
	TransactionId xmin = version_xmin(row);
	RowVersion	result = version_of_xid(xmin);

	if (result.own && group_times_find(rel, row, &result.time))
		result.own = false;
	else if (result.known && !result.own && result.origin != InvalidRepOriginId)
		(void) row_time_find(rel, row, xmin, SnapshotSelf, &result.time);

	/* Merging a counter into a row does not make it newer. */
	if (conflict_has_delta_columns(RelationGetRelid(rel)))
		(void) find_merged(rel, key_index, row, xmin, &result);
	return result;
}

RowVersion
row_version_in(Target *target, TupleTableSlot *row)
{
	return row_version_of(target->rel, target->key_index, row);
}
