/*
 * change.c
 *	  Routes one change of a transaction to whoever can apply it.
 *
 * The fast path (fast/) applies a row if its table and the stage of the attempt (attempt.c)
 * permit that.  Otherwise conflict/ applies it if the subscription detects conflicts and
 * conflict/ can decide about the table.  Otherwise, and for everything that is not a
 * row, the server's own code applies the change.  An error of the fast path is never
 * reported: the writer applies the transaction again without it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "apply/attempt.h"
#include "apply/change.h"
#include "apply/member.h"
#include "apply/server_apply.h"
#include "apply/turn.h"
#include "apply/writer.h"
#include "catalog/pg_subscription_rel.h"
#include "compat.h"
#include "conflict/conflict_apply.h"
#include "conflict/remote_transaction.h"
#include "ddl/ddl_apply.h"
#include "fast/fast.h"
#include "gate.h"
#include "group_times.h"
#include "mb/pg_wchar.h"
#include "misspeculate.h"
#include "replication/worker_internal.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "wire.h"

/*
 * Gives back, while the writer sleeps between two changes, the buffer pins and snapshots
 * that VACUUM, CREATE INDEX CONCURRENTLY and others wait for.  The next change opens its
 * table again; locks are kept.
 */
void
change_rest(void)
{
	if (server_apply_busy() || !IsTransactionState())
		return;
	fast_close();
	InvalidateCatalogSnapshotConditionally();
}

/* Applies a row and detects conflicts.  Returns false if that is not possible. */
static bool
detect(const RowChange *change)
{
	bool		result;

	server_apply_enter(change);
	result = conflict_apply(change, attempt_stage() != ATTEMPT_SPECULATIVE);
	server_apply_leave();
	return result;
}

/* The server's code does not check text, and would store what is invalid. */
static void
check_text(const RowChange *change)
{
	int			column = wire_invalid_text(row_change_tuples(change));

	if (column != 0)
		ereport(ERROR,
				(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
				 errmsg("invalid logical replication message for subscription \"%s\"",
						MySubscription->name),
				 errdetail("Message \"%s\" at LSN " compat_lsn_format ": the value of column %d is not valid in encoding \"%s\".",
						   logicalrep_message_type((LogicalRepMsgType) (uint8) change->type),
						   LSN_FORMAT_ARGS(attempt_subject()->final_lsn), column,
						   GetDatabaseEncodingName()),
				 errhint("Nothing of this transaction has been applied. Check the publisher's data and encoding.")));
}

/* Is the local table of a relation READY?  Locks it for a change. */
static bool
lock_ready(LogicalRepRelId relid)
{
	LogicalRepRelMapEntry *entry;
	LOCKMODE	mode;
	bool		result;

	PushActiveSnapshot(GetTransactionSnapshot());
	entry = gate_open_relation(relid, &mode);
	result = entry->state == SUBREL_STATE_READY;
	logicalrep_rel_close(entry, NoLock);
	PopActiveSnapshot();
	return result;
}

/*
 * Whether a change of a table that is being synchronized is to be applied depends on where
 * the transaction ends.  A stream writer does not know that.
 */
static void
check_ready(const RowChange *change)
{
	if (turn_of_stream() && !lock_ready(change->relid))
		misspeculate("a table is being synchronized");
}

/* Counts a row that was not applied by the fast path.  Looks its relation up. */
static void
count_row(const RowChange *change)
{
	server_apply_enter(change);
	fast_count_general(change, attempt_subject()->final_lsn);
	server_apply_leave();
}

/* Applies an INSERT, UPDATE or DELETE message. */
static void
apply_row(const RowChange *change)
{
	AttemptStage stage = attempt_stage();

	pg_atomic_fetch_add_u64(&writer.shared->changes, 1);
	if (stage < ATTEMPT_GENERAL && fast_apply(change, stage != ATTEMPT_SPECULATIVE))
		return;
	fast_make_way(change->relid);
	check_text(change);
	if (!writer.detect_conflicts || !detect(change))
	{
		check_ready(change);
		server_apply_change(change);
		group_times_unknown(fast_local_table(change->relid));
	}
	count_row(change);
}

static void
apply_begin(const RowChange *change)
{
	WireBegin	begin;

	wire_read_begin(change->message, change->length, &begin);
	attempt_set_subject(begin.xid, begin.final_lsn);
	if (writer.detect_conflicts)
		conflict_begin(begin.commit_time, begin.xid, begin.final_lsn);
	member_begun(&begin);

	/*
	 * What is to be skipped, the leader hands to the server's apply loop.
	 * Here, the server's code would go on to skip everything.  It may read
	 * the subscription again by itself.
	 */
	MySubscription->skiplsn = InvalidXLogRecPtr;
	server_apply_change(change);
}

/* A schema change, which the leader has put into the contents of a message. */
static void
apply_ddl(const RowChange *change)
{
	MemoryContext old = MemoryContextSwitchTo(ApplyMessageContext);

	/* No table may be open then. */
	fast_store_all();
	fast_close();
	if (!IsTransactionState())
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		maybe_reread_subscription();
		MemoryContextSwitchTo(ApplyMessageContext);
	}
	pg_atomic_fetch_add_u64(&writer.shared->changes, 1);
	ddl_apply(change->message + 1, change->length - 1, attempt_subject()->final_lsn);
	MemoryContextSwitchTo(old);
	MemoryContextReset(ApplyMessageContext);
}

/* Applies a message of a transaction. */
void
change_apply(const RowChange *change)
{
	switch (change->type)
	{
		case LOGICAL_REP_MSG_BEGIN:
			apply_begin(change);
			break;
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:
			apply_row(change);
			break;
		case LOGICAL_REP_MSG_TRUNCATE:
			/* No table may be open then. */
			fast_close();
			pg_atomic_fetch_add_u64(&writer.shared->changes, 1);
			server_apply_change(change);
			break;
		case LOGICAL_REP_MSG_MESSAGE:
			apply_ddl(change);
			break;
		default:
			server_apply_change(change);
			break;
	}
}
