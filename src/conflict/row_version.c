/*
 * row_version.c
 *	  Versions of rows in tables.
 *
 * merged_row is the other case in which the transaction that has written
 * something is not what its version is: the row has lost against the local one,
 * except for its counters, which were added.  That writes the local row again,
 * by a transaction that is older than what it has in its other columns.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/xact.h"
#include "conflict/row_key.h"
#include "conflict/row_version.h"
#include "conflict/settings.h"
#include "conflict/version.h"
#include "conflict/version_record.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/*
 * Finds the version that a row had before a counter was merged into it by
 * transaction xid.  Returns false if xid is what has written all of it.
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

/* Remembers the version of a row into which the current transaction merges. */
void
row_version_keep(Target *target, TupleTableSlot *row, const RowVersion *version)
{
	version_record_write(settings_tables()->merged_row, target->rel,
			  row_key_hash(target->rel, target->key_index, row), version,
			  GetCurrentTransactionId());
}

/* Returns the version of a row of a table. */
RowVersion
row_version_of(Relation rel, Oid key_index, TupleTableSlot *row)
{
	TransactionId xmin = version_xmin(row);
	RowVersion	result = version_of_xid(xmin);

	/* A counter was merged into it, which does not make it newer. */
	if (conflict_has_delta_columns(RelationGetRelid(rel)))
		(void) find_merged(rel, key_index, row, xmin, &result);
	return result;
}

RowVersion
row_version_in(Target *target, TupleTableSlot *row)
{
	return row_version_of(target->rel, target->key_index, row);
}
