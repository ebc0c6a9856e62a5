/*
 * wait.c
 *	  Waiting around a ring.
 *
 * Every process sleeps on its own latch, and both sides follow one rule.  The sleeper S
 * writes down what it waits for, issues a full barrier, and checks once more whether that
 * has happened.  The waker K makes it happen, issues a full barrier, and checks who has
 * written down that it waits.  Either K sees S's note, or S sees that it has happened.  A
 * latch that is set without need only costs one turn of a loop.
 *
 * Where a sleeper writes down what it waits for:
 *	 a writer with nothing to take			its bit in idle_writers
 *	 a writer that wants seq committed		writer_awaits[own number]
 *	 a writer that wants more records		transaction->data_awaited
 *	 the leader that wants seq committed	leader_awaits
 *	 a stream writer without a stream		nothing: the leader wakes it when it assigns one
 *	 a stream writer that wants more		stream->data_awaited
 *	 a writer that waits for one of these	stream->waiter_procno
 *
 * Deadlocks:
 * 1. Among writers: a writer waits for earlier transactions only, so no cycle consists
 *	  of the waits in this file alone.
 * 2. Through locks: writer W2 waits here for transaction T1 while it holds row and table
 *	  locks, and W1, which applies T1, waits for one of these locks, directly or through
 *	  the session of a user.  The server's deadlock detector does not see W2's wait.
 *	  Therefore W2 wakes up every GIVE_UP_CHECK_INTERVAL and asks give_up whether an
 *	  earlier transaction needs its locks (apply/turn.c).
 * 3. Through buffer pins and the like: others may wait for them, too.  A writer that
 *	  has slept that long releases them by "rest".
 */
#include "postgres.h"

#include <sched.h>

#include "compat.h"
#include "guc.h"
#include "miscadmin.h"
#include "ring/wait.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/spin.h"
#include "wait_event.h"

/* How often a sleeping writer asks give_up, in milliseconds. */
#define GIVE_UP_CHECK_INTERVAL 10

/*
 * Before a writer sleeps until its turn, it looks SPINS times whether it has come, which takes
 * some microseconds, as a commit does.  If it can only be NEAR commits away, and the oldest
 * transaction's writer is not waiting for anything, then the turn will come within the time
 * of a small transaction.  To sleep and to be woken would take both processes longer than
 * that.  Therefore the writer looks YIELDS more times, and offers its processor to others
 * each time.
 */
#define SPINS 100
#define NEAR 4
#define YIELDS 50

/*
 * The leader wants its latch set once seq is committed; zero takes that back.
 * The caller then looks at ring_committed() before it sleeps.
 */
void
ring_await_commit(Ring *ring, uint64 seq)
{
	pg_atomic_write_u64(&ring->leader_awaits, seq);
	pg_memory_barrier();
}

/* Returns false if the timeout, in milliseconds, is over; -1: no timeout. */
bool
ring_writer_sleep(long timeout, uint32 wait_event)
{
	int			events = WL_LATCH_SET | WL_EXIT_ON_PM_DEATH;
	int			occurred;

	if (timeout >= 0)
		events |= WL_TIMEOUT;
	compat_injection_point("weft-writer-sleeps");
	occurred = WaitLatch(MyLatch, events, timeout, wait_event);
	if (occurred & WL_LATCH_SET)
		ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	return (occurred & WL_TIMEOUT) == 0;
}

/*
 * A writer with an open transaction sleeps for a moment.  Returns false, without having
 * slept, if give_up said to stop waiting.
 */
bool
ring_writer_doze(RingWaiter *waiter, uint32 wait_event)
{
	if (waiter->give_up(waiter->arg))
		return false;
	if (!ring_writer_sleep(GIVE_UP_CHECK_INTERVAL, wait_event))
		waiter->rest();
	return true;
}

/*
 * Waits for transactions to apply and takes a run of them.  Returns the seq of
 * the first and sets *count, or returns zero if the timeout, in milliseconds, is
 * over (-1: never), or the writer is to end.
 */
uint64
ring_wait_transactions(RingWaiter *waiter, long timeout, int *count)
{
	Ring	   *ring = waiter->ring;
	uint64		bit = UINT64CONST(1) << waiter->writer;

	for (;;)
	{
		uint64		seq;
		bool		timed_out = false;

		CHECK_FOR_INTERRUPTS();
		guc_reload_if_requested();

		if ((seq = ring_take(ring, waiter->writer, count)) != 0)
			return seq;

		pg_atomic_fetch_or_u64(&ring->idle_writers.value, bit);
		pg_memory_barrier();
		compat_injection_point("weft-writer-idle");
		seq = ring_take(ring, waiter->writer, count);
		if (seq == 0 && !ring_stopping(ring))
			timed_out = !ring_writer_sleep(timeout, wait_event_id(WEFT_WAIT_WRITER_MAIN));
		pg_atomic_fetch_and_u64(&ring->idle_writers.value, ~bit);

		if (seq != 0 || timed_out || ring_stopping(ring))
			return seq;
	}
}

/*
 * Is a transaction about to be committed: only a few are before it, and the writer of the
 * oldest one is at work?
 */
static bool
is_near(Ring *ring, uint64 seq)
{
	uint64		oldest = ring_committed(ring) + 1;
	int			number = ring_transaction(ring, oldest)->writer;
	int			procno = number < 0 ? INVALID_PROC_NUMBER : ring->writer_procno[number];

	return seq < oldest + NEAR && procno != INVALID_PROC_NUMBER &&
		GetPGProcByNumber(procno)->wait_event_info == 0;
}

/* Looks for a moment whether transaction seq is committed. */
static bool
spin_until_committed(Ring *ring, uint64 seq)
{
	for (int i = 0; i < SPINS; i++)
	{
		if (ring_committed(ring) >= seq)
			return true;
		pg_spin_delay();
	}
	for (int i = 0; i < YIELDS && is_near(ring, seq); i++)
	{
		sched_yield();
		if (ring_committed(ring) >= seq)
			return true;
	}
	return ring_committed(ring) >= seq;
}

/*
 * Waits until transaction seq is committed.  Returns false if give_up said to
 * stop waiting.
 */
bool
ring_wait_committed(RingWaiter *waiter, uint64 seq, uint32 wait_event)
{
	Ring	   *ring = waiter->ring;
	bool		done;

	if (spin_until_committed(ring, seq))
	{
		pg_read_barrier();
		return true;
	}

	pg_atomic_write_u64(&ring->writer_awaits[waiter->writer], seq);
	do
	{
		pg_memory_barrier();
		done = ring_committed(ring) >= seq;
	} while (!done && ring_writer_doze(waiter, wait_event));
	pg_atomic_write_u64(&ring->writer_awaits[waiter->writer], 0);
	return done;
}

/*
 * Waits until there may be more to read of a transaction, or it has become the
 * oldest, or some time has passed.  Returns false if give_up said to stop.
 */
bool
ring_wait_data(RingWaiter *waiter, RingCursor *cursor)
{
	Ring	   *ring = waiter->ring;
	RingTransaction *transaction = cursor->transaction;
	bool		oldest = ring_committed(ring) == cursor->seq - 1;
	bool		result = true;

	if (!oldest)
		pg_atomic_write_u64(&ring->writer_awaits[waiter->writer], cursor->seq - 1);
	pg_atomic_write_u32(&transaction->data_awaited, 1);
	pg_memory_barrier();
	if (pg_atomic_read_u64(&transaction->end) == cursor->position &&
		pg_atomic_read_u32(&transaction->complete) == 0 &&
		oldest == (ring_committed(ring) == cursor->seq - 1))
		result = ring_writer_doze(waiter, wait_event_id(WEFT_WAIT_WRITER_DATA));
	pg_atomic_write_u64(&ring->writer_awaits[waiter->writer], 0);
	return result;
}
