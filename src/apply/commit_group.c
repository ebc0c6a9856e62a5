/*
 * commit_group.c
 *	  Reads transactions from the ring, and commits them in groups.
 *
 * Actors: the leader, which appends T1, T2, ... to the ring in the publisher's order;
 * writers W1 and W2, each of which takes runs of consecutive transactions.
 *
 * Groups.  While there is a backlog, consecutive transactions that W1 has taken may share
 * one local commit: they are a group.  That saves commits and waits for the commit order.
 * Readers still see only states that the publisher had.  A group ends
 *	 - before and after a transaction with a record that must run alone (RING_EXCLUSIVE);
 *	 - before a transaction that has not arrived completely;
 *	 - at the end of what W1 has taken, or at a certain size.  While it is not W1's turn
 *	   anyway, W1 takes more transactions instead of waiting;
 *	 - where commit timestamps are tracked: after a transaction that must be the last one
 *	   (group_times.c), and before one whose commit time is far from the first one's;
 *	 - where conflicts are detected: before a transaction for which W1 would have to wait
 *	   for the clock (conflict/version.c), since W1 holds locks by then.
 * The leader decides how many transactions a writer takes, which is a matter of speed
 * (receive/tuning.c).  How many may share a commit is a promise to the user, and kept here.
 *
 * The local commit has the commit time of the group's last transaction.  Where commit
 * timestamps are tracked, the own times of the rows of the others are stored in the same
 * local transaction (row_time.c).  Therefore conflicts end as they would with one commit for
 * each transaction.
 *
 * An attempt at a group of several transactions is never final (attempt.c).  If anything
 * goes wrong, W1 rolls the whole group back, and applies its transactions one by one.
 *
 * A deferred constraint would be checked in another state than the publisher's.  That does
 * not happen, since the triggers that check it either do not fire on a replica, or make
 * the transaction run alone.
 *
 * Becoming committed to.  T1 can become final in the middle, and unable to be applied from
 * its beginning again, in two cases:
 *	 - It has a record that must run alone.
 *	 - It is so long that the leader needs the space of what W1 has read.
 * (In the first case, W1 can still begin again if the record is a schema change, see attempt.c.)
 * In both, W1 first waits until all transactions before T1 are committed, or sees that
 * they are, and nothing has gone wrong with T1 so far.  T1 need not be applied again,
 * because everything that earlier transactions did is there.  If what T1 did before had
 * been in the way of an earlier T0, then T0's writer W0 would have waited for T1's locks, and
 * W1 would have yielded them to W0 (turn.c).  In a deadlock, the other processes get
 * time to be chosen (attempt.c).
 *
 * Possible deadlock: T1 is longer than the ring, the leader waits for space, and W1 waits for
 * more of T1.  Therefore W1 releases what it has read each time before it waits, if T1 is
 * the oldest transaction.  If T1 is not, the transactions before it are in the ring
 * completely.  They will be committed, and ring_wait_data() returns when they are.
 *
 * The end of a group from T1 to T2, in this order:
 *	 1. W1 waits until the transaction before T1 is committed.
 *	 2. W1 commits, which makes the changes visible and then releases the locks.
 *	 3. W1 reports that to the others (ring_commit).
 * If W1 dies before its commit record is written, the replication origin still stands before
 * T1; if it dies after that, the origin stands after T2.  In both cases the leader ends as
 * well, and the next leader asks for what comes after the origin.
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "access/xact.h"
#include "apply/attempt.h"
#include "apply/change.h"
#include "apply/column_filter.h"
#include "apply/commit_group.h"
#include "apply/guard.h"
#include "apply/local_transaction.h"
#include "apply/look_ahead.h"
#include "apply/member.h"
#include "apply/order.h"
#include "apply/schema_wait.h"
#include "apply/server_apply.h"
#include "apply/step_back.h"
#include "apply/stream_writer.h"
#include "apply/turn.h"
#include "apply/writer.h"
#include "compat.h"
#include "conflict/clock.h"
#include "conflict/remote_transaction.h"
#include "conflict/stored_times.h"
#include "fast/fast.h"
#include "group_times.h"
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

/* Globals, since an attempt (guard.h) is a function without an argument. */
static CommitGroup group;
static BroadcastReader broadcast;

/* Does this database have a table for the times of rows (row_time.c), as far as is known? */
static bool times_can_be_stored;

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
commit_to_transaction(bool for_good)
{
	/*
	 * An error of the fast path must still be a misspeculation.  What follows
	 * does not take it, and may have triggers.
	 */
	fast_close();
	attempt_commit_to(for_good);
}

/*
 * Releases the space of what has been read to the leader if the transaction is the oldest,
 * and if the leader may be waiting for it ("waiting") or it is a large share of the ring.
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
	commit_to_transaction(true);

	/* The leader overwrites the space only after it has seen this. */
	pg_memory_barrier();
	pg_atomic_write_u64(&transaction->consumed, group.cursor.position);
	SetLatch(&GetPGProcByNumber(writer.ring->leader_procno)->procLatch);
}

/*
 * Waits for more of the transaction.  It may return before there is any, since the leader
 * may be waiting for space, which can be released once the transaction is the oldest.
 * Returns false if somebody needs the writer's locks.
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

/* Takes in what the leader has broadcast up to a version.  Returns false if too early. */
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

/* Is the schema here that the next messages of the broadcast log name? */
static bool
schema_is_here(uint64 version)
{
	BroadcastReader reader = broadcast;
	const char *data;
	Size		length;

	while (broadcast_read(&reader, version, &data, &length))
		if (!schema_wait_relation(data, length))
			return false;
	return true;
}

/*
 * A record must run alone: waits for its turn, and commits itself to the transaction.  Returns
 * false if too early.
 */
static bool
run_alone(const RingRecordHeader *header, const char *payload)
{
	const char *message = group.message.len == 0 ? payload : group.message.data;
	bool		is_ddl = header->kind == RING_MESSAGE &&
		message[0] == LOGICAL_REP_MSG_MESSAGE;

	if (!order_settle())
		return false;
	if (header->kind == RING_BROADCAST ? !schema_is_here(header->number) :
		group.message.len == 0 && !schema_wait_change(payload, header->length))
		return false;
	compat_injection_point("weft-writer-alone");
	commit_to_transaction(!is_ddl);
	return true;
}

static void
apply_change(const RowChange *change)
{
	if (!schema_wait_ignores(change))
		change_apply(change);
}

/* Applies one record.  Returns false if too early. */
static bool
apply_record(const RingRecordHeader *header, const char *payload)
{
	bool		whole = group.message.len == 0 && !(header->flags & RING_MORE);
	RowChange	change;

	if ((header->flags & RING_EXCLUSIVE) && !run_alone(header, payload))
		return false;
	if (header->kind == RING_BROADCAST)
		return catch_up(header->number);

	if (whole)
		change = column_filter_read(payload, header->length);
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
		change = column_filter_read(group.message.data, group.message.len);
		apply_change(&change);
		reset_message();
	}
	else
		apply_change(&change);

	return true;
}

/*
 * Stores the times of rows that differ from the group's; and looks whether that will be
 * possible for the next group.
 */
static void
prepare_times(const RingTransaction *transaction)
{
	conflict_store_times(transaction->commit_time);
	times_can_be_stored = OidIsValid(row_time_table());
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
	{
		if (track_commit_timestamp)
			prepare_times(transaction);
		local_end = local_transaction_commit(prepare_xid, transaction->end_lsn,
											 transaction->commit_time);
	}
	else if (stream != NULL)
		local_end = stream->local_end;
	in_remote_transaction = false;
	pg_atomic_write_u64(&writer.shared->remote_lsn, transaction->end_lsn);
	ring_commit(writer.ring, group.first, group.seq, local_end);
}

/* Applies all changes of transaction "seq".  Returns false if too early. */
static bool
apply_changes(void)
{
	const RingRecordHeader *header;
	const char *payload;
	bool		changed = true;

	ring_rewind(&group.cursor, writer.ring, group.seq);
	member_next(group.seq);
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

/* May transactions share a commit? */
static bool
may_share(void)
{
	return guc_max_commit_group() > 1 && (!track_commit_timestamp || times_can_be_stored);
}

/*
 * Takes more transactions if everything taken has been applied and the writer would only
 * wait for its turn.
 */
static bool
take_more(void)
{
	int			count = group.seq - group.first + 1;
	int			limit = Min(pg_atomic_read_u32(&writer.ring->group_limit),
							guc_max_commit_group());
	int			run = pg_atomic_read_u32(&writer.ring->run_limit);

	if (group.seq != group.end || count >= limit || !may_share() || turn_is_oldest())
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

	if (attempt_stage() == ATTEMPT_COMMITTED_TO ||
		group.cursor.transaction->alone ||
		group.cursor.position -
		ring_transaction(writer.ring, group.first)->start >= writer.ring->size / GROUP_SHARE ||
		(group.seq == group.last && !take_more()))
		return true;

	next = ring_transaction(writer.ring, group.seq + 1);
	if (pg_atomic_read_u32(&next->complete) == 0)
		return true;
	pg_read_barrier();
	return next->alone || !group_times_may_go_on(next->commit_time) ||
		(writer.detect_conflicts && !clock_has_passed(next->commit_time));
}

/* Applies transactions from "first" on, up to "last" at most, and commits them together. */
static bool
attempt(void)
{
	order_begin(group.first, group.last);
	member_group(group.first, attempt_stage() == ATTEMPT_SPECULATIVE);
	for (group.seq = group.first;; group.seq++)
	{
		/* The server's code expects this at BEGIN. */
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

/* Applies transactions that the writer has taken from the ring, in one or more groups. */
void
commit_group_apply(uint64 first, int count)
{
	bool		grouped = may_share();
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
		schema_wait_begin(group.first);
		if (retrying)
			stage = ATTEMPT_GENERAL;
		else if (group.first == group.last && turn_is_oldest())
			stage = ATTEMPT_FINAL;
		if (!retrying)
			step_back_reset();
		retrying = !guard_attempt(stage, attempt, step_back_note);
		if (retrying)
		{
			grouped = false;
			compat_injection_point("weft-writer-retries");
			pg_atomic_fetch_add_u64(&writer.shared->misspeculations, 1);
			turn_wait_retry();
			step_back();
			schema_wait();
			continue;
		}

		/*
		 * No error of this may count as one of the attempt, which has
		 * committed.
		 */
		if (writer.detect_conflicts)
			conflict_committed();
		pg_atomic_fetch_add_u64(&writer.shared->transactions, group.seq - group.first + 1);
		group.first = group.seq + 1;
	}
	writer_set_activity(WRITER_IDLE);
	pgstat_report_activity(STATE_IDLE, NULL);
}
