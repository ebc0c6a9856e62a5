/*
 * tombstone.c
 *	  Remembers which rows were deleted, and when.
 *
 * A change may find its row missing for two reasons: the row has not arrived yet, or it
 * was deleted.  Which of the two it is, and whether the change is older than the delete,
 * decides whether the row is stored.  Therefore every delete leaves a tombstone with its
 * version: time and node.
 *
 * A writer W leaves a tombstone when it deletes a row.  For a session S, a trigger does
 * so (delete_trigger.c), which does not fire in writers.  S does not know its commit time
 * before it commits.  Therefore S's tombstones are stored without a time, and have that
 * of the transaction that wrote them.  The next writer that removes old rows (cleanup.c)
 * adds the time, because the server forgets commit times.
 *
 * Neither W nor S waits for the other here; the newest tombstone of a key counts.  A
 * tombstone that is older than a row that exists again does no harm.
 *
 * Two writers of different subscriptions may miss each other: W1 looks for tombstones of a key
 * and finds none, while W2, whose delete has not found the row, is going to leave one.
 * Therefore both look again after they have written: W1 stores the row, and then looks for
 * tombstones, those of open transactions included (tombstone_check_stored); W2 stores its
 * tombstone, and then looks for the row (local_row_remove_missing).  So one of them finds the
 * other, waits for it, and applies its transaction again (conflict_may_retry).  If each waits
 * for the other, the server's deadlock detection cancels one, which applies its transaction again.
 *
 * Tombstones are found by a 128-bit hash of the key, so they contain nothing of the row.
 * They are removed after weft.tombstone_retention.  A change that is older than that
 * when it arrives finds no tombstone, and brings its row back.
 *
 * A row that has lost to another row with the same unique value leaves a tombstone with
 * its own version: the row is missing, but any newer change of it is decided again.  The
 * table also holds the values that rows have had in unique indexes (claim.c).
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "conflict/remote_transaction.h"
#include "conflict/row_key.h"
#include "conflict/settings.h"
#include "conflict/tombstone.h"
#include "conflict/version.h"
#include "conflict/version_record.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "store.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/*
 * Waits for uncommitted transactions that have written a tombstone which may be newer
 * than the change that is being applied.
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
			if (!version.known || !version_wins(&remote_transaction.version, &version))
				xid = dirty.xmin;
		}
		systable_endscan(scan);
		if (TransactionIdIsValid(xid))
			XactLockTableWait(xid, NULL, NULL, XLTW_None);
	} while (TransactionIdIsValid(xid));
}

/*
 * Finds the newest tombstone with a hash.  With "uncommitted", first waits for
 * transactions that are writing one.  Returns false if there is none.
 *
 * If a caller has found a row missing, then the transaction that deleted it is
 * committed, and so is its tombstone.  If tombstone_add_times() replaces a tombstone by
 * one with a time, a snapshot sees exactly one of the two.
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

/* Finds out when the row with a key was last deleted.  Returns false if that is unknown. */
bool
tombstone_find(Target *target, TupleTableSlot *key, RowVersion *version)
{
	pg_uuid_t	hash = row_key_hash(target->rel, target->key_index, key);

	return tombstone_find_hash(target->rel, &hash, false, version);
}

/*
 * Fails if another process has left a tombstone that is newer than the change, while the row
 * was being stored.
 */
void
tombstone_check_stored(Target *target, TupleTableSlot *row)
{
	pg_uuid_t	hash = row_key_hash(target->rel, target->key_index, row);
	RowVersion	deleted;

	if (tombstone_find_hash(target->rel, &hash, true, &deleted) &&
		version_differs(&deleted) &&
		!version_wins(&remote_transaction.version, &deleted))
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg_internal("a row was deleted meanwhile")));
}

/*
 * Stores a tombstone with a hash.  A session does not know its own version; it stores
 * the tombstone without one.
 */
void
tombstone_write_hash(Relation rel, pg_uuid_t hash, const RowVersion *version)
{
	if (version != NULL && version->own && !remote_transaction.applying)
		version = NULL;
	version_record_write(settings_tables()->tombstone, rel, hash, version, InvalidTransactionId);
}

/*
 * Remembers that the row with a key was deleted.  A NULL version stands for that of the
 * change that is being applied.  A version that is older than everything needs no
 * tombstone.
 */
void
tombstone_write(Target *target, TupleTableSlot *key, const RowVersion *version)
{
	if (version == NULL)
		version = &remote_transaction.version;
	if (version->known)
		tombstone_write_hash(target->rel,
							 row_key_hash(target->rel, target->key_index, key), version);
}

/*
 * Adds the time to up to "limit" tombstones that sessions have left.  Returns whether
 * there may be more of them.
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
		 * If the server has forgotten the commit time, then the tombstone is
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
