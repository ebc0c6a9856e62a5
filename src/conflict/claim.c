/*
 * claim.c
 *	  Unique values that rows hold or have held.
 *
 * Nodes N1 and N2 may give the same value of a unique index to different rows before
 * they know of each other's change.  Whether these changes meet as rows depends on the
 * order in which they arrive: the first row may have given the value up by the time the
 * second one arrives.  Therefore it does not count which row holds a value, but which row
 * has ever taken it.  An INSERT or UPDATE claims all unique values of the row that it
 * makes, with its own version, for good:
 *
 *	 - A row exists if the newest change of its key is an INSERT or UPDATE, and no row
 *	   with another key has a newer claim to one of its unique values.
 *
 * This depends on the set of changes that a member has received, and not on their order.
 * Therefore all members end with the same rows.  The price is that now and then a row is
 * lost that could have stayed: one whose value a newer row has held only for a moment.
 *
 * The rows in the table are themselves the newest claims to their values.  Other claims
 * are kept as tombstones, under a hash of the index's columns and the value:
 *
 *	 - when a row gives a value up, with the version that the row had (claim_release;
 *	   for sessions, claim_release_tuple);
 *	 - when a row arrives and has lost (claim_write).
 *
 * A change that is stored is newer than the last change of its key, and therefore newer
 * than all claims that rows with this key have left.  None of these can defeat it, so a
 * claim need not name the key that it belongs to.
 *
 * Waiting.  A writer W1 that stores a value looks for claims twice: before it stores the
 * row, to decide, and after it.  Once W1's entry is in the index, any process that stores
 * the same value waits for W1.  A transaction that held the value and gave it up before
 * that is committed, because the index made W1 wait for it.  A writer W2 whose row has
 * lost stores no row.  It writes its claim first, and then looks for rows with the value.
 * Therefore one of W1 and W2 finds the other, and waits for it.  If W1 finds a claim only
 * after it has stored its row, then that is not an error of the change: W1 applies its
 * transaction again (conflict_may_retry).
 */
#include "postgres.h"

#include "access/genam.h"
#include "catalog/index.h"
#include "conflict/claim.h"
#include "conflict/remote_transaction.h"
#include "conflict/row_version.h"
#include "conflict/tombstone.h"
#include "conflict/unique_index.h"
#include "conflict/version.h"
#include "executor/executor.h"
#include "utils/rel.h"

/*
 * Computes the hash of a row's value in the i-th index of the table.  Returns false if it
 * has none there, or if "other", which may be NULL, has the same.
 */
static bool
new_value(Target *target, int i, TupleTableSlot *row, TupleTableSlot *other, pg_uuid_t *hash)
{
	Relation	index = target->info->ri_IndexRelationDescs[i];
	IndexInfo  *info = target->info->ri_IndexRelationInfo[i];
	pg_uuid_t	other_hash;

	return unique_index_is_checked(index, target->key_index) &&
		unique_index_hash(target->rel, index, info, target->estate, row, hash) &&
		!(other != NULL &&
		  unique_index_hash(target->rel, index, info, target->estate, other, &other_hash) &&
		  memcmp(hash, &other_hash, sizeof(pg_uuid_t)) == 0);
}

/* A local row gives up its values, except those that "row", which may be NULL, takes over. */
void
claim_release(Target *target, TupleTableSlot *local, TupleTableSlot *row)
{
	RowVersion	version = {0};
	pg_uuid_t	hash;

	for (int i = 0; i < target->info->ri_NumIndices; i++)
	{
		if (!new_value(target, i, local, row, &hash))
			continue;
		if (!version.known)
			version = row_version_in(target, local);
		if (!version.known)
			return;
		tombstone_write_hash(target->rel, hash, &version);
	}
}

/*
 * A row that arrives claims its values, although it is not stored.  Those that the newer
 * row "local", which may be NULL, holds are claimed already.
 */
void
claim_write(Target *target, TupleTableSlot *row, TupleTableSlot *local)
{
	pg_uuid_t	hash;
	RowVersion	claim;

	for (int i = 0; i < target->info->ri_NumIndices; i++)
		if (new_value(target, i, row, local, &hash) &&
			(!tombstone_find_hash(target->rel, &hash, false, &claim) ||
			 version_newer(&remote_transaction.version, &claim)))
			tombstone_write_hash(target->rel, hash, &remote_transaction.version);
}

/*
 * Finds the newest claim to one of a row's values, except to those that "local", which
 * may be NULL, holds.  Returns false if there is none that is newer than the change that
 * is being applied.
 */
bool
claim_find(Target *target, TupleTableSlot *row, TupleTableSlot *local, bool uncommitted,
		   LocalRow *result)
{
	pg_uuid_t	hash;
	RowVersion	claim;

	memset(result, 0, sizeof(LocalRow));
	for (int i = 0; i < target->info->ri_NumIndices; i++)
	{
		if (!new_value(target, i, row, local, &hash) ||
			!tombstone_find_hash(target->rel, &hash, uncommitted, &claim) ||
			version_wins(&remote_transaction.version, &claim))
			continue;
		if (!result->version.known || version_newer(&claim, &result->version))
		{
			result->version = claim;
			result->index = RelationGetRelid(target->info->ri_IndexRelationDescs[i]);
		}
	}
	return result->version.known;
}

/* Fails if another process has claimed a value of a row while that was being stored. */
void
claim_check_stored(Target *target, TupleTableSlot *row, TupleTableSlot *local)
{
	LocalRow	claimed;

	if (claim_find(target, row, local, true, &claimed))
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg_internal("a unique value was claimed meanwhile")));
}

/*
 * A session has deleted a row, or updated it if "new" is not NULL: the old row gives up
 * its values, except those that the new one keeps.
 */
void
claim_release_tuple(Relation rel, Oid key_index, TupleTableSlot *old, TupleTableSlot *new)
{
	EState	   *estate = CreateExecutorState();
	RowVersion	version = {0};
	ListCell   *cell;

	foreach(cell, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);
		pg_uuid_t	hash;
		pg_uuid_t	new_hash;

		if (unique_index_is_checked(index, key_index))
		{
			IndexInfo  *info = BuildIndexInfo(index);

			if (unique_index_hash(rel, index, info, estate, old, &hash) &&
				!(new != NULL && unique_index_hash(rel, index, info, estate, new, &new_hash) &&
				  memcmp(&hash, &new_hash, sizeof(hash)) == 0))
			{
				if (!version.known)
					version = row_version_of(rel, key_index, old);
				if (version.known)
					tombstone_write_hash(rel, hash, &version);
			}
		}
		index_close(index, AccessShareLock);
	}
	FreeExecutorState(estate);
}

/*
 * Is there a newer claim to a value of a row of this version?  "old", which may be NULL, is the
 * row that it replaces, whose values do not count.  Waits for transactions that are claiming one.
 */
bool
claim_is_newer(Relation rel, Oid key_index, TupleTableSlot *row, TupleTableSlot *old,
			   const RowVersion *version)
{
	EState	   *estate = CreateExecutorState();
	bool		result = false;
	ListCell   *cell;

	foreach(cell, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);
		IndexInfo  *info = BuildIndexInfo(index);
		pg_uuid_t	hash;
		pg_uuid_t	old_hash;
		RowVersion	claim;

		if (unique_index_is_checked(index, key_index) &&
			unique_index_hash(rel, index, info, estate, row, &hash) &&
			!(old != NULL && unique_index_hash(rel, index, info, estate, old, &old_hash) &&
			  memcmp(&hash, &old_hash, sizeof(hash)) == 0) &&
			tombstone_find_hash(rel, &hash, true, &claim) && version_newer(&claim, version))
			result = true;
		index_close(index, AccessShareLock);
	}
	FreeExecutorState(estate);
	return result;
}
