/*
 * commit_group.c
 *	  Reads transactions from the ring, and commits them in groups.
 *
 * A transaction is speculative while earlier ones are not committed.  What goes
 * wrong then - an error, a conflict, somebody who needs our locks - may be only
 * because it is too early: it is rolled back, waits until it is the oldest, and
 * is applied again from its beginning.  Once it was the oldest when it began,
 * what goes wrong is real, and goes to the leader.  To wait for a lock for long
 * counts as going wrong, too: while we wait, we keep our own.
 *
 * A deadlock is the exception: the oldest transaction may be chosen to end it
 * though a later one is in its way, and then is applied once more.
 *
 * There are two ways to become final in mid-transaction, and unable to go back
 * ("committed to"), both only when all earlier ones are committed and nothing
 * has gone wrong:
 *	 - a record that must run alone (RING_EXCLUSIVE);
 *	 - the transaction is so long that the leader needs the space of what has
 *	   been read.
 * It need not go back: whatever earlier transactions did is there, and if what
 * we did before had been in the way of one of them, that one would have waited
 * for our locks, and yield.c would have made us give up.  In a deadlock, others
 * are given the time to be chosen.
 *
 * While there is a backlog, a run of consecutive transactions may share one
 * commit, a group: that saves the price of commits and of waiting for turns,
 * and readers still see only states that the publisher had.  A group ends
 *	 - before and behind a transaction with a record that must run alone, and
 *	   before one that has not arrived in whole;
 *	 - at the end of what its writer has taken, or at a certain size.  While it is
 *	   not its turn anyway, the writer takes more instead of waiting.  How much was
 *	   taken is a matter of speed (receive/tuning.c); how many may share a commit is
 *	   a promise, and kept here.
 * In a group nothing is ever final: what goes wrong rolls all of it back, and
 * its transactions are applied one by one.  Deferred constraints, which would
 * be checked in another state than the publisher's, are no concern: triggers
 * for them do not fire here, or make the transaction run alone.
 *
 * Order of events at the end: wait for seq - 1; commit (which makes the changes
 * visible and then releases the locks); ring_commit(seq).  If we die before the
 * commit record is written, the origin still stands before this transaction; if
 * after, behind it.  The leader dies with us in both cases.
 */
#include "postgres.h"

#include "access/xact.h"
#include "apply/attempt.h"
#include "apply/change.h"
#include "apply/commit_group.h"
#include "apply/guard.h"
#include "apply/local_transaction.h"
#include "apply/look_ahead.h"
#include "apply/order.h"
#include "apply/server_apply.h"
#include "apply/stream_writer.h"
#include "apply/turn.h"
#include "apply/writer.h"
#include "compat.h"
#include "conflict/remote_transaction.h"
#include "fast/fast.h"
#include "pgstat.h"
#include "replication/worker_internal.h"
#include "ring/broadcast.h"
#include "ring/wait.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/memutils.h"

/* The group ends once it has read this share of the ring, one GROUP_SHAREth. */
#define GROUP_SHARE 64

/*
 * A transaction that has read this share of the ring, one RELEASE_SHAREth, releases it if
 * it can.
 */
#define RELEASE_SHARE 8

/* The buffer for messages that come in pieces is kept up to this size. */
#define MESSAGE_KEPT (1024 * 1024)

/*
 * What is being read from the ring.  The transactions from "first" to "seq" have been
 * applied, the last one perhaps in part; the group may go on up to "last".  The writer has
 * taken those up to "end".
 */
typedef struct CommitGroup
{
	uint64		first;
	uint64		seq;
	uint64		last;
	uint64		end;
	RingCursor	cursor;			/* in transaction "seq" */
	StringInfoData message;		/* one that came in pieces, so far */
} CommitGroup;

/* Globals, for attempts are functions without an argument. */
static CommitGroup group;
static BroadcastReader broadcast;

/* Attaches to the broadcast log; called once in a writer. */
void
commit_group_attach(void)
{
	broadcast_attach(&broadcast, writer.ring);
}

/* Forgets a message that came in pieces; memory for a long one is not kept. */
static void
reset_message(void)
{
	MemoryContext old;

	if (group.message.data != NULL && group.message.maxlen <= MESSAGE_KEPT)
	{
		resetStringInfo(&group.message);
		return;
	}
	if (group.message.data != NULL)
		pfree(group.message.data);
	old = MemoryContextSwitchTo(ApplyContext);
	initStringInfo(&group.message);
	MemoryContextSwitchTo(old);
}

/* The oldest transaction will not be applied from its beginning again. */
static void
commit_to_transaction(void)
{
	/* An error of the fast path must still be a misspeculation. */
	fast_store_all();
	attempt_commit_to();
}

/*
 * Lets the leader have the space of what we have read, if there is much of it
 * and we are the oldest.
 */
static void
release_space(bool waiting)
{
	RingTransaction *transaction = group.cursor.transaction;
	uint64		base = Max(transaction->start, pg_atomic_read_u64(&transaction->consumed));
	uint64		read = group.cursor.position - base;

	if (read == 0 || (!waiting && read < writer.ring->size / RELEASE_SHARE))
		return;
	if (group.seq != group.first || order_pending() || !turn_is_oldest())
		return;
	commit_to_transaction();

	/* The leader writes there only after it has seen this. */
	pg_memory_barrier();
	pg_atomic_write_u64(&transaction->consumed, group.cursor.position);
	SetLatch(&GetPGProcByNumber(writer.ring->leader_procno)->procLatch);
}

/*
 * Waits for more of the transaction; there may be none yet afterwards.  The
 * leader may be waiting for space that we can release only once we are the
 * oldest, so that is tried each time.
 */
static bool
wait_data(void)
{
	bool		result;

	release_space(true);
	writer_set_activity(WRITER_WAITING_FOR_DATA);
	result = ring_wait_data(turn_waiter(), &group.cursor);
	writer_set_activity(WRITER_APPLYING);
	return result;
}

/*
 * Takes in what the leader has broadcast, up to a version.  Returns false if that
 * is too early.
 */
static bool
catch_up(uint64 version)
{
	const char *data;
	Size		length;

	if (broadcast.version < version && order_pending() && !order_settle())
		return false;
	while (broadcast_read(&broadcast, version, &data, &length))
		server_apply_relation(data, length);
	return true;
}

/* Applies one record; returns false if it came too early. */
static bool
apply_record(const RingRecordHeader *header, const char *payload)
{
	bool		whole = group.message.len == 0 && !(header->flags & RING_MORE);
	RowChange	change;

	if (header->flags & RING_EXCLUSIVE)
	{
		if (!order_settle())
			return false;
		compat_injection_point("weft-writer-alone");
		commit_to_transaction();
	}
	if (header->kind == RING_BROADCAST)
		return catch_up(header->number);

	if (whole)
		change = row_change_read(payload, header->length);
	switch (order_change(&group.cursor, header, whole ? &change : NULL))
	{
		case ORDER_TOO_EARLY:
			return false;
		case ORDER_DEFERRED:
			return true;
		case ORDER_APPLY:
			break;
	}
	if (!whole)
	{
		appendBinaryStringInfo(&group.message, payload, header->length);
		if (header->flags & RING_MORE)
			return true;
		change = row_change_read(group.message.data, group.message.len);
		change_apply(&change);
		reset_message();
	}
	else
		change_apply(&change);

	return true;
}

/* Commits what has been applied: the transactions from "first" to "seq". */
static void
commit_transaction(void)
{
	RingTransaction *transaction = group.cursor.transaction;
	StreamShared *stream = stream_writer_stream(transaction);
	TransactionId prepare_xid = stream ? stream_writer_prepare_xid(stream) : InvalidTransactionId;
	XLogRecPtr	local_end = InvalidXLogRecPtr;

	if (IsTransactionState())
		local_end = local_transaction_commit(prepare_xid, transaction->end_lsn,
											 transaction->commit_time);
	else if (stream != NULL)
		local_end = stream->local_end;
	in_remote_transaction = false;
	if (writer.detect_conflicts)
		conflict_committed();
	pg_atomic_write_u64(&writer.shared->remote_lsn, transaction->end_lsn);
	ring_commit(writer.ring, group.first, group.seq, local_end);
}

/*
 * Applies all changes of transaction "seq"; returns false if that was too
 * early.
 */
static bool
apply_changes(void)
{
	const RingRecordHeader *header;
	const char *payload;
	bool		changed = true;

	ring_rewind(&group.cursor, writer.ring, group.seq);
	if (!catch_up(group.cursor.transaction->broadcast))
		return false;
	reset_message();
	if (group.cursor.transaction->stream != 0)
		return stream_writer_apply_in_turn(group.cursor.transaction);

	while (changed)
	{
		RingReadResult result;

		if (attempt_stage() < ATTEMPT_GENERAL)
			look_ahead(&group.cursor, group.end, group.message.len > 0);
		result = ring_read(&group.cursor, &header, &payload);
		if (result == RING_READ_END)
			return true;
		if (result == RING_READ_NOTHING_YET)
			changed = wait_data();
		else
		{
			changed = apply_record(header, payload);
			release_space(false);
		}
	}
	return false;
}

/*
 * What was taken has been applied.  Takes more if there is nothing to do but to
 * wait for others.
 */
static bool
take_more(void)
{
	int			count = group.seq - group.first + 1;
	int			limit = Min(pg_atomic_read_u32(&writer.ring->group_limit),
							guc_max_commit_group());
	int			run = pg_atomic_read_u32(&writer.ring->run_limit);

	if (group.seq != group.end || count >= limit ||
		turn_is_oldest())
		return false;
	group.end += ring_take_more(writer.ring, writer.number, group.end,
								 Min(run, limit - count));
	group.last = group.end;
	return group.seq < group.last;
}

/* Is the transaction that has been applied the last one of its group? */
static bool
group_ends(void)
{
	RingTransaction *next;

	if (attempt_stage() == ATTEMPT_COMMITTED_TO || writer.detect_conflicts ||
		group.cursor.transaction->alone ||
		group.cursor.position -
		ring_transaction(writer.ring, group.first)->start >= writer.ring->size / GROUP_SHARE ||
		(group.seq == group.last && !take_more()))
		return true;

	next = ring_transaction(writer.ring, group.seq + 1);
	if (pg_atomic_read_u32(&next->complete) == 0)
		return true;
	pg_read_barrier();
	return next->alone;
}

/*
 * Applies transactions from "first" on, up to "last" at most, and commits them
 * together.
 */
static bool
attempt(void)
{
	order_begin(group.first, group.last);
	for (group.seq = group.first;; group.seq++)
	{
		/* What the server's code expects at BEGIN. */
		in_remote_transaction = false;
		if (!apply_changes())
			return false;
		if (group_ends())
			break;
	}
	fast_store_all();
	if (!order_settle())
		return false;
	commit_transaction();
	return true;
}

/*
 * Applies transactions that the writer has taken from the ring, in one or more
 * groups.
 */
void
commit_group_apply(uint64 first, int count)
{
	bool		grouped = !writer.detect_conflicts;
	bool		retrying = false;

	group.end = first + count - 1;
	writer_reread_subscription();
	writer_set_activity(WRITER_APPLYING);
	for (group.first = first; group.first <= group.end;)
	{
		AttemptStage stage = ATTEMPT_SPECULATIVE;

		group.last = grouped ? Min(group.end, group.first + guc_max_commit_group() - 1) :
			group.first;
		pg_atomic_write_u64(&writer.shared->seq, group.first);
		turn_begin(group.first);
		if (retrying)
			stage = ATTEMPT_GENERAL;
		else if (group.first == group.last && turn_is_oldest())
			stage = ATTEMPT_FINAL;
		retrying = !guard_attempt(stage, attempt, NULL);
		if (retrying)
		{
			grouped = false;
			compat_injection_point("weft-writer-retries");
			pg_atomic_fetch_add_u64(&writer.shared->misspeculations, 1);
			turn_wait_retry();
			continue;
		}
		pg_atomic_fetch_add_u64(&writer.shared->transactions, group.seq - group.first + 1);
		group.first = group.seq + 1;
	}
	writer_set_activity(WRITER_IDLE);
	pgstat_report_activity(STATE_IDLE, NULL);
}
