/*
 * put_row.c
 *	  Stores a row that the publisher has, against the rows that are in its way.
 *
 * In the way of a row R are the local row with R's key, unless R is known to replace
 * it, the rows with other keys that hold one of R's unique values, and the rows that
 * have held one of these values and are newer than all of those (claim.c).  All of
 * them are one conflict with one decision.
 */
#include "postgres.h"

#include "compat.h"
#include "conflict/claim.h"
#include "conflict/decision.h"
#include "conflict/deleted_counter.h"
#include "conflict/foreign_key.h"
#include "conflict/history.h"
#include "conflict/local_row.h"
#include "conflict/put_row.h"
#include "conflict/remote_transaction.h"
#include "conflict/row_version.h"
#include "conflict/settings.h"
#include "conflict/tombstone.h"
#include "conflict/unique_conflict.h"
#include "conflict/version.h"

/* The rows that are in the way of a row to be stored. */
typedef struct Obstacles
{
	TupleTableSlot *local;		/* the row that it would replace, or NULL */
	LocalRow	same_key;		/* that row, if it was not expected */
	LocalRow	claimed;		/* the newest claim to one of its values */
	List	   *rows;			/* LocalRow: all that is in its way; first
								 * same_key, last claimed */
} Obstacles;

static bool
latest_wins(ConflictKind kind)
{
	return settings_resolver(kind) == RESOLVER_LAST_UPDATE_WINS;
}

/*
 * The row with the key of "row" is missing here.  Is the remote row newer than the
 * delete, if there was one?
 */
static bool
newer_than_delete(Target *target, TupleTableSlot *row)
{
	LocalRow	deleted = {0};
	ConflictResolver resolver;
	bool		applied;

	do
	{
		if (!tombstone_find(target, row, &deleted.version) ||
			!version_differs(&deleted.version) ||
			version_wins(&remote_transaction.version, &deleted.version))
			return true;
	} while (decision_wait_turn());
	applied = decision_make(target, KIND_UPDATE_MISSING, row, &deleted.version, &resolver);
	history_record(target, KIND_UPDATE_MISSING, resolver, applied, row, &deleted, row);
	return applied;
}

/*
 * A row has lost to a newer one that holds, or has held, the same unique value.  Its
 * publisher will lose it, too, and so will this node lose "local", the row that it was
 * to replace.
 */
static void
lose_row(Target *target, TupleTableSlot *row, TupleTableSlot *local)
{
	if (local)
		local_row_remove(target, local, NULL);
	else
		local_row_remove_missing(target, row);
	deleted_counter_keep(target->rel, target->key_index, target->deltas, row);
}

/*
 * A row is not stored, because a newer one has its key or one of its unique values.
 * Older rows that hold its other values are removed all the same, as they are on a node
 * where the row was stored for a while.  "local" is the row with its key, or NULL.
 */
void
put_row_lose_values(Target *target, TupleTableSlot *row, TupleTableSlot *local, ConflictKind kind)
{
	List	   *losers = NIL;

	if (!latest_wins(kind))
		return;
	claim_write(target, row, local);
	foreach_ptr(LocalRow, conflict, unique_conflicts(target, row, local))
	{
		if (!version_wins(&remote_transaction.version, &conflict->version))
			continue;
		(void) decision_wait_turn();
		remote_transaction.met[kind]++;
		history_record(target, kind, RESOLVER_LAST_UPDATE_WINS, true, row, conflict, row);
		losers = lappend(losers, conflict);
	}
	compat_injection_point("weft-conflict-lost");
	local_row_remove_all(target, losers, local);
}

/*
 * Finds what is in the way of a row.  "expected" says that it is known to replace
 * found->local.
 */
static void
find_obstacles(Target *target, TupleTableSlot *row, bool expected, ConflictKind kind,
			   Obstacles *found)
{
	RowVersion	newest;

	found->rows = unique_conflicts(target, row, found->local);
	if (found->local && !expected)
	{
		found->same_key.slot = found->local;
		found->same_key.index = target->key_index;
		found->same_key.version = row_version_in(target, found->local);
		found->rows = lcons(&found->same_key, found->rows);
	}
	if (!latest_wins(kind))
		return;
	newest = version_newest(found->rows);
	if (claim_find(target, row, found->local, false, &found->claimed) &&
		(!newest.known || newest.own || version_newer(&found->claimed.version, &newest)))
		found->rows = lappend(found->rows, &found->claimed);
}

/* Decides whether a row is stored, and records that for each row that is in its way. */
static bool
decide(Target *target, TupleTableSlot *row, List *obstacles, ConflictKind kind)
{
	RowVersion	newest = version_newest(obstacles);
	ConflictResolver resolver;
	bool		applied = decision_make(target, kind, row, &newest, &resolver);

	foreach_ptr(LocalRow, obstacle, obstacles)
		history_record(target, kind, resolver, applied, row, obstacle, row);
	return applied;
}

/* Stores a row, and removes what is in its way. */
static void
store(Target *target, TupleTableSlot *row, const Obstacles *found, bool check_claims)
{
	compat_injection_point("weft-conflict-store");
	foreign_key_check(target, row, found->local);
	local_row_remove_all(target, found->rows, found->local);
	if (found->local)
	{
		claim_release(target, found->local, row);
		local_row_update(target, found->local, row);
	}
	else
	{
		deleted_counter_forget(target, row);
		local_row_insert(target, row);
		if (latest_wins(KIND_UPDATE_MISSING))
			tombstone_check_stored(target, row);
	}
	if (check_claims)
		claim_check_stored(target, row, found->local);
}

/*
 * Stores a row that the publisher has.  "own" is the locked row that it replaces, or
 * NULL if no row with its key is expected; "was_missing" says that it was already decided
 * that a row with this key is to exist.  What is in the row's way is a conflict of the
 * given kind.
 */
void
put_row(Target *target, TupleTableSlot *row, TupleTableSlot *own, bool was_missing,
		ConflictKind kind)
{
	Obstacles	found;
	bool		applied = true;

	do
	{
		memset(&found, 0, sizeof(found));
		found.local = own ? own : local_row_find(target, row);
		if (found.local == NULL && !was_missing && !newer_than_delete(target, row))
		{
			put_row_lose_values(target, row, NULL, kind);
			return;
		}
		find_obstacles(target, row, own != NULL, kind, &found);
	} while (found.rows != NIL && decision_wait_turn());

	if (list_length(found.rows) > 1)
		kind = KIND_MULTIPLE_UNIQUE_CONFLICTS;
	if (found.rows != NIL)
		applied = decide(target, row, found.rows, kind);

	if (applied)
		store(target, row, &found, latest_wins(kind));
	else if (latest_wins(kind))
	{
		if (found.same_key.slot == NULL ||
			version_wins(&remote_transaction.version, &found.same_key.version))
		{
			lose_row(target, row, found.local);
			found.local = NULL;
		}
		put_row_lose_values(target, row, found.local, kind);
	}
}
