/*
 * pause.c
 *	  Pauses of the leader, and what it knows to be committed.
 *
 * The leader waits for three things: for the socket to its publisher, for space in the
 * ring, and for transactions to commit.  Each time it also waits for its latch, which
 * writers and signals set.  In full flow it naps instead of waiting for the socket.
 *
 * Nobody may wait for the leader while it pauses.  Therefore, before each pause, it
 * collects what is committed, lets stream writers read everything that has arrived,
 * sends feedback, and wakes a writer for what is in the ring.
 *
 * Possible deadlocks:
 *
 * 1. The leader waits for space in the ring, and writer W1, which has the oldest
 *	  transaction, waits for more of it.  Therefore the leader publishes what it has
 *	  appended before it waits (transaction.c), and W1 releases space as it applies.
 *
 * 2. The leader waits for a commit or for space, and the publisher waits for an answer
 *	  to a keepalive that the leader does not read.  Therefore the leader sends its
 *	  position unasked when a pause without socket times out.
 *
 * 3. The leader waits for a lock on a table, or for a user.  It never does
 *	  (relations.c).
 *
 * Writers wait for the leader only to get more of a transaction, or for another one.
 *
 * "Drained" means that nothing is in flight AND that everything committed has been
 * collected: feedback.c has the local end of each commit.  Both are necessary.  The
 * server's apply loop takes everything that it was not told about for flushed; if it ran
 * with a commit not yet collected, the publisher could be told that this one is flushed
 * while it is not.  The order of the two checks matters: first nothing is in flight,
 * then what is committed is collected.
 */
#include "postgres.h"

#include "compat.h"
#include "guc.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/walwriter.h"
#include "receive/feedback.h"
#include "receive/leader_ring.h"
#include "receive/led_subscription.h"
#include "receive/pause.h"
#include "receive/reception.h"
#include "receive/sampler.h"
#include "receive/stream_set.h"
#include "receive/writers.h"
#include "ring/wait.h"
#include "ring/wake.h"
#include "storage/latch.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/*
 * Nap length in full flow.  Long enough to receive several transactions at once, short
 * enough not to show as lag.
 */
#define NAP 250					/* us */

/* A pause while the ring has something that a writer should have taken by now. */
#define SHORT_PAUSE 1L			/* ms */

/* Any other pause, if no flush is pending. */
#define LONG_PAUSE 1000L		/* ms */

static RingProgress progress;	/* of the writers, as of the last pause */

/* Accounts for what the writers have committed. */
void
pause_collect(void)
{
	Ring	   *ring = leader_ring.producer.ring;
	RingTransaction *transaction = NULL;
	uint64		committed;

	if (ring == NULL)
		return;
	committed = ring_committed(ring);
	pg_read_barrier();
	while (leader_ring.collected < committed)
	{
		transaction = ring_transaction(ring, ++leader_ring.collected);
		feedback_committed(transaction->end_lsn, transaction->local_end);
	}
	stream_set_collect();
	if (transaction)
	{
		pg_atomic_write_u64(&led.shared->applied_lsn, transaction->end_lsn);
		pg_atomic_write_u64(&led.shared->applied_time, transaction->commit_time);
		leader_ring_show_used();
	}
}

/*
 * Is nothing in flight, and is everything committed collected?  Only then may the
 * server's apply loop run (see the head of this file).
 */
bool
pause_drained(void)
{
	compat_injection_point("weft-leader-drained");
	if (leader_ring_in_flight())
		return false;
	pause_collect();
	return true;
}

/*
 * As the server's apply loop does: asks the publisher for a sign of life, and ends if
 * there is none.
 */
static void
check_timeout(void)
{
	TimestampTz now;
	bool		ping;

	if (wal_receiver_timeout <= 0)
		return;
	now = GetCurrentTimestamp();
	if (TimestampDifferenceExceeds(reception.received_time, now, wal_receiver_timeout))
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("terminating logical replication worker due to timeout")));
	ping = !reception.ping_sent &&
		TimestampDifferenceExceeds(reception.received_time, now, wal_receiver_timeout / 2);
	if (ping)
	{
		feedback_send(reception.conn, reception.received_lsn, true, true);
		reception.ping_sent = true;
	}
}

/*
 * Makes sure that nobody waits for the leader while it pauses.  Returns true if the pause
 * should be short.
 */
static bool
prepare(void)
{
	pause_collect();
	writers_check();
	stream_set_flush();
	feedback_send(reception.conn, reception.received_lsn, false, false);
	reception_show();
	sampler_now(GetCurrentTimestamp());
	reception.begun_since_pause = 0;
	if (leader_ring.producer.ring == NULL)
		return false;
	leader_ring_show_used();
	return ring_wake_before_sleep(leader_ring.producer.ring, &progress);
}

/*
 * Waits for the latch, for the socket if one is given, or for the timeout.  Returns what
 * has occurred.
 */
static int
wait_for_events(pgsocket socket, long timeout, uint32 wait_event)
{
	static WaitEventSet *set = NULL;
	WaitEvent	occurred;

	if (socket == PGINVALID_SOCKET)
		return WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, wait_event);

	/* Kept: to create a set costs more than to wait. */
	if (set == NULL)
	{
		set = CreateWaitEventSet(NULL, 3);
		AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
		AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
		AddWaitEventToSet(set, WL_SOCKET_READABLE, socket, NULL, NULL);
	}
	if (WaitEventSetWait(set, timeout, &occurred, 1, wait_event) == 0)
		return WL_TIMEOUT;
	return occurred.events;
}

/*
 * Sleeps until the socket, if one is given, is readable, or a transaction is committed,
 * or it is time to do something else.
 */
void
pause_sleep(pgsocket socket, uint64 awaited_seq, WeftWaitEvent event)
{
	pause_sleep_at_most(LONG_PAUSE, socket, awaited_seq, event);
}

/*
 * The leader is not listening, so silence means nothing.  The publisher may be waiting for an
 * answer to a question that the leader has not read.
 */
static void
answer_unasked(bool timed_out)
{
	static TimestampTz answered = 0;
	TimestampTz now = GetCurrentTimestamp();

	reception.received_time = now;
	if (!timed_out || !TimestampDifferenceExceeds(answered, now, WalWriterDelay))
		return;
	feedback_send(reception.conn, reception.received_lsn, true, false);
	answered = now;
}

/* The same, for up to a number of milliseconds. */
void
pause_sleep_at_most(long limit, pgsocket socket, uint64 awaited_seq, WeftWaitEvent event)
{
	Ring	   *ring = leader_ring.producer.ring;
	bool		short_pause = prepare();
	long		timeout = feedback_flush_pending() ? WalWriterDelay : LONG_PAUSE;
	long		delay;
	int			occurred;

	if (short_pause)
		timeout = SHORT_PAUSE;
	else if (limit < timeout)
	{
		timeout = limit;
		short_pause = true;
	}
	if (feedback_withheld(reception.conn, &delay))
		timeout = Min(timeout, delay);

	if (ring)
		ring_await_commit(ring, awaited_seq);
	if (ring == NULL || ring_committed(ring) < awaited_seq)
	{
		occurred = wait_for_events(socket, timeout, wait_event_id(event));
		if (occurred & WL_LATCH_SET)
			ResetLatch(MyLatch);
		if (socket == PGINVALID_SOCKET)
			answer_unasked((occurred & WL_TIMEOUT) && !short_pause);
		else if (occurred & WL_TIMEOUT)
			check_timeout();
	}
	if (ring)
		ring_await_commit(ring, 0);

	CHECK_FOR_INTERRUPTS();
	guc_reload_if_requested();
	pause_collect();
	writers_check();
}

/*
 * Pauses though the socket may be readable at once.  In full flow, waking the leader for
 * each message costs the publisher's process and the leader more than reading it does.
 */
void
pause_nap(void)
{
	(void) prepare();
	pgstat_report_wait_start(wait_event_id(WEFT_WAIT_LEADER_MAIN));
	pg_usleep(NAP);
	pgstat_report_wait_end();
}

/* Waits until a transaction, and so all before it, is committed and collected. */
void
pause_drain(uint64 seq)
{
	while (ring_committed(leader_ring.producer.ring) < seq)
		pause_sleep(PGINVALID_SOCKET, seq, WEFT_WAIT_LEADER_DRAIN);
	pause_collect();
}
