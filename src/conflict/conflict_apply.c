/*
 * conflict_apply.c
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
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/trigger.h"
#include "conflict/conflict_apply.h"
#include "conflict/conflict_types.h"
#include "conflict/resolve.h"
#include "conflict/session.h"
#include "conflict/settings.h"
#include "executor/executor.h"
#include "local_table.h"
#include "replication/worker_internal.h"
#include "utils/acl.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/usercontext.h"
#include "wire.h"

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
			resolve_insert(&target, remote);
			break;
		case LOGICAL_REP_MSG_UPDATE:
			resolve_update(&target, remote);
			break;
		case LOGICAL_REP_MSG_DELETE:
			resolve_delete(&target, remote);
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
