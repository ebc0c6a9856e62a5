/*
 * plain_row.c
 *	  Rows that the fast path inserts and deletes where conflicts are detected.
 *
 * It does so in tables that have no counters, and no columns by which rows can be in conflict
 * with other rows (watched_columns.c).  Then an INSERT is no conflict if there is neither a row
 * nor a tombstone with its key.  As tombstone.c demands, writer W1 looks for tombstones twice:
 * before it gathers the row, and, including those of open transactions, after the row is in
 * the index.  If it finds one the first time, then the general path decides; the second time,
 * the attempt is given up.  Writer W2, whose delete does not find the row, has left its tombstone
 * before it looks again, and then waits for W1.
 *
 * A DELETE is no conflict if the row is there, and the same node has written it last.  It leaves
 * a tombstone, like any other.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "conflict/plain_row.h"
#include "conflict/remote_transaction.h"
#include "conflict/row_key.h"
#include "conflict/settings.h"
#include "conflict/tombstone.h"
#include "conflict/version_record.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

static bool
is_being_deleted(Relation target, pg_uuid_t *hash)
{
	const ConflictTables *tables = settings_tables();
	Relation	rel = table_open(tables->tombstone, AccessShareLock);
	SnapshotData dirty;
	SysScanDesc scan;
	bool		result;

	InitDirtySnapshot(dirty);
	scan = version_record_scan(rel, tables->tombstone_key, RelationGetRelid(target), hash,
							   InvalidTransactionId, &dirty);
	result = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/* Is there a tombstone for the key of a row?  "uncommitted" includes those of open transactions. */
bool
conflict_was_deleted(Relation rel, TupleTableSlot *row, bool uncommitted)
{
	pg_uuid_t	hash = row_key_hash(rel, GetRelationIdentityOrPK(rel), row);
	RowVersion	version;

	return (uncommitted && is_being_deleted(rel, &hash)) ||
		tombstone_find_hash(rel, &hash, false, &version);
}

/* The change that is being applied has deleted a row. */
void
conflict_remember_delete(Relation rel, TupleTableSlot *row)
{
	RowVersion *version = &remote_transaction.version;

	(void) settings_find_node(version->origin, &version->node);
	tombstone_write_hash(rel, row_key_hash(rel, GetRelationIdentityOrPK(rel), row), version);
}
