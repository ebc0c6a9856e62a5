/*
 * feedback.c
 *	  What the publisher is told about progress.
 *
 * The publisher removes WAL before the flush position that it is told, and never sends it
 * again.  Therefore this position must not pass a transaction whose local commit record is
 * not on disk.  Writers commit asynchronously.  The leader learns two positions of each
 * committed transaction: its end on the publisher, and the end of its local commit
 * record.  It may report the former once the latter is flushed.
 *
 * A transaction that writes nothing has no commit record, and is as durable as everything
 * before it.  If the server's apply loop has applied what is before it, then the leader
 * does not know the end of that commit record, because the loop tells nobody.  In this case
 * the leader waits for the current end of the local WAL to be flushed.
 *
 * Two pairs of positions are enough, however many transactions there are: the pair that is
 * awaited, and the newest one, which becomes the awaited one when that is flushed.
 *
 * Three things make the leader flush, instead of leaving that to the WAL writer, which does it
 * every wal_writer_delay:
 *
 * 1. The subscription's synchronous_commit.  If it asks for that, the leader also waits for this
 *	  server's own synchronous standbys, whoever has flushed the WAL here.
 *
 * 2. The publisher counts the walsender among its synchronous standbys; the output plugin
 *	  says so (publish/batch_format.h).  Then sessions wait there.
 *
 * 3. The leader has been idle for weft.flush_delay.  Nobody waits, as far as the leader
 *	  knows, but it cannot know: the publisher may have no plugin that would tell.
 *
 * In the first two cases the leader flushes at every pause at which a commit is not on disk yet:
 * one flush for everything that was committed during the previous one.  In the third case it
 * does so only when drained, and only if that many milliseconds have passed without another
 * commit.  Therefore traffic without such gaps costs no flush, and other traffic at most one for
 * each gap.
 *
 * Why the leader: the WAL writer, if it is woken, writes, but it does not flush before
 * wal_writer_delay is over.  If a writer flushed, then transactions behind would wait for
 * it, because it is in their turn, and the leader would have to be woken once more, to tell
 * the publisher.  The leader receives nothing while it flushes; but whoever waits for the
 * flush sends nothing, either, and what arrives meanwhile is read in one go.  Leaders of
 * several subscriptions share flushes, as committing sessions do: XLogFlush() returns at once
 * if somebody else has flushed that far.
 *
 * Flushing in cases 2 and 3 is not necessary for correctness.  It changes only when
 * GetFlushRecPtr(), to which every report is compared, advances.
 *
 * The server's apply loop begins with the replication origin's position, and takes that for
 * flushed.  The leader before this one may have ended before it was, or while it waited for
 * synchronous standbys.  Therefore the leader flushes, and waits, before streaming begins.
 *
 * A transaction that the server's apply loop has committed, or one of its parallel apply
 * workers, ends before the insert position that the leader sees when the loop calls again.
 * What is prepared, and its end, is flushed by the server itself.
 *
 * What is flushed is only claimed.  Everything that is reported, by whomever, goes through
 * send_status(), and confirmation.c says up to where this server's standbys have it, too.  While it
 * withholds something, the leader looks again in every pause (feedback_withheld()), because the
 * server's apply loop does not repeat a report.  The positions that are written and applied are
 * reported as they are: the publisher keeps WAL by the flush position alone.
 * send_status() also ends the process if a wait for a synchronous standby may have been given up.
 *
 * While transactions are in flight, the leader sends feedback itself; otherwise the
 * server's apply loop does.  The loop keeps its own account, which
 * feedback_synchronize_native() brings up to date.  That account knows nothing about the
 * feedback that the leader has sent; feedback_forward() makes sure that no position goes
 * backwards.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "confirmation.h"
#include "guc.h"
#include "local_wal.h"
#include "message_builder.h"
#include "miscadmin.h"
#include "receive/feedback.h"
#include "receive/led_subscription.h"
#include "replication/syncrep.h"
#include "replication/worker_internal.h"
#include "seam/seam.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "utils/timestamp.h"

/* Standby status update: 'r', write, flush, apply, time, reply requested. */
#define STATUS_LENGTH (1 + 8 + 8 + 8 + 8 + 1)

typedef struct CommitPosition
{
	XLogRecPtr	remote_end;
	XLogRecPtr	local_end;
} CommitPosition;

/* Of transactions that writers have committed. */
static CommitPosition awaited;	/* not known to be flushed, if valid */
static CommitPosition newest;
static XLogRecPtr flushed;		/* the newest remote_end that is flushed */
static XLogRecPtr durable;		/* as synchronous_commit asks: up to this
								 * local_end */
static bool native_is_behind;	/* newest is not in the server's account */

/* Has the server's apply loop committed anything since the newest of these? */
static bool native_committed;

/* Everything that the server's apply loop has committed ends before this. */
static XLogRecPtr native_end;

/* The publisher counts this subscription as a synchronous standby. */
static bool publisher_waits;

/* The leader is idle: since when, and up to where it would flush. */
static XLogRecPtr idle_end;
static TimestampTz idle_since;

/* What the publisher was told, and when. */
static struct
{
	XLogRecPtr	write;
	XLogRecPtr	flush;
	XLogRecPtr	apply;
	TimestampTz time;
}			reported;

/* The server's apply loop has committed a transaction, or may have. */
void
feedback_native_committed(void)
{
	native_committed = true;
	native_end = local_wal_end();
}

/* Does the publisher count this subscription as a synchronous standby?  Said by each batch. */
void
feedback_publisher_waits(bool waits)
{
	publisher_waits = waits;
}

/*
 * Notes that a writer has committed a transaction.  Called in commit order.  local_end is
 * invalid if nothing was written.
 */
void
feedback_committed(XLogRecPtr remote_end, XLogRecPtr local_end)
{
	if (native_committed)
	{
		native_committed = false;
		local_end = Max(local_end, local_wal_end());
		XLogSetAsyncXactLSN(local_end);
	}
	newest.remote_end = Max(newest.remote_end, remote_end);
	newest.local_end = Max(newest.local_end, local_end);
	native_is_behind = true;
	if (XLogRecPtrIsInvalid(awaited.remote_end))
		awaited = newest;
}

/* Checks how far the local WAL is flushed. */
static void
check_flush(void)
{
	XLogRecPtr	local_flush;

	if (XLogRecPtrIsInvalid(awaited.remote_end))
		return;
	local_flush = GetFlushRecPtr(NULL);
	if (newest.local_end <= local_flush)
	{
		flushed = newest.remote_end;
		awaited.remote_end = InvalidXLogRecPtr;
	}
	else if (awaited.local_end <= local_flush)
	{
		flushed = awaited.remote_end;
		awaited = newest;
	}
}

/* Has a writer committed anything that is not known to be flushed? */
bool
feedback_flush_pending(void)
{
	check_flush();
	return !XLogRecPtrIsInvalid(awaited.remote_end);
}

/* Returns the end of everything that has been committed for this subscription. */
static XLogRecPtr
committed_end(void)
{
	return Max(newest.local_end, native_end);
}

/*
 * Makes what writers have committed as durable as the subscription's synchronous_commit, or the
 * publisher, asks for.  They have left that to the leader.  Called before anything is reported.
 */
static void
flush_as_asked(void)
{
	XLogRecPtr	end = newest.local_end;

	if (end <= durable)
		return;
	if (synchronous_commit > SYNCHRONOUS_COMMIT_OFF || publisher_waits)
		XLogFlush(end);
	if (synchronous_commit > SYNCHRONOUS_COMMIT_LOCAL_FLUSH)
	{
		HOLD_INTERRUPTS();
		SyncRepWaitForLSN(end, true);
		RESUME_INTERRUPTS();

		/*
		 * If it was cancelled, then, as natively, somebody has decided that
		 * it is not needed.
		 */
		CHECK_FOR_INTERRUPTS();
	}
	if (synchronous_commit > SYNCHRONOUS_COMMIT_OFF)
		durable = end;
}

/*
 * Called once in a leader, before the publisher is told anything: makes everything that earlier
 * leaders have committed durable, as the subscription's synchronous_commit asks for.
 */
void
feedback_start(void)
{
	newest.local_end = local_wal_end();
	XLogFlush(newest.local_end);
	flush_as_asked();
}

/*
 * Called when drained, and nothing has arrived.  If it is time to, flushes what is committed, and
 * returns false.  Returns false, too, if there is nothing to flush, or if that is left to the
 * WAL writer.  Otherwise sets *delay to the milliseconds after which to call again, unless
 * something arrives, and returns true.
 */
bool
feedback_flush_when_idle(long *delay)
{
	XLogRecPtr	end = committed_end();
	TimestampTz now;

	if (end <= GetFlushRecPtr(NULL) || (weft_flush_delay < 0 && !publisher_waits))
		return false;
	if (!publisher_waits && weft_flush_delay > 0)
	{
		now = GetCurrentTimestamp();
		if (idle_end != end)
		{
			idle_end = end;
			idle_since = now;
		}
		*delay = TimestampDifferenceMilliseconds(now,
												 TimestampTzPlusMilliseconds(idle_since, weft_flush_delay));
		if (*delay > 0 && *delay <= weft_flush_delay)
			return true;
	}
	XLogFlush(end);
	return false;
}

/* Shows others what is confirmed, and what is withheld. */
static void
show_confirmation(void)
{
	static ConfirmationStatus shown;
	ConfirmationStatus status;

	confirmation_status(&status);
	if (led.shared == NULL ||
		(status.confirmed == shown.confirmed && status.withheld_since == shown.withheld_since &&
		 status.lack.problem == shown.lack.problem && strcmp(status.lack.slot, shown.lack.slot) == 0))
		return;
	shown = status;
	SpinLockAcquire(&led.shared->mutex);
	led.shared->confirmation = status;
	SpinLockRelease(&led.shared->mutex);
}

/*
 * If the postmaster dies, or this process is told to end, the server gives up waiting for a synchronous
 * standby, and goes on as if the standby had everything.  That must not be reported: the standby may be
 * promoted.
 */
static void
end_if_wait_was_given_up(void)
{
	CHECK_FOR_INTERRUPTS();
	if (synchronous_commit > SYNCHRONOUS_COMMIT_LOCAL_FLUSH && !PostmasterIsAliveInternal())
		proc_exit(1);
}

static void
send_status(WalReceiverConn *conn, XLogRecPtr received, XLogRecPtr flush,
			XLogRecPtr apply, TimestampTz now, bool request_reply)
{
	char		memory[STATUS_LENGTH];
	MessageBuilder status;

	end_if_wait_was_given_up();
	reported.write = Max(reported.write, received);
	reported.flush = Max(reported.flush, confirmation_claim(flush));
	reported.apply = Max(reported.apply, apply);

	message_start(&status, memory, sizeof(memory), 'r');
	message_uint64(&status, reported.write);
	message_uint64(&status, reported.flush);
	message_uint64(&status, reported.apply);
	message_uint64(&status, now);
	message_byte(&status, request_reply);
	(seam_native->walrcv_send) (conn, status.data, status.length);
	reported.time = now;
	show_confirmation();
}

/*
 * Is something flushed that standbys do not have yet?  If so, sets *delay to the milliseconds after
 * which to call again.  If they have got something meanwhile, tells the publisher.
 */
bool
feedback_withheld(WalReceiverConn *conn, long *delay)
{
	bool		result = confirmation_withheld(delay);

	if (confirmation_claim(InvalidXLogRecPtr) > reported.flush && wal_receiver_status_interval > 0)
		send_status(conn, InvalidXLogRecPtr, InvalidXLogRecPtr, newest.remote_end,
					GetCurrentTimestamp(), false);
	else
		show_confirmation();
	return result;
}

/*
 * While transactions are in flight, sends feedback if there is progress, if it is time
 * to, or if "force" is set.  "received" is the end of what has arrived.
 */
void
feedback_send(WalReceiverConn *conn, XLogRecPtr received, bool force, bool request_reply)
{
	TimestampTz now;

	if (!force && wal_receiver_status_interval <= 0)
		return;

	flush_as_asked();
	check_flush();
	now = GetCurrentTimestamp();
	if (force || confirmation_claim(flushed) > reported.flush || newest.remote_end > reported.apply ||
		TimestampDifferenceExceeds(reported.time, now, wal_receiver_status_interval * 1000))
		send_status(conn, received, flushed, newest.remote_end, now, request_reply);
}

/*
 * Flushes everything that is committed, and says so to the publisher.  What the server's apply
 * loop has committed is flushed, too, but only the loop says so.
 */
void
feedback_flush(WalReceiverConn *conn, XLogRecPtr received)
{
	flush_as_asked();
	XLogFlush(local_wal_end());
	check_flush();
	send_status(conn, received, flushed, newest.remote_end, GetCurrentTimestamp(), false);
}

/*
 * In place of walrcv_send: sends what the server's apply loop sends.  If something of it is
 * withheld, the loop must not sleep, but let the leader look again.
 */
void
feedback_forward(WalReceiverConn *conn, const char *buffer, int length)
{
	uint64		fields[4];
	long		delay;

	if (length != STATUS_LENGTH || buffer[0] != 'r')
	{
		(seam_native->walrcv_send) (conn, buffer, length);
		return;
	}
	memcpy(fields, buffer + 1, sizeof(fields));
	send_status(conn, pg_ntoh64(fields[0]), pg_ntoh64(fields[1]),
				pg_ntoh64(fields[2]), pg_ntoh64(fields[3]),
				buffer[STATUS_LENGTH - 1] != 0);
	if (feedback_withheld(conn, &delay))
		SetLatch(MyLatch);
}

/*
 * Enters into the server's account what the writers have committed.  Called when drained,
 * before the server's apply loop continues.
 *
 * With "durable", flushes it, so that the loop reports all of it to the publisher before
 * it does anything else.  This matters while tables are synchronized: the loop may mark a
 * table READY and restart.  The publisher should not send transactions again then of which
 * changes were skipped because of that table's state.  (If it does, because the report is
 * lost, then the position that handover.c stores with READY makes sure that nothing is
 * applied twice.)
 */
void
feedback_synchronize_native(bool durable)
{
	if (!native_is_behind)
		return;
	if (durable)
		XLogFlush(newest.local_end);
	flush_as_asked();
	store_flush_position(newest.remote_end, newest.local_end);
	native_is_behind = false;
}
