/*
 * resolve.c
 *	  Applies one INSERT, UPDATE or DELETE, whatever it finds here.
 */
#include "postgres.h"

#include "access/xact.h"
#include "conflict/decision.h"
#include "conflict/deleted_counter.h"
#include "conflict/delta.h"
#include "conflict/history.h"
#include "conflict/local_row.h"
#include "conflict/put_row.h"
#include "conflict/remote_row.h"
#include "conflict/resolve.h"
#include "conflict/row_key.h"
#include "conflict/row_version.h"
#include "conflict/tombstone.h"
#include "conflict/version.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "group_times.h"
#include "node_identity.h"
#include "publication_settings.h"
#include "replication/worker_internal.h"
#include "utils/rel.h"

static TupleTableSlot *
new_slot(Target *target)
{
	return ExecInitExtraTupleSlot(target->estate, RelationGetDescr(target->rel),
								  &TTSOpsVirtual);
}

/* Generated columns may be part of unique indexes. */
static void
compute_generated(Target *target, TupleTableSlot *row)
{
	TupleConstr *constraints = RelationGetDescr(target->rel)->constr;

	if (constraints && constraints->has_generated_stored)
		ExecComputeStoredGenerated(target->info, target->estate, row, CMD_INSERT);
}

/*
 * Makes the row that the publisher has, generated columns included.  Returns false if
 * remote_row_make() does not know all of its values.
 */
static bool
make_row(Target *target, TupleTableSlot *row, TupleTableSlot *base, const Remote *remote)
{
	bool		complete = remote_row_make(target, row, base, remote);

	compute_generated(target, row);
	return complete;
}

/* Is the publisher a member of a group that replicates schema changes? */
static bool
shares_schema(void)
{
	return publication_settings_of_group() && node_identity_for(MySubscription->name) != NULL;
}

void
resolve_insert(Target *target, const Remote *remote)
{
	TupleTableSlot *row = new_slot(target);

	(void) make_row(target, row, NULL, remote);
	put_row(target, row, NULL, false, KIND_INSERT_EXISTS);
}

/* An UPDATE has lost.  Only the difference that it makes to counters is applied. */
static void
keep_row(Target *target, TupleTableSlot *local, const RowVersion *version,
		 const Remote *remote)
{
	TupleTableSlot *row;

	if (bms_is_empty(target->deltas))
		return;
	row = new_slot(target);
	ExecCopySlot(row, local);
	delta_merge(target, row, local, remote);
	row_version_keep(target, local, version);
	group_times_end_here();
	local_row_update(target, local, row);

	/* The row may be met once more, because of another unique value. */
	CommandCounterIncrement();
}

/* An UPDATE whose row is missing here. */
static void
update_missing(Target *target, TupleTableSlot *search, const Remote *remote)
{
	TupleTableSlot *row = new_slot(target);
	LocalRow	deleted = {0};
	ConflictResolver resolver;
	bool		complete = make_row(target, row, NULL, remote);
	bool		known = tombstone_find(target, search, &deleted.version);
	bool		applied = decision_make(target, KIND_UPDATE_MISSING, search, &deleted.version, &resolver);
	bool		moved = remote->has_old && !row_key_same(target, search, row);

	if (applied && !complete)
	{
		decision_warn_incomplete(target);
		applied = false;
	}
	history_record(target, KIND_UPDATE_MISSING, resolver, applied, search,
				   known ? &deleted : NULL, row);
	if (moved && applied)
		local_row_remove_missing(target, search);
	if (!bms_is_empty(target->deltas) && !moved && applied)
		deleted_counter_take(target, search, row, remote);
	else if (!bms_is_empty(target->deltas) && !applied && resolver != RESOLVER_SKIP)
		deleted_counter_add(target, search, remote);
	if (applied || (moved && complete && resolver == RESOLVER_LAST_UPDATE_WINS))
		put_row(target, row, NULL, !moved, KIND_UPDATE_EXISTS);
	else if (complete && resolver == RESOLVER_LAST_UPDATE_WINS)
		put_row_lose_values(target, row, NULL, KIND_UPDATE_EXISTS);
}

/* An UPDATE whose row is here; "local" is locked. */
static void
update_found(Target *target, TupleTableSlot *local, const Remote *remote)
{
	TupleTableSlot *row = new_slot(target);
	LocalRow	found = {local, row_version_in(target, local)};
	ConflictResolver resolver = RESOLVER_LAST_UPDATE_WINS;
	bool		applied = true;
	bool		moved;

	(void) make_row(target, row, local, remote);
	if (version_differs(&found.version))
	{
		(void) decision_wait_turn();
		applied = decision_make(target, KIND_UPDATE_ORIGIN_DIFFERS, local, &found.version, &resolver);
		if (applied && shares_schema())
		{
			/*
			 * A column that the publisher does not have yet has a value that
			 * has lost.
			 */
			remote_row_reset_unsent(target, row);
			compute_generated(target, row);
		}
		history_record(target, KIND_UPDATE_ORIGIN_DIFFERS, resolver, applied, local, &found, row);
		if (applied && remote_row_lacks_values(remote))
			decision_warn_incomplete(target);
	}

	moved = remote->has_old && !row_key_same(target, local, row);
	if (!applied)
	{
		if (!moved && resolver == RESOLVER_LAST_UPDATE_WINS)
			put_row_lose_values(target, row, local, KIND_UPDATE_EXISTS);
		if (resolver != RESOLVER_SKIP)
			keep_row(target, local, &found.version, remote);
		if (moved && resolver == RESOLVER_LAST_UPDATE_WINS)
			put_row(target, row, NULL, false, KIND_UPDATE_EXISTS);
		return;
	}

	/*
	 * A row with another key has the counters that were sent, here as on the
	 * other nodes.
	 */
	if (!bms_is_empty(target->deltas) && !moved)
		delta_merge(target, row, local, remote);
	if (moved)
		local_row_remove(target, local, NULL);
	put_row(target, row, moved ? NULL : local, false, KIND_UPDATE_EXISTS);
}

void
resolve_update(Target *target, const Remote *remote)
{
	TupleTableSlot *search = new_slot(target);
	TupleTableSlot *local;

	remote_row_read(target, search,
					unconstify(LogicalRepTupleData *, remote->has_old ? &remote->old : &remote->new));
	do
	{
		local = local_row_find(target, search);
	} while (local == NULL && decision_wait_turn());
	if (local == NULL && !bms_is_empty(target->deltas))
	{
		deleted_counter_lock(target, search);
		local = local_row_find(target, search);
	}
	if (local)
		update_found(target, local, remote);
	else
		update_missing(target, search, remote);
}

void
resolve_delete(Target *target, const Remote *remote)
{
	TupleTableSlot *search = new_slot(target);
	LocalRow	found = {0};
	ConflictResolver resolver;
	bool		applied = true;

	remote_row_read(target, search, unconstify(LogicalRepTupleData *, &remote->old));
	do
	{
		found.slot = local_row_find(target, search);
	} while (found.slot == NULL && decision_wait_turn());
	if (found.slot == NULL)
	{
		bool		known = tombstone_find(target, search, &found.version);

		applied = decision_make(target, KIND_DELETE_MISSING, search, &found.version, &resolver);
		history_record(target, KIND_DELETE_MISSING, resolver, applied, search,
					   known ? &found : NULL, NULL);
		if (applied)
			local_row_remove_missing(target, search);
		return;
	}

	found.version = row_version_in(target, found.slot);
	if (version_differs(&found.version))
	{
		(void) decision_wait_turn();
		applied = decision_make(target, KIND_DELETE_ORIGIN_DIFFERS, search, &found.version, &resolver);
		history_record(target, KIND_DELETE_ORIGIN_DIFFERS, resolver, applied, search, &found,
					   NULL);
	}
	if (applied)
		local_row_remove(target, found.slot, NULL);
}
