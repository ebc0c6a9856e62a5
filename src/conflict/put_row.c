/*
 * put_row.c
 *	  Storing a row that the publisher has, against what is in its way here.
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
#include "conflict/row_version.h"
#include "conflict/session.h"
#include "conflict/settings.h"
#include "conflict/tombstone.h"
#include "conflict/unique_conflict.h"
#include "conflict/version.h"

/*
 * Is a remote row that is missing here newer than its delete, if there was one?
 * "row" has its key.
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
			version_wins(&conflict_session.version, &deleted.version))
			return true;
	} while (decision_wait_turn());
	applied = decision_make(target, KIND_UPDATE_MISSING, row, &deleted.version, &resolver);
	history_record(target, KIND_UPDATE_MISSING, resolver, applied, row, &deleted, row);
	return applied;
}

/*
 * A row has lost against a newer one that has, or had, the same unique value.  So its
 * publisher will lose it, too, and "local", which it was to replace.
 */
static void
lose_row(Target *target, TupleTableSlot *row, TupleTableSlot *local)
{
	if (local)
		local_row_remove(target, local, NULL);
	else
		tombstone_write(target, row, NULL);
	deleted_counter_keep(target->rel, target->key_index, target->deltas, row);
}

/*
 * A row is not stored, because a newer one has its key or one of its unique values:
 * older rows lose the values that it has, as they do where it was stored for a while.
 * "local" is the row with its key, or NULL.
 */
void
put_row_lose_values(Target *target, TupleTableSlot *row, TupleTableSlot *local, ConflictKind kind)
{
	List	   *losers = NIL;
	ListCell   *cell;

	if (settings_resolver(kind) != RESOLVER_LAST_UPDATE_WINS)
		return;
	claim_write(target, row, local);
	foreach(cell, unique_conflicts(target, row, local))
	{
		LocalRow   *conflict = lfirst(cell);

		if (!version_wins(&conflict_session.version, &conflict->version))
			continue;
		(void) decision_wait_turn();
		conflict_session.met[kind]++;
		history_record(target, kind, RESOLVER_LAST_UPDATE_WINS, true, row, conflict, row);
		losers = lappend(losers, conflict);
	}
	compat_injection_point("weft-conflict-lost");
	local_row_remove_all(target, losers, local);
}

/*
 * Returns what is in the way of a row, as put_row() does it: rows with one of its
 * unique values, after "same_key", if that has a row, and before "claimed", which is set
 * if a row that has had one of the values is newer than all of these.
 */
static List *
find_conflicts(Target *target, TupleTableSlot *row, TupleTableSlot *local,
			   LocalRow *same_key, LocalRow *claimed, ConflictKind kind)
{
	List	   *result = unique_conflicts(target, row, local);
	RowVersion	newest;

	if (same_key->slot)
		result = lcons(same_key, result);
	if (settings_resolver(kind) != RESOLVER_LAST_UPDATE_WINS)
		return result;
	newest = version_newest(result);
	if (claim_find(target, row, local, false, claimed) &&
		(!newest.known || newest.own || version_newer(&claimed->version, &newest)))
		result = lappend(result, claimed);
	return result;
}

/*
 * Stores a row that the publisher has.  "own" is the locked row that it replaces, or
 * NULL if none with its key is to be expected; "was_missing" says that it was decided
 * already that it is to be there.  What is in its way is a conflict of the kind that
 * is given.
 */
void
put_row(Target *target, TupleTableSlot *row, TupleTableSlot *own, bool was_missing,
		ConflictKind kind)
{
	TupleTableSlot *local;
	LocalRow	same_key = {0};
	LocalRow	claimed;
	bool		latest = settings_resolver(kind) == RESOLVER_LAST_UPDATE_WINS;
	List	   *conflicts;
	ListCell   *cell;
	RowVersion	newest;
	ConflictResolver resolver;
	bool		applied = true;

	do
	{
		local = own ? own : local_row_find(target, row);
		if (local == NULL && !was_missing && !newer_than_delete(target, row))
		{
			put_row_lose_values(target, row, NULL, kind);
			return;
		}
		same_key.slot = own ? NULL : local;
		if (same_key.slot)
		{
			same_key.index = target->key_index;
			same_key.version = row_version_in(target, local);
		}
		conflicts = find_conflicts(target, row, local, &same_key, &claimed, kind);
	} while (conflicts != NIL && decision_wait_turn());

	if (conflicts != NIL)
	{
		if (list_length(conflicts) > 1)
			kind = KIND_MULTIPLE_UNIQUE_CONFLICTS;
		latest = settings_resolver(kind) == RESOLVER_LAST_UPDATE_WINS;
		newest = version_newest(conflicts);
		applied = decision_make(target, kind, row, &newest, &resolver);
		foreach(cell, conflicts)
			history_record(target, kind, resolver, applied, row, lfirst(cell), row);
	}

	if (applied)
	{
		compat_injection_point("weft-conflict-store");
		foreign_key_check(target, row, local);
		local_row_remove_all(target, conflicts, local);
		if (local)
		{
			claim_release(target, local, row);
			local_row_update(target, local, row);
		}
		else
		{
			deleted_counter_forget(target, row);
			local_row_insert(target, row);
		}
		if (latest)
			claim_check_stored(target, row, local);
	}
	else if (latest)
	{
		if (same_key.slot == NULL ||
			version_wins(&conflict_session.version, &same_key.version))
		{
			lose_row(target, row, local);
			local = NULL;
		}
		put_row_lose_values(target, row, local, kind);
	}
}
