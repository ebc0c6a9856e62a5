/*
 * transaction.c
 *	  Applying transactions from the ring.
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

#include "access/twophase.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "compat.h"
#include "fast/fast.h"
#include "apply/look_ahead.h"
#include "apply/order.h"
#include "apply/stream_writer.h"
#include "apply/writer.h"
#include "conflict/remote_transaction.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "ring/stream_wait.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "wait_event.h"

/* A group is not continued behind such a share of the ring. */
#define GROUP_SHARE 64

/* A transaction that has read so much of the ring lets go of it if it can. */
#define RELEASE_SHARE 8			/* one eighth */

/*
 * So long a speculative transaction waits for a lock, in milliseconds.  It may
 * be a user's, held for hours, and an earlier transaction may need a lock of
 * ours meanwhile.
 */
#define SPECULATIVE_LOCK_TIMEOUT 1000

/*
 * So long a transaction that can be applied again waits for a lock before it
 * looks for a deadlock, in milliseconds.  To be chosen to end one costs it
 * little, while all others wait.
 */
#define DEADLOCK_CHECK_AFTER 100

/*
 * So many times longer than others a transaction that cannot go back waits
 * before it looks for a deadlock, which it would be chosen to end.
 */
#define COMMITTED_DEADLOCK_PATIENCE 10

/* The buffer for messages that come in pieces may stay as large as this. */
#define MESSAGE_KEPT (1024 * 1024)

static bool subscription_valid = true;

/* What our own limits take the place of, in milliseconds. */
static int	configured_lock_timeout;
static int	configured_deadlock_timeout;

/* Says which transaction an error is about where the server's code does not. */
static void
error_callback(void *arg)
{
	if (!change_in_progress())
		errcontext("applying remote transaction %u of subscription \"%s\", finished at %X/%X",
				   writer.remote_xid, MySubscription->name,
				   LSN_FORMAT_ARGS(writer.final_lsn));
}

static void
subscription_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	subscription_valid = false;
}

/* Forgets a message that came in pieces; memory for a long one is not kept. */
static void
reset_message(void)
{
	MemoryContext old;

	if (writer.message.data != NULL && writer.message.maxlen <= MESSAGE_KEPT)
	{
		resetStringInfo(&writer.message);
		return;
	}
	if (writer.message.data != NULL)
		pfree(writer.message.data);
	old = MemoryContextSwitchTo(ApplyContext);
	initStringInfo(&writer.message);
	MemoryContextSwitchTo(old);
}

/* Called once in a writer. */
void
transaction_init(void)
{
	reset_message();
	CacheRegisterSyscacheCallback(SUBSCRIPTIONOID, subscription_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHOID, subscription_changed, (Datum) 0);
}

/*
 * Reads the subscription again if it has changed.  What matters here is who
 * the changes are made as; the rest makes the leader start again, and us with
 * it.
 */
static void
reread_subscription(void)
{
	MemoryContext old;
	Subscription *subscription;

	AcceptInvalidationMessages();
	if (!subscription_valid)
	{
		subscription_valid = true;
		StartTransactionCommand();
		old = MemoryContextSwitchTo(ApplyContext);
		subscription = GetSubscription(MySubscription->oid, true);
		MemoryContextSwitchTo(old);
		if (subscription)
		{
			FreeSubscription(MySubscription);
			MySubscription = subscription;
		}
		CommitTransactionCommand();
	}

	/* A transaction to skip never comes here; the leader sees to it. */
	MySubscription->skiplsn = InvalidXLogRecPtr;
}

static void
set_activity(WriterActivity activity)
{
	pg_atomic_write_u32(&writer.shared->activity, activity);
}

/* Are all transactions before the one at hand, or its group, committed? */
bool
transaction_is_oldest(void)
{
	return ring_committed(writer.ring) == writer.first - 1;
}

/*
 * Waits until all transactions before the group are committed.  Returns false if
 * somebody needs our locks.
 */
bool
transaction_wait_oldest(void)
{
	bool		result;

	if (transaction_is_oldest())
	{
		pg_read_barrier();
		return true;
	}
	pg_atomic_fetch_add_u64(&writer.shared->order_waits, 1);
	set_activity(WRITER_WAITING_FOR_COMMIT_ORDER);
	result = ring_wait_committed(&writer.waiter, writer.first - 1,
								 wait_event_id(WEFT_WAIT_WRITER_COMMIT_ORDER));
	set_activity(WRITER_APPLYING);
	return result;
}

/*
 * Waits until an earlier transaction, and so all before it, is committed; for
 * one of our own group, until all before the group are.  Returns false if
 * somebody needs our locks.
 */
bool
transaction_wait_dependency(uint64 seq)
{
	bool		result;

	seq = Min(seq, writer.first - 1);
	pg_atomic_fetch_add_u64(&writer.shared->dependency_waits, 1);
	set_activity(WRITER_WAITING_FOR_DEPENDENCY);
	result = ring_wait_committed(&writer.waiter, seq,
								 wait_event_id(WEFT_WAIT_WRITER_DEPENDENCY));
	set_activity(WRITER_APPLYING);
	return result;
}

/*
 * The transaction at hand has become the oldest, and an error is its own from now
 * on.  It waits for locks as long as the configuration says.
 */
void
transaction_become_final(void)
{
	writer.final = true;
	LockTimeout = configured_lock_timeout;
}

/* The oldest transaction will not be applied from its beginning again. */
static void
commit_to_transaction(void)
{
	fast_store_all();
	transaction_become_final();
	if (!writer.committed_to)
		DeadlockTimeout = Min(configured_deadlock_timeout,
							  INT_MAX / COMMITTED_DEADLOCK_PATIENCE) *
			COMMITTED_DEADLOCK_PATIENCE;
	writer.committed_to = true;
}

/*
 * Lets the leader have the space of what we have read, if there is much of it
 * and we are the oldest.
 */
static void
release_space(bool waiting)
{
	RingTransaction *transaction = writer.cursor.transaction;
	uint64		base = Max(transaction->start, pg_atomic_read_u64(&transaction->consumed));
	uint64		read = writer.cursor.position - base;

	if (read == 0 || (!waiting && read < writer.ring->size / RELEASE_SHARE))
		return;
	if (writer.seq != writer.first || order_pending() || !transaction_is_oldest())
		return;
	commit_to_transaction();

	/* The leader writes there only after it has seen this. */
	pg_memory_barrier();
	pg_atomic_write_u64(&transaction->consumed, writer.cursor.position);
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
	set_activity(WRITER_WAITING_FOR_DATA);
	result = ring_wait_data(&writer.waiter, &writer.cursor);
	set_activity(WRITER_APPLYING);
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

	if (writer.broadcast.version < version && order_pending() && !order_settle())
		return false;
	while (broadcast_read(&writer.broadcast, version, &data, &length))
		change_relation(data, length);
	return true;
}

/* Applies one record; returns false if it came too early. */
static bool
apply_record(const RingRecordHeader *header, const char *payload)
{
	bool		whole = writer.message.len == 0 && !(header->flags & RING_MORE);
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
	switch (order_change(header, whole ? &change : NULL))
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
		appendBinaryStringInfo(&writer.message, payload, header->length);
		if (header->flags & RING_MORE)
			return true;
		change = row_change_read(writer.message.data, writer.message.len);
		change_apply(&change);
		reset_message();
	}
	else
		change_apply(&change);

	return true;
}

/* Prepares the local transaction, under the name by which the server finds it again. */
static void
prepare_local(StreamShared *stream)
{
	char		gid[GIDSIZE];

	compat_two_phase_gid(MySubscription->oid, pg_atomic_read_u32(&stream->xid),
						 gid, sizeof(gid));
	if (!IsTransactionBlock())
	{
		BeginTransactionBlock();
		CommitTransactionCommand();
	}
	if (!PrepareTransactionBlock(gid))
		elog(ERROR, "could not prepare transaction \"%s\"", gid);
	CommitTransactionCommand();
}

/*
 * Commits the local transaction, or prepares it if it is a streamed one that was
 * prepared.  Returns the end of its commit record; what is prepared is flushed.
 */
XLogRecPtr
transaction_commit_local(StreamShared *stream, XLogRecPtr end_lsn, TimestampTz commit_time)
{
	replorigin_session_origin_lsn = end_lsn;
	replorigin_session_origin_timestamp = commit_time;
	compat_injection_point("weft-writer-commits");
	fast_close();
	if (stream != NULL && stream->prepare)
		prepare_local(stream);
	else
	{
		if (IsTransactionBlock())
			EndTransactionBlock(false);
		CommitTransactionCommand();
	}
	compat_injection_point("weft-writer-committed");
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;
	in_remote_transaction = false;
	return XactLastCommitEnd;
}

/* Commits what has been applied: the transactions from "first" to "seq". */
static void
commit_transaction(void)
{
	RingTransaction *transaction = writer.cursor.transaction;
	StreamShared *stream = stream_of_ring();
	XLogRecPtr	local_end = InvalidXLogRecPtr;

	if (IsTransactionState())
		local_end = transaction_commit_local(stream, transaction->end_lsn,
											 transaction->commit_time);
	else if (stream != NULL)
		local_end = stream->local_end;
	in_remote_transaction = false;
	if (writer.detect_conflicts)
		conflict_committed();
	pg_atomic_write_u64(&writer.shared->remote_lsn, transaction->end_lsn);
	ring_commit(writer.ring, writer.first, writer.seq, local_end);
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

	ring_rewind(&writer.cursor, writer.ring, writer.seq);
	if (!catch_up(writer.cursor.transaction->broadcast))
		return false;
	reset_message();
	if (writer.cursor.transaction->stream != 0)
		return stream_apply_in_turn(stream_of_ring());

	while (changed)
	{
		RingReadResult result;

		look_ahead();
		result = ring_read(&writer.cursor, &header, &payload);
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
	int			count = writer.seq - writer.first + 1;
	int			limit = Min(pg_atomic_read_u32(&writer.ring->group_limit),
							guc_max_commit_group());
	int			run = pg_atomic_read_u32(&writer.ring->run_limit);

	if (writer.careful || writer.seq != writer.end || count >= limit ||
		transaction_is_oldest())
		return false;
	writer.end += ring_take_more(writer.ring, writer.number, writer.end,
								 Min(run, limit - count));
	writer.last = writer.end;
	return writer.seq < writer.last;
}

/* Is the transaction that has been applied the last one of its group? */
static bool
group_ends(void)
{
	RingTransaction *next;

	if (writer.committed_to || writer.detect_conflicts ||
		writer.cursor.transaction->alone ||
		writer.cursor.position -
		ring_transaction(writer.ring, writer.first)->start >= writer.ring->size / GROUP_SHARE ||
		(writer.seq == writer.last && !take_more()))
		return true;

	next = ring_transaction(writer.ring, writer.seq + 1);
	if (pg_atomic_read_u32(&next->complete) == 0)
		return true;
	pg_read_barrier();
	return next->alone;
}

/*
 * Applies transactions from "first" on, up to "last" at most, and commits them
 * together.
 */
static AttemptResult
attempt(void)
{
	order_begin();
	for (writer.seq = writer.first;; writer.seq++)
	{
		/* What the server's code expects at BEGIN. */
		in_remote_transaction = false;
		if (!apply_changes())
			return ATTEMPT_MISSPECULATED;
		if (group_ends())
			break;
	}
	fast_store_all();
	if (!order_settle())
		return ATTEMPT_MISSPECULATED;
	commit_transaction();
	return ATTEMPT_COMMITTED;
}

/*
 * Rolls an attempt back, and takes care that nothing of it is left in the
 * server's apply code either.
 */
static void
roll_back(void)
{
	replorigin_session_origin = InvalidRepOriginId;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;
	AbortOutOfAnyTransaction();
	in_remote_transaction = false;
	change_repair();
	change_forget_conflicts();
}

/* Ends this writer, and the leader with the error. */
static void
fail(ErrorData *error)
{
	failure_report(&writer.ring->failure, error);
	proc_exit(0);
}

/* Makes an attempt; an error is either reported or a misspeculation. */
static AttemptResult
guarded(AttemptResult (*attempt) (void))
{
	MemoryContext old = CurrentMemoryContext;
	ErrorContextCallback callback;
	AttemptResult result;

	callback.callback = error_callback;
	callback.previous = error_context_stack;
	replorigin_session_origin = writer.subscription->origin;
	change_keep_conflicts();
	conflict_attempt();
	fast_begin();

	PG_TRY();
	{
		error_context_stack = &callback;
		result = attempt();
	}
	PG_CATCH();
	{
		ErrorData  *error;
		bool		fast = fast_in_progress();

		HOLD_INTERRUPTS();
		error_context_stack = callback.previous;
		MemoryContextSwitchTo(ApplyContext);
		error = CopyErrorData();
		FlushErrorState();
		roll_back();
		RESUME_INTERRUPTS();

		if (writer.stream != NULL)
			stream_report(error);
		if (writer.committed_to ||
			(writer.final && !fast && error->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED &&
			 !conflict_may_retry(error->sqlerrcode)))
			fail(error);
		ereport(DEBUG1,
				(errmsg_internal("remote transaction %u was too early and is applied again: %s",
								 writer.remote_xid, error->message)));
		FreeErrorData(error);
		result = ATTEMPT_MISSPECULATED;
	}
	PG_END_TRY();

	error_context_stack = callback.previous;
	MemoryContextSwitchTo(old);
	return result;
}

/*
 * Limits how long the transaction waits for locks, before an attempt.
 */
static void
set_lock_limits(void)
{
	configured_lock_timeout = LockTimeout;
	configured_deadlock_timeout = DeadlockTimeout;
	DeadlockTimeout = Min(DeadlockTimeout, DEADLOCK_CHECK_AFTER);
	if (!writer.final && (LockTimeout == 0 || LockTimeout > SPECULATIVE_LOCK_TIMEOUT))
		LockTimeout = SPECULATIVE_LOCK_TIMEOUT;
}

/* Takes those limits back, after an attempt. */
static void
restore_lock_limits(void)
{
	DeadlockTimeout = configured_deadlock_timeout;
	LockTimeout = configured_lock_timeout;
}

/*
 * Makes an attempt to apply a transaction before its turn is known; rolled back if
 * it fails.
 */
AttemptResult
transaction_apply_early(AttemptResult (*attempt) (void))
{
	AttemptResult result;

	reread_subscription();
	set_activity(WRITER_APPLYING);
	writer.careful = writer.final = writer.committed_to = false;
	set_lock_limits();
	result = guarded(attempt);
	restore_lock_limits();
	if (result == ATTEMPT_MISSPECULATED)
		roll_back();
	set_activity(WRITER_IDLE);
	pgstat_report_activity(STATE_IDLE, NULL);
	return result;
}

/*
 * Applies transactions that the writer has taken from the ring, in one or more
 * groups.
 */
void
transaction_apply(uint64 first, int count)
{
	bool		grouped = !writer.detect_conflicts;

	writer.end = first + count - 1;
	reread_subscription();
	set_activity(WRITER_APPLYING);
	while (first <= writer.end)
	{
		AttemptResult result;

		writer.first = first;
		writer.last = grouped ? Min(writer.end, first + guc_max_commit_group() - 1) : first;
		pg_atomic_write_u64(&writer.shared->seq, first);
		writer.final = writer.first == writer.last && transaction_is_oldest();
		writer.committed_to = false;
		set_lock_limits();
		result = guarded(attempt);
		restore_lock_limits();
		if (result == ATTEMPT_COMMITTED)
		{
			pg_atomic_fetch_add_u64(&writer.shared->transactions,
									writer.seq - first + 1);
			first = writer.seq + 1;
			writer.careful = false;
			continue;
		}

		/* An attempt that gave up on its own has not been rolled back. */
		roll_back();
		grouped = false;
		compat_injection_point("weft-writer-retries");
		writer.careful = true;
		pg_atomic_fetch_add_u64(&writer.shared->misspeculations, 1);
		set_activity(WRITER_RETRYING);
		while (!ring_wait_committed(&writer.waiter, first - 1,
									wait_event_id(WEFT_WAIT_WRITER_RETRY)))
			;					/* we hold no locks that anybody could want */
		set_activity(WRITER_APPLYING);
	}
	set_activity(WRITER_IDLE);
	pgstat_report_activity(STATE_IDLE, NULL);
}
