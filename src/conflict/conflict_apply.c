/*
 * conflict_apply.c
 *	  Applies a row change of a subscription that detects conflicts.
 *
 * A change is in conflict if it does not find what its publisher had: another node was
 * the last to write the row, the row is missing, or another row holds one of its unique
 * values.  A resolver decides what becomes of the change.  The default resolver,
 * last_update_wins, makes all members of a group end with the same rows, in whatever
 * order changes arrive:
 *
 *	 - For each key, the INSERT, UPDATE or DELETE with the newest version counts
 *	   (version.c).  A row has the version of the change that wrote it, a missing row
 *	   that of its tombstone (tombstone.c).  The publisher sends the whole new row.
 *	   Therefore an UPDATE that is newer than the delete brings the row back, and one
 *	   that is older is not applied.  The same holds for an INSERT.
 *	 - An UPDATE that changes the key counts as a DELETE of the old key and an INSERT
 *	   of the new one.  Both have the same version, and each is decided on its own.
 *	 - A row that holds or has ever held a unique value removes any older row with
 *	   another key that holds it (claim.c).  The removed row leaves a tombstone with its
 *	   own version, so that any newer change of it is decided again.
 *	 - The difference that an UPDATE makes to a counter (delta.c) is added, whichever
 *	   side wins, and whether the row exists or is deleted (deleted_counter.c).
 *
 * Values stored out of line.  The publisher does not send such a value if an UPDATE has
 * not changed it.  The local value may be another one, even if the publisher was the
 * last to write the local row: the publisher may have applied a third node's change
 * since, which has not arrived here yet.  Therefore tables with such values need
 * REPLICA IDENTITY FULL, with which the old row, and the value in it, is sent.
 *
 * Waiting.  If an open local transaction has modified the row, then writer W1 waits for
 * it to end, locks the row, and rechecks it.  Therefore the row that W1 decides about
 * does not change until W1 commits.  W1 takes its locks in the order of the changes that
 * it applies, which sessions cannot know.  Two failures are possible, after each of which
 * W1 applies its transaction again (apply/attempt.c):
 *
 *	 1. A deadlock: W1 waits for a row that session S has modified, while S waits for a
 *		row that W1 has locked.  The server's deadlock detection cancels W1 or S.
 *	 2. A unique violation: S inserts a row after W1 has looked for it and before W1
 *		stores its own (conflict_may_retry).
 *
 * Speculation.  Only the oldest transaction decides conflicts, after all earlier ones
 * have committed.  If W2 meets a conflict while it applies T2, and T2 is not the oldest
 * transaction, then W2 waits until T2 is, and rechecks what it has not locked.  If
 * another process needs W2's locks meanwhile, W2 misspeculates: T2 is rolled back, and
 * applied again in its turn.  What T2 has found to be no conflict, an earlier T1 cannot
 * turn into one: T1 touches other keys, or T2 has waited for T1, or for T1's values in
 * unique indexes.
 *
 * Changes that this cannot decide about are left to the server's own code: those of
 * tables without a key, of partitioned tables that are published as a whole, and of
 * tables that are being synchronized.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/trigger.h"
#include "conflict/conflict_apply.h"
#include "conflict/conflict_types.h"
#include "conflict/remote_transaction.h"
#include "conflict/resolve.h"
#include "conflict/settings.h"
#include "executor/executor.h"
#include "gate.h"
#include "local_table.h"
#include "replication/worker_internal.h"
#include "utils/acl.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/usercontext.h"

/* Fails if the current user may not change the table in this way. */
static void
check_privileges(Relation rel, char type)
{
	local_table_check_rights(rel, type == LOGICAL_REP_MSG_INSERT ? ACL_INSERT :
							 type == LOGICAL_REP_MSG_UPDATE ? ACL_UPDATE | ACL_SELECT :
							 ACL_DELETE | ACL_SELECT);
}

/* Sets up what the executor's functions need for the open table. */
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

/* Applies a change to the open table, as its owner unless run_as_owner is set. */
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

/* Reads the tuples of a change, which were checked when the change arrived. */
static void
read_tuples(const RowChange *change, Remote *remote)
{
	StringInfoData buffer;
	bool		has_old = false;

	memset(remote, 0, sizeof(Remote));
	remote->type = change->type;
	initReadOnlyStringInfo(&buffer, change->message, change->length);
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
	remote->old_full = has_old && change->old_kind == 'O';
}

/*
 * Can conflict/ decide about a change of the open table?  If so, *key_index is the index
 * by which its rows are found.
 */
static bool
is_covered(LogicalRepRelMapEntry *entry, char type, Oid *key_index)
{
	if (entry->state != SUBREL_STATE_READY &&
		(entry->state != SUBREL_STATE_SYNCDONE || entry->statelsn > remote_transaction.lsn))
		return false;
	if (entry->localrel->rd_rel->relkind != RELKIND_RELATION)
		return false;
	*key_index = GetRelationIdentityOrPK(entry->localrel);
	return OidIsValid(*key_index) && (type == LOGICAL_REP_MSG_INSERT || entry->updatable);
}

/*
 * Applies an INSERT, UPDATE or DELETE message; "final" tells whether its transaction is
 * the oldest, so that conflicts may be decided.  Returns false, having done nothing, if
 * the change is left to the server's own code.  Allocates in the current memory context.
 */
bool
conflict_apply(const RowChange *change, bool final)
{
	Remote		remote;
	LogicalRepRelMapEntry *entry;
	LOCKMODE	mode;
	Oid			key_index = InvalidOid;
	bool		covered;

	read_tuples(change, &remote);
	remote_transaction.applying = true;
	remote_transaction.final = final;
	SetCurrentStatementStartTimestamp();
	if (!IsTransactionState())
	{
		MemoryContext old = CurrentMemoryContext;

		StartTransactionCommand();
		maybe_reread_subscription();
		MemoryContextSwitchTo(old);
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) settings_find_node(remote_transaction.version.origin,
							  &remote_transaction.version.node);

	entry = gate_open_relation(change->relid, &mode);
	covered = is_covered(entry, remote.type, &key_index);
	if (covered)
		apply_to_table(entry, key_index, &remote);
	logicalrep_rel_close(entry, NoLock);
	PopActiveSnapshot();
	if (covered)
		CommandCounterIncrement();
	remote_transaction.applying = false;
	return covered;
}
