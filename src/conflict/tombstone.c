/*
 * tombstone.c
 *	  Remembering what was deleted.
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
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "conflict/row_key.h"
#include "conflict/session.h"
#include "conflict/settings.h"
#include "conflict/store.h"
#include "conflict/tombstone.h"
#include "conflict/version.h"
#include "conflict/version_record.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

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
		scan = version_record_scan(rel, index, relid, hash, InvalidTransactionId, &dirty);
		while (!TransactionIdIsValid(xid) && HeapTupleIsValid(tuple = systable_getnext(scan)))
		{
			RowVersion	version;

			if (!TransactionIdIsValid(dirty.xmin))
				continue;
			version = version_record_read(rel, tuple);
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
	scan = version_record_scan(rel, tables->tombstone_key, relid, hash, InvalidTransactionId, snapshot);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		RowVersion	this = version_record_read(rel, tuple);

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
	pg_uuid_t	hash = row_key_hash(target->rel, target->key_index, key);

	return tombstone_find_hash(target->rel, &hash, false, version);
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
	version_record_write(settings_tables()->tombstone, rel, hash, version, InvalidTransactionId);
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
							 row_key_hash(target->rel, target->key_index, key), version);
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
		RowVersion	version = version_record_read(rel, tuple);

		/*
		 * The server has forgotten the time of one that is not known: it is
		 * of no use.
		 */
		if (version.known)
			version_record_complete(rel, tuple, &version);
		store_remove(rel, tuple, snapshot);
		count++;
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
	return count == limit;
}
