/*
 * apply.c
 *	  Applying a row change where conflicts are detected.
 *
 * A conflict is a change that does not find what its publisher had: a row that
 * somebody else has written last, or none, or one that shares a unique value.  What
 * becomes of it is a resolver's decision; the default, last_update_wins, makes all
 * members of a group end with the same rows, in whatever order changes arrive:
 *
 *	 - For every key, of all INSERTs, UPDATEs and DELETEs the one with the newest
 *	   version counts (version.c).  A row has the version of what wrote it, a row that
 *	   is missing that of its tombstone (tombstone.c).  The publisher sends the whole
 *	   new row, so an UPDATE that is newer than the delete brings the row back, and
 *	   one that is older is left out; the same for an INSERT.
 *	 - An UPDATE that changes the key counts as a DELETE of the old key and an INSERT
 *	   of the new one, with the same version, each decided on its own.
 *	 - A row that has once had a unique value of another row with another key, and is
 *	   newer, takes that other row away, whether it has the value still or not (claim.c).
 *	   The loser leaves a tombstone with its own version, so any newer change of it is
 *	   decided anew.
 *	 - A counter (delta.c) gets the difference added, whoever wins, and whether the row
 *	   is there or deleted (deleted_counter.c).
 *
 * A value out of line that has not changed is not sent.  It need not be the one here,
 * not even if the row's last writer was the publisher: that may have taken over a third
 * node's change since, which is still to come here.  So tables with such values need
 * replica identity full, by which it is sent with the old row.
 *
 * Waiting.  A row that a local transaction has in hands is waited for, locked, and
 * looked at again, so what is decided about does not change until our commit.  The
 * order of locks is that of the changes, which sessions cannot know: a deadlock
 * is possible, and ends by the writer or the session being chosen, the writer
 * then applies its transaction again (apply/transaction.c).  A row that a session
 * adds after we have looked for it gives a unique violation at our store; the same.
 *
 * Speculation.  Only the oldest transaction, with all earlier ones committed,
 * decides anything.  Any other one that meets a conflict waits until it is, and then
 * looks again at what it has not locked.  If somebody needs its locks meanwhile, it
 * fails, is rolled back and applied again in its turn.  What was no conflict before,
 * none of the earlier ones could make one: they have other keys, or it has waited for
 * them, or for their values in unique indexes.
 *
 * What this cannot decide about is left to the server's own code: tables without a
 * key, partitioned tables that are published as a whole, tables that are being
 * synchronized.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/trigger.h"
#include "conflict/internal.h"
#include "local_table.h"
#include "executor/nodeModifyTable.h"
#include "miscadmin.h"
#include "misspeculate.h"
#include "replication/worker_internal.h"
#include "utils/builtins.h"
#include "utils/injection_point.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/usercontext.h"
#include "wire.h"

/* A resolver says "error". */
pg_noreturn static void
report(Target *target, ConflictKind kind, TupleTableSlot *key)
{
	Jsonb	   *json = DatumGetJsonbP(history_key(target, key));

	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("conflict %s on relation \"%s.%s\"", conflict_kind_name(kind),
					get_namespace_name(RelationGetNamespace(target->rel)),
					RelationGetRelationName(target->rel)),
			 errdetail("Key %s, changed by remote transaction %u, which finished at %X/%X.",
					   JsonbToCString(NULL, &json->root, VARSIZE(json)),
					   conflict_session.remote_xid, LSN_FORMAT_ARGS(conflict_session.lsn)),
			 errhint("Change the local row, or have another resolver with \"weft.alter_node_set_conflict_resolver\", or leave the transaction out with ALTER SUBSCRIPTION ... SKIP.")));
}

/*
 * There is a conflict: waits until all earlier transactions are committed.  Returns
 * whether that took a while, so that what is not locked must be looked at again.
 * Fails if somebody needs our locks meanwhile.
 */
static bool
wait_turn(void)
{
	if (conflict_session.final)
		return false;
	if (!conflict_session.wait_oldest())
		misspeculate("conflict in a speculative transaction");
	conflict_session.final = true;
	return true;
}

/*
 * Decides a conflict with something local that has a version: is the remote change
 * to be applied?
 */
static bool
decide(Target *target, ConflictKind kind, TupleTableSlot *key, const RowVersion *local,
	   ConflictResolver *resolver)
{
	Assert(conflict_session.final);
	conflict_session.met[kind]++;
	*resolver = settings_resolver(kind);
	switch (*resolver)
	{
		case RESOLVER_LAST_UPDATE_WINS:
			return version_wins(&conflict_session.version, local);
		case RESOLVER_APPLY_REMOTE:
			return true;
		case RESOLVER_KEEP_LOCAL:
		case RESOLVER_SKIP:
			return false;
		case RESOLVER_ERROR:
			report(target, kind, key);
	}
	return false;				/* keep compiler quiet */
}

/* Says, once in a while, that replica identity full is missing. */
static void
warn_incomplete(Target *target)
{
	static TimestampTz reported = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (!TimestampDifferenceExceeds(reported, now, 60 * 1000))
		return;
	reported = now;
	ereport(WARNING,
			(errmsg("a conflict on relation \"%s.%s\" was decided without all values of the remote row",
					get_namespace_name(RelationGetNamespace(target->rel)),
					RelationGetRelationName(target->rel)),
			 errdetail("Values stored out of line are not sent if they have not changed. Members may differ in them now."),
			 errhint("Set REPLICA IDENTITY FULL for the table on all members.")));
}

static TupleTableSlot *
new_slot(Target *target)
{
	return ExecInitExtraTupleSlot(target->estate, RelationGetDescr(target->rel),
								  &TTSOpsVirtual);
}

/* Is a row with the key of "search" to be seen, or was it until just now? */
static bool
is_visible(Target *target, TupleTableSlot *search)
{
	Relation	index = index_open(target->key_index, AccessShareLock);
	int			num_keys = IndexRelationGetNumberOfKeyAttributes(index);
	TupleTableSlot *found = table_slot_create(target->rel, &target->estate->es_tupleTable);
	ScanKeyData keys[INDEX_MAX_KEYS];
	IndexScanDesc scan;
	bool		result;

	for (int i = 0; i < num_keys; i++)
	{
		bool		isnull;
		Oid			operator = get_opfamily_member(index->rd_opfamily[i], index->rd_opcintype[i],
												   index->rd_opcintype[i],
												   BTEqualStrategyNumber);

		ScanKeyEntryInitialize(&keys[i], 0, i + 1, BTEqualStrategyNumber, InvalidOid,
							   index->rd_indcollation[i], get_opcode(operator),
							   slot_getattr(search, index->rd_index->indkey.values[i], &isnull));
	}
	PushActiveSnapshot(GetLatestSnapshot());
	scan = compat_index_beginscan(target->rel, index, GetActiveSnapshot(), num_keys);
	index_rescan(scan, keys, num_keys, NULL, 0);
	result = index_getnext_slot(scan, ForwardScanDirection, found);
	ExecClearTuple(found);
	index_endscan(scan);
	PopActiveSnapshot();
	index_close(index, NoLock);
	return result;
}

/*
 * Finds and locks the local row with the key of "search"; NULL if there is none.
 *
 * The server's search sees what is not committed.  If a session updates the row
 * just then, it may see neither the old version, which is dead by the time it gets
 * there, nor the new one, whose entry in the index it has passed already.  A snapshot
 * always sees one of them; so what it sees is looked for again.
 */
static TupleTableSlot *
find_row(Target *target, TupleTableSlot *search)
{
	TupleTableSlot *result = table_slot_create(target->rel, &target->estate->es_tupleTable);

	do
	{
		CHECK_FOR_INTERRUPTS();
		if (RelationFindReplTupleByIndex(target->rel, target->key_index, LockTupleExclusive,
										 search, result))
			return result;
	} while (is_visible(target, search));
	return NULL;
}

static void
insert_row(Target *target, TupleTableSlot *row)
{
	ExecSimpleRelationInsert(target->info, target->estate, row);
}

static void
update_row(Target *target, TupleTableSlot *local, TupleTableSlot *row)
{
	EvalPlanQualSetSlot(&target->epq, row);
	ExecSimpleRelationUpdate(target->info, target->estate, &target->epq, local, row);
}

/* Deletes a local row; "version" is that of the tombstone, NULL for our own. */
static void
remove_row(Target *target, TupleTableSlot *local, const RowVersion *version)
{
	tombstone_write(target, local, version);
	claim_release(target, local, NULL);
	deleted_counter_keep(target->rel, target->key_index, target->deltas, local);
	EvalPlanQualSetSlot(&target->epq, local);
	ExecSimpleRelationDelete(target->info, target->estate, &target->epq, local);
}

/* Deletes the rows that are in the way, other than "own". */
static void
remove_conflicts(Target *target, List *conflicts, TupleTableSlot *own)
{
	List	   *done = own ? list_make1(own) : NIL;
	ListCell   *cell;

	foreach(cell, conflicts)
	{
		LocalRow   *conflict = lfirst(cell);
		TupleTableSlot *slot = conflict->slot;
		bool		again = slot == NULL;
		ListCell   *other;

		/* One row may violate several indexes. */
		foreach(other, done)
			if (slot && ItemPointerEquals(&((TupleTableSlot *) lfirst(other))->tts_tid, &slot->tts_tid))
			again = true;
		if (again)
			continue;
		remove_row(target, slot, &conflict->version);
		done = lappend(done, slot);
	}
}

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
	} while (wait_turn());
	applied = decide(target, KIND_UPDATE_MISSING, row, &deleted.version, &resolver);
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
		remove_row(target, local, NULL);
	else
		tombstone_write(target, row, NULL);
	deleted_counter_keep(target->rel, target->key_index, target->deltas, row);
}

/*
 * A row is not stored, because a newer one has its key or one of its unique values:
 * older rows lose the values that it has, as they do where it was stored for a while.
 * "local" is the row with its key, or NULL.
 */
static void
lose_values(Target *target, TupleTableSlot *row, TupleTableSlot *local, ConflictKind kind)
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
		(void) wait_turn();
		conflict_session.met[kind]++;
		history_record(target, kind, RESOLVER_LAST_UPDATE_WINS, true, row, conflict, row);
		losers = lappend(losers, conflict);
	}
	remove_conflicts(target, losers, local);
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
static void
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
		local = own ? own : find_row(target, row);
		if (local == NULL && !was_missing && !newer_than_delete(target, row))
		{
			lose_values(target, row, NULL, kind);
			return;
		}
		same_key.slot = own ? NULL : local;
		if (same_key.slot)
		{
			same_key.index = target->key_index;
			same_key.version = version_of_row(target, local);
		}
		conflicts = find_conflicts(target, row, local, &same_key, &claimed, kind);
	} while (conflicts != NIL && wait_turn());

	if (conflicts != NIL)
	{
		if (list_length(conflicts) > 1)
			kind = KIND_MULTIPLE_UNIQUE_CONFLICTS;
		latest = settings_resolver(kind) == RESOLVER_LAST_UPDATE_WINS;
		newest = version_newest(conflicts);
		applied = decide(target, kind, row, &newest, &resolver);
		foreach(cell, conflicts)
			history_record(target, kind, resolver, applied, row, lfirst(cell), row);
	}

	if (applied)
	{
		compat_injection_point("weft-conflict-store");
		foreign_key_check(target, row, local, wait_turn);
		remove_conflicts(target, conflicts, local);
		if (local)
		{
			claim_release(target, local, row);
			update_row(target, local, row);
		}
		else
		{
			deleted_counter_forget(target, row);
			insert_row(target, row);
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
		lose_values(target, row, local, kind);
	}
}

/* Makes the row that the publisher has; see tuple_make(). */
static bool
make_row(Target *target, TupleTableSlot *row, TupleTableSlot *base, const Remote *remote)
{
	bool		complete = tuple_make(target, row, base, remote);
	TupleConstr *constraints = RelationGetDescr(target->rel)->constr;

	/* They may be in unique indexes. */
	if (constraints && constraints->has_generated_stored)
		ExecComputeStoredGenerated(target->info, target->estate, row, CMD_INSERT);
	return complete;
}

static void
apply_insert(Target *target, const Remote *remote)
{
	TupleTableSlot *row = new_slot(target);

	(void) make_row(target, row, NULL, remote);
	put_row(target, row, NULL, false, KIND_INSERT_EXISTS);
}

/* An UPDATE has lost: only counters take something over from it. */
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
	merged_row_write(target, local, version);
	update_row(target, local, row);
}

/* An UPDATE of a row that is not there. */
static void
update_missing(Target *target, TupleTableSlot *search, const Remote *remote)
{
	TupleTableSlot *row = new_slot(target);
	LocalRow	deleted = {0};
	ConflictResolver resolver;
	bool		complete = make_row(target, row, NULL, remote);
	bool		known = tombstone_find(target, search, &deleted.version);
	bool		applied = decide(target, KIND_UPDATE_MISSING, search, &deleted.version, &resolver);
	bool		moved = remote->has_old && !tuple_same_key(target, search, row);

	if (applied && !complete)
	{
		warn_incomplete(target);
		applied = false;
	}
	history_record(target, KIND_UPDATE_MISSING, resolver, applied, search,
				   known ? &deleted : NULL, row);
	if (moved && applied)
		tombstone_write(target, search, NULL);
	if (!bms_is_empty(target->deltas) && !moved && applied)
		deleted_counter_take(target, search, row, remote);
	else if (!bms_is_empty(target->deltas) && !applied && resolver != RESOLVER_SKIP)
		deleted_counter_add(target, search, remote);
	if (applied || (moved && complete && resolver == RESOLVER_LAST_UPDATE_WINS))
		put_row(target, row, NULL, !moved, KIND_UPDATE_EXISTS);
	else if (complete && resolver == RESOLVER_LAST_UPDATE_WINS)
		lose_values(target, row, NULL, KIND_UPDATE_EXISTS);
}

/* An UPDATE of a row that is there. */
static void
update_found(Target *target, TupleTableSlot *local, const Remote *remote)
{
	TupleTableSlot *row = new_slot(target);
	LocalRow	found = {local, version_of_row(target, local)};
	ConflictResolver resolver = RESOLVER_LAST_UPDATE_WINS;
	bool		applied = true;
	bool		moved;

	(void) make_row(target, row, local, remote);
	if (version_differs(&found.version))
	{
		(void) wait_turn();
		applied = decide(target, KIND_UPDATE_ORIGIN_DIFFERS, local, &found.version, &resolver);
		history_record(target, KIND_UPDATE_ORIGIN_DIFFERS, resolver, applied, local, &found, row);
		if (applied && tuple_lacks_values(remote))
			warn_incomplete(target);
	}

	moved = remote->has_old && !tuple_same_key(target, local, row);
	if (!applied)
	{
		if (!moved && resolver == RESOLVER_LAST_UPDATE_WINS)
			lose_values(target, row, local, KIND_UPDATE_EXISTS);
		if (resolver != RESOLVER_SKIP)
			keep_row(target, local, &found.version, remote);
		if (moved && resolver == RESOLVER_LAST_UPDATE_WINS)
			put_row(target, row, NULL, false, KIND_UPDATE_EXISTS);
		return;
	}
	if (!bms_is_empty(target->deltas))
		delta_merge(target, row, local, remote);
	if (moved)
		remove_row(target, local, NULL);
	put_row(target, row, moved ? NULL : local, false, KIND_UPDATE_EXISTS);
}

static void
apply_update(Target *target, const Remote *remote)
{
	TupleTableSlot *search = new_slot(target);
	TupleTableSlot *local;

	tuple_read(target, search,
			   unconstify(LogicalRepTupleData *, remote->has_old ? &remote->old : &remote->new));
	do
	{
		local = find_row(target, search);
	} while (local == NULL && wait_turn());
	if (local == NULL && !bms_is_empty(target->deltas))
	{
		deleted_counter_lock(target, search);
		local = find_row(target, search);
	}
	if (local)
		update_found(target, local, remote);
	else
		update_missing(target, search, remote);
}

static void
apply_delete(Target *target, const Remote *remote)
{
	TupleTableSlot *search = new_slot(target);
	LocalRow	found = {0};
	ConflictResolver resolver;
	bool		applied = true;

	tuple_read(target, search, unconstify(LogicalRepTupleData *, &remote->old));
	do
	{
		found.slot = find_row(target, search);
	} while (found.slot == NULL && wait_turn());
	if (found.slot == NULL)
	{
		bool		known = tombstone_find(target, search, &found.version);

		applied = decide(target, KIND_DELETE_MISSING, search, &found.version, &resolver);
		history_record(target, KIND_DELETE_MISSING, resolver, applied, search,
					   known ? &found : NULL, NULL);
		if (applied)
			tombstone_write(target, search, NULL);
		return;
	}

	found.version = version_of_row(target, found.slot);
	if (version_differs(&found.version))
	{
		(void) wait_turn();
		applied = decide(target, KIND_DELETE_ORIGIN_DIFFERS, search, &found.version, &resolver);
		history_record(target, KIND_DELETE_ORIGIN_DIFFERS, resolver, applied, search, &found,
					   NULL);
	}
	if (applied)
		remove_row(target, found.slot, NULL);
}

/* Fails if the current user may not change the table so. */
static void
check_privileges(Relation rel, char type)
{
	local_table_check_rights(rel, type == LOGICAL_REP_MSG_INSERT ? ACL_INSERT :
							 type == LOGICAL_REP_MSG_UPDATE ? ACL_UPDATE : ACL_DELETE);
}

/* Makes what the executor's functions need for the open table. */
static void
open_target(Target *target, LogicalRepRelMapEntry *entry, Oid key_index)
{
	memset(target, 0, sizeof(Target));
	target->entry = entry;
	target->rel = entry->localrel;
	target->key_index = key_index;
	target->deltas = settings_delta_columns(target->rel);
	target->estate = local_table_prepare(target->rel, entry->attrmap, true, &target->info);
	target->estate->es_opened_result_relations =
		lappend(target->estate->es_opened_result_relations, target->info);
	target->estate->es_output_cid = GetCurrentCommandId(true);
	EvalPlanQualInit(&target->epq, target->estate, NULL, NIL, -1, NIL);
	AfterTriggerBeginQuery();
}

static void
close_target(Target *target)
{
	AfterTriggerEndQuery(target->estate);
	EvalPlanQualEnd(&target->epq);
	ExecCloseIndices(target->info);
	ExecResetTupleTable(target->estate->es_tupleTable, false);
	FreeExecutorState(target->estate);
}

/* Applies a change to the open table, as the user that may. */
static void
apply_to_table(LogicalRepRelMapEntry *entry, Oid key_index, const Remote *remote)
{
	Target		target;
	UserContext context;
	bool		switched = !MySubscription->runasowner;

	if (switched)
		SwitchToUntrustedUser(entry->localrel->rd_rel->relowner, &context);
	check_privileges(entry->localrel, remote->type);
	open_target(&target, entry, key_index);
	switch (remote->type)
	{
		case LOGICAL_REP_MSG_INSERT:
			apply_insert(&target, remote);
			break;
		case LOGICAL_REP_MSG_UPDATE:
			apply_update(&target, remote);
			break;
		case LOGICAL_REP_MSG_DELETE:
			apply_delete(&target, remote);
			break;
	}
	close_target(&target);
	if (switched)
		RestoreUserContext(&context);
}

/* Reads a message that was checked when it arrived. */
static LogicalRepRelId
read_message(const char *message, int length, Remote *remote)
{
	WireChange	change;
	StringInfoData buffer;
	bool		has_old = false;

	memset(remote, 0, sizeof(Remote));
	if (wire_read_change(message, length, false, &change) != NULL)
		elog(ERROR, "broken message in the ring");
	remote->type = message[0];
	initReadOnlyStringInfo(&buffer, unconstify(char *, message), length);
	buffer.cursor = 1;
	switch (remote->type)
	{
		case LOGICAL_REP_MSG_INSERT:
			(void) logicalrep_read_insert(&buffer, &remote->new);
			break;
		case LOGICAL_REP_MSG_UPDATE:
			(void) logicalrep_read_update(&buffer, &has_old, &remote->old, &remote->new);
			break;
		case LOGICAL_REP_MSG_DELETE:
			(void) logicalrep_read_delete(&buffer, &remote->old);
			has_old = true;
			break;
	}
	remote->has_old = has_old;
	remote->old_full = has_old && change.old_kind == 'O';
	return change.relid;
}

/*
 * Can we decide about changes of the open table?  *key_index is the index to find its
 * rows by then.
 */
static bool
is_covered(LogicalRepRelMapEntry *entry, char type, Oid *key_index)
{
	if (entry->state != SUBREL_STATE_READY &&
		(entry->state != SUBREL_STATE_SYNCDONE || entry->statelsn > conflict_session.lsn))
		return false;
	if (entry->localrel->rd_rel->relkind != RELKIND_RELATION)
		return false;
	*key_index = GetRelationIdentityOrPK(entry->localrel);
	return OidIsValid(*key_index) && (type == LOGICAL_REP_MSG_INSERT || entry->updatable);
}

/*
 * Applies an INSERT, UPDATE or DELETE message; "final" tells whether conflicts may be
 * decided.  Returns false, with nothing done, if it is left to the server's own code.
 * What it allocates is in the current memory context.
 */
bool
conflict_apply(const char *message, int length, bool final)
{
	Remote		remote;
	LogicalRepRelId relid = read_message(message, length, &remote);
	LogicalRepRelMapEntry *entry;
	Oid			key_index = InvalidOid;
	bool		covered;

	conflict_session.applying = true;
	conflict_session.final = final;
	SetCurrentStatementStartTimestamp();
	if (!IsTransactionState())
	{
		MemoryContext old = CurrentMemoryContext;

		StartTransactionCommand();
		maybe_reread_subscription();
		MemoryContextSwitchTo(old);
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) settings_find_node(conflict_session.version.origin,
							  &conflict_session.version.node);

	entry = logicalrep_rel_open(relid, RowExclusiveLock);
	covered = is_covered(entry, remote.type, &key_index);
	if (covered)
		apply_to_table(entry, key_index, &remote);
	logicalrep_rel_close(entry, NoLock);
	PopActiveSnapshot();
	if (covered)
		CommandCounterIncrement();
	conflict_session.applying = false;
	return covered;
}
