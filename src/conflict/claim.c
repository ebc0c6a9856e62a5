/*
 * claim.c
 *	  Unique values that rows have had.
 *
 * Two members give a value of a unique index to different rows before they know of
 * each other's change.  Whether the changes meet as rows depends on the order in which
 * they arrive: the first may have given the value up again by then.  So what decides
 * is not which row has a value, but which has ever taken it.  An INSERT or UPDATE
 * claims all unique values of the row that it makes, with its own version, for good:
 *
 *	 - A row is there if what was done last to its key is an INSERT or UPDATE, and no
 *	   row with another key has a newer claim to one of its unique values.
 *
 * That depends on the changes that a member has got, and not on their order, so all
 * members end with the same rows.  It costs a row now and then that could have stayed:
 * one whose value a newer row has had for a moment only.
 *
 * The rows in the table hold their values' newest claims themselves.  Other claims are
 * kept as tombstones, under a hash of the index's columns and the value:
 *
 *	 - of a row that gives a value up, with the version that it had (claim_release,
 *	   for sessions claim_release_tuple);
 *	 - of a row that arrives and has lost (claim_write).
 *
 * A row that claims its value later than the claim's owner's key was changed last is
 * newer than all claims of its own key, so the key need not be kept.
 *
 * Waiting.  A writer that stores a value looks for claims before, to decide, and after
 * it.  Once its entry is in the index, whoever stores the same value waits for it;
 * whoever had the value before and gave it up is committed, since the index had
 * the writer wait for that.  One who has lost stores nothing: it writes its claim
 * first, and then looks for rows with the value.  So of the two one finds the other, and
 * waits.  A claim that was found after the row was stored is no error of the change,
 * which is applied again (conflict_may_retry).
 */
#include "postgres.h"
#include "postgres.h"

#include "access/genam.h"
#include "catalog/index.h"
#include "conflict/claim.h"
#include "conflict/session.h"
#include "conflict/tombstone.h"
#include "conflict/row_version.h"
#include "conflict/unique_index.h"
#include "conflict/version.h"
#include "executor/executor.h"
#include "utils/rel.h"

/*
 * Finds the value of a row in the i-th index of the table, unless another row, which
 * may be NULL, has the same.  Returns false if there is none.
 */
static bool
new_value(Target *target, int i, TupleTableSlot *row, TupleTableSlot *other, pg_uuid_t *hash)
{
	Relation	index = target->info->ri_IndexRelationDescs[i];
	IndexInfo  *info = target->info->ri_IndexRelationInfo[i];
	pg_uuid_t	other_hash;

	return unique_index_counts(index, target->key_index) &&
		unique_index_hash(target->rel, index, info, target->estate, row, hash) &&
		!(other != NULL &&
		  unique_index_hash(target->rel, index, info, target->estate, other, &other_hash) &&
		  memcmp(hash, &other_hash, sizeof(pg_uuid_t)) == 0);
}

/* A local row gives up its values that the row which replaces it, if any, has not. */
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
 * A row that arrives claims its values, though it is not to be stored; those that the
 * newer row "local", which may be NULL, has are claimed already.
 */
void
claim_write(Target *target, TupleTableSlot *row, TupleTableSlot *local)
{
	pg_uuid_t	hash;
	RowVersion	claim;

	for (int i = 0; i < target->info->ri_NumIndices; i++)
		if (new_value(target, i, row, local, &hash) &&
			(!tombstone_find_hash(target->rel, &hash, false, &claim) ||
			 version_newer(&conflict_session.version, &claim)))
			tombstone_write_hash(target->rel, hash, &conflict_session.version);
}

/*
 * Finds the newest claim that is newer than what is being applied to a value of a row,
 * except to those that "local", which may be NULL, has.  Returns false if there is
 * none.
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
			version_wins(&conflict_session.version, &claim))
			continue;
		if (!result->version.known || version_newer(&claim, &result->version))
		{
			result->version = claim;
			result->index = RelationGetRelid(target->info->ri_IndexRelationDescs[i]);
		}
	}
	return result->version.known;
}

/* Fails if somebody has claimed a value of the row that was stored meanwhile. */
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
 * A session has deleted a row, or updated it: its values that the new row, if there is
 * one, has not are given up.
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

		if (unique_index_counts(index, key_index))
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
