/*
 * wait.c
 *	  Sleeping and waking around a ring.
 *
 * All sleeping is on the process's own latch, and all of it follows one rule:
 * whoever wants to sleep first writes down what for, then a full barrier, then
 * looks once more whether it has happened; whoever makes it happen first makes
 * it so, then a full barrier, then looks who has written down that he sleeps.
 * One of the two always sees the other.  A latch set for nothing only costs a
 * turn of the loop.
 *
 * What is written down where:
 *	 a writer with nothing to do		its bit in idle_writers
 *	 a writer that wants seq committed	writer_awaits[own number]
 *	 a writer that wants more records	transaction->data_awaited
 *	 the leader that wants seq committed	leader_awaits
 *	 a stream writer without a stream	nothing: it is woken when it gets one
 *	 a stream writer that wants more		stream->data_awaited
 *	 a writer that waits for one of these	stream->waiter_procno
 *
 * The leader does not wake a writer for each transaction: it may think that one
 * who is awake will take it.  Whoever is awake may be kept by something else for
 * long, so before the leader sleeps for long, it looks whether that has happened,
 * and if not, wakes as many as there is work for.
 *
 * Writers wait for earlier transactions only, so among themselves no circle of
 * waits can come to be here.  But a waiting writer holds row and table locks,
 * and an earlier transaction may wait for those, directly or through sessions
 * of users; no deadlock detector sees that.  So a writer wakes up on a timeout
 * too, and asks give_up whether somebody must have its locks.  What else it has that
 * others may wait for, such as buffer pins, it gives back then ("rest").
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "postmaster/interrupt.h"
#include "ring/wait.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/spin.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/* How often a sleeping writer asks give_up, in milliseconds. */
#define GIVE_UP_CHECK_INTERVAL 10

/*
 * After so long, in microseconds, who has taken nothing is thought to be kept: if it is
 * seen to wait for something, and else after longer.  Who does not wait has not got a
 * processor, as a rule, and another one would not get it either.
 */
#define STUCK_TIME 1000
#define STUCK_TIME_RUNNING 20000

/* A commit takes some microseconds; sleeping and waking cost more. */
#define SPINS_BEFORE_SLEEP 100

static const char *const wait_event_names[] = {
	[RING_WAIT_LEADER_MAIN] = "WeftLeaderMain",
	[RING_WAIT_LEADER_SPACE] = "WeftLeaderSpace",
	[RING_WAIT_LEADER_DRAIN] = "WeftLeaderDrain",
	[RING_WAIT_WRITER_MAIN] = "WeftWriterMain",
	[RING_WAIT_WRITER_DATA] = "WeftWriterData",
	[RING_WAIT_WRITER_DEPENDENCY] = "WeftWriterDependency",
	[RING_WAIT_WRITER_COMMIT_ORDER] = "WeftWriterCommitOrder",
	[RING_WAIT_WRITER_RETRY] = "WeftWriterRetry",
	[RING_WAIT_WRITER_CLOCK] = "WeftWriterClock",
	[RING_WAIT_WRITER_STREAM] = "WeftWriterStream",
	[RING_WAIT_SUBSCRIPTION] = "WeftSubscription",
	[RING_WAIT_COPY_HELPERS] = "WeftCopyHelpers",
	[RING_WAIT_COPY_DATA] = "WeftCopyData",
};

/* Returns what to give to WaitLatch for one of our wait events. */
uint32
ring_wait_event(RingWaitEvent event)
{
	static uint32 cached[lengthof(wait_event_names)];

	if (cached[event] == 0)
		cached[event] = WaitEventExtensionNew(wait_event_names[event]);
	return cached[event];
}

static void
wake(int procno)
{
	if (procno != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

/* The writers with nothing to do that would take something, as a bit mask. */
static uint64
idle_writers(Ring *ring)
{
	uint32		active = pg_atomic_read_u32(&ring->active_writers);
	uint64		idle = pg_atomic_read_u64(&ring->idle_writers.value);

	return active < 64 ? idle & ((UINT64CONST(1) << active) - 1) : idle;
}

/*
 * Wakes one writer that has nothing to do; returns false if there is none.
 * Lowest number first, so that under little load the same writer, with warm
 * caches, does all.
 */
static bool
wake_idle_writer(Ring *ring)
{
	uint64		idle;

	while ((idle = idle_writers(ring)) != 0)
	{
		int			writer = pg_rightmost_one_pos64(idle);
		uint64		bit = UINT64CONST(1) << writer;

		if (pg_atomic_fetch_and_u64(&ring->idle_writers.value, ~bit) & bit)
		{
			wake(ring->writer_procno[writer]);
			return true;
		}
	}
	return false;
}

/*
 * How many transactions are there to be taken that nobody who is awake will take at
 * once?
 */
static uint64
unattended(Ring *ring, uint64 idle)
{
	uint64		awake = pg_atomic_read_u32(&ring->active_writers) - pg_popcount64(idle);
	uint64		attended = awake * pg_atomic_read_u32(&ring->run_limit);
	uint64		backlog = ring_backlog(ring);

	return backlog > attended ? backlog - attended : 0;
}

/*
 * Called when a transaction has been published: wakes a writer if those that
 * are awake have each enough to take already.
 */
void
ring_wake_for_backlog(Ring *ring)
{
	uint64		idle;

	pg_memory_barrier();
	if ((idle = idle_writers(ring)) != 0 && unattended(ring, idle) > 0)
		(void) wake_idle_writer(ring);
}

/* Does a writer that has something to do wait for something? */
static bool
any_writer_waits(Ring *ring, uint64 idle)
{
	int			active = pg_atomic_read_u32(&ring->active_writers);

	for (int i = 0; i < active; i++)
		if (!(idle & (UINT64CONST(1) << i)) &&
			ring->writer_procno[i] != INVALID_PROC_NUMBER &&
			GetPGProcByNumber(ring->writer_procno[i])->wait_event_info != 0)
			return true;
	return false;
}

/*
 * Called before the leader sleeps.  Who is awake will take what is there soon, but
 * may as well be waiting for something for long: if nothing has been taken for a
 * while, others are woken for all of it.  *progress is the caller's, for that.
 * Returns true if the leader should look again soon.
 */
bool
ring_wake_before_sleep(Ring *ring, RingProgress *progress)
{
	uint64		limit = pg_atomic_read_u32(&ring->run_limit);
	uint64		taken;
	uint64		idle;
	uint64		wanted;
	TimestampTz now;
	TimestampTz since;
	bool		stuck;

	pg_memory_barrier();
	if (ring_backlog(ring) == 0 || (idle = idle_writers(ring)) == 0)
		return false;

	now = GetCurrentTimestamp();
	taken = pg_atomic_read_u64(&ring->taken.value);
	if (taken != progress->taken)
	{
		progress->taken = taken;
		progress->time = now;
	}
	since = now - progress->time;
	stuck = since >= STUCK_TIME_RUNNING ||
		(since >= STUCK_TIME && any_writer_waits(ring, idle));
	wanted = stuck ? ring_backlog(ring) : (unattended(ring, idle) + limit - 1) / limit;
	while (wanted-- > 0 && wake_idle_writer(ring))
		;
	return !stuck;
}

/* Wakes the writer of a transaction if it waits for more of it. */
void
ring_wake_reader(Ring *ring, RingTransaction *transaction)
{
	pg_memory_barrier();
	if (pg_atomic_read_u32(&transaction->data_awaited) != 0)
	{
		pg_atomic_write_u32(&transaction->data_awaited, 0);
		wake(ring->writer_procno[transaction->writer]);
	}
}

/* Tells the writers to end as soon as they have nothing to do. */
void
ring_stop(Ring *ring)
{
	pg_atomic_write_u32(&ring->stop, 1);
	pg_memory_barrier();
	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
		wake(ring->writer_procno[i]);
}

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

/* Wakes those of "count" writers from a number on that wait for seq "last". */
static void
wake_waiting(Ring *ring, int first, int count, uint64 last)
{
	for (int i = first; i < first + count; i++)
	{
		uint64		awaited = pg_atomic_read_u64(&ring->writer_awaits[i]);

		if (awaited != 0 && awaited <= last)
			wake(ring->writer_procno[i]);
	}
}

/*
 * Records that the calling writer has committed the transactions from first to
 * last, which must be the oldest ones, and wakes whoever waits for that.
 */
void
ring_commit(Ring *ring, uint64 first, uint64 last, XLogRecPtr local_end)
{
	uint64		awaited;

	Assert(ring_committed(ring) == first - 1);
	for (uint64 seq = first; seq <= last; seq++)
		ring_transaction(ring, seq)->local_end = local_end;
	pg_write_barrier();
	pg_atomic_write_u64(&ring->committed.value, last);
	pg_memory_barrier();

	wake_waiting(ring, 0, ring->num_writers, last);
	wake_waiting(ring, WEFT_MAX_WRITERS,
				 pg_atomic_read_u32(&ring->num_stream_writers), last);
	awaited = pg_atomic_read_u64(&ring->leader_awaits);
	if (awaited != 0 && awaited <= last)
	{
		pg_atomic_write_u64(&ring->leader_awaits, 0);
		wake(ring->leader_procno);
	}
}

/* Returns false if the timeout, in milliseconds, is over; -1: no timeout. */
static bool
writer_sleep(long timeout, uint32 wait_event)
{
	int			events = WL_LATCH_SET | WL_EXIT_ON_PM_DEATH;
	int			occurred;

	if (timeout >= 0)
		events |= WL_TIMEOUT;
	occurred = WaitLatch(MyLatch, events, timeout, wait_event);
	if (occurred & WL_LATCH_SET)
		ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	return (occurred & WL_TIMEOUT) == 0;
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
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		if ((seq = ring_take(ring, waiter->writer, count)) != 0)
			return seq;

		pg_atomic_fetch_or_u64(&ring->idle_writers.value, bit);
		pg_memory_barrier();
		seq = ring_take(ring, waiter->writer, count);
		if (seq == 0 && !ring_stopping(ring))
			timed_out = !writer_sleep(timeout, ring_wait_event(RING_WAIT_WRITER_MAIN));
		pg_atomic_fetch_and_u64(&ring->idle_writers.value, ~bit);

		if (seq != 0 || timed_out || ring_stopping(ring))
			return seq;
	}
}

/* Are the writers to end? */
bool
ring_stopping(Ring *ring)
{
	return pg_atomic_read_u32(&ring->stop) != 0;
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

	for (int spins = 0; spins < SPINS_BEFORE_SLEEP; spins++)
	{
		if (ring_committed(ring) >= seq)
		{
			pg_read_barrier();
			return true;
		}
		pg_spin_delay();
	}

	pg_atomic_write_u64(&ring->writer_awaits[waiter->writer], seq);
	for (;;)
	{
		pg_memory_barrier();
		done = ring_committed(ring) >= seq;
		if (done || waiter->give_up(waiter->arg))
			break;
		if (!writer_sleep(GIVE_UP_CHECK_INTERVAL, wait_event))
			waiter->rest();
	}
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

	if (!oldest)
		pg_atomic_write_u64(&ring->writer_awaits[waiter->writer], cursor->seq - 1);
	pg_atomic_write_u32(&transaction->data_awaited, 1);
	pg_memory_barrier();
	if (pg_atomic_read_u64(&transaction->end) == cursor->position &&
		pg_atomic_read_u32(&transaction->complete) == 0 &&
		oldest == (ring_committed(ring) == cursor->seq - 1))
	{
		if (waiter->give_up(waiter->arg))
		{
			pg_atomic_write_u64(&ring->writer_awaits[waiter->writer], 0);
			return false;
		}
		if (!writer_sleep(GIVE_UP_CHECK_INTERVAL,
						  ring_wait_event(RING_WAIT_WRITER_DATA)))
			waiter->rest();
	}
	pg_atomic_write_u64(&ring->writer_awaits[waiter->writer], 0);
	return true;
}

/*
 * Wakes the writer of a streamed transaction if there is more to read, or its state
 * has changed.
 */
void
ring_wake_stream_writer(Ring *ring, StreamShared *stream)
{
	pg_memory_barrier();
	if (pg_atomic_read_u32(&stream->data_awaited) != 0)
	{
		pg_atomic_write_u32(&stream->data_awaited, 0);
		wake(ring->writer_procno[pg_atomic_read_u32(&stream->writer)]);
	}
}

/*
 * Waits until the calling stream writer is given a streamed transaction; returns
 * its index from 0 on, or -1 if it is to end, or the timeout, in milliseconds, is
 * over.
 */
int
ring_wait_stream(RingWaiter *waiter, WriterShared *shared, long timeout)
{
	for (;;)
	{
		uint32		stream;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		pg_memory_barrier();
		stream = pg_atomic_read_u32(&shared->stream);
		if (stream != 0)
			return (int) stream - 1;
		if (ring_stopping(waiter->ring) ||
			!writer_sleep(timeout, ring_wait_event(RING_WAIT_WRITER_MAIN)))
			return -1;
	}
}

/*
 * Waits until there may be more to read of a streamed transaction than up to a
 * position, or its state has changed, or some time has passed.  Returns false if
 * give_up said to stop.
 */
bool
ring_wait_stream_data(RingWaiter *waiter, StreamShared *stream, uint64 position)
{
	pg_atomic_write_u32(&stream->data_awaited, 1);
	pg_memory_barrier();
	if (pg_atomic_read_u64(&stream->written) == position &&
		pg_atomic_read_u32(&stream->state) == STREAM_APPLYING)
	{
		if (waiter->give_up(waiter->arg))
			return false;
		if (!writer_sleep(GIVE_UP_CHECK_INTERVAL,
						  ring_wait_event(RING_WAIT_WRITER_DATA)))
			waiter->rest();
	}
	return true;
}

/*
 * Asks the writer of a streamed transaction to finish or to discard it, and waits
 * until it has; returns what has become of it.  The caller holds no locks.
 */
StreamState
ring_wait_stream_writer(RingWaiter *waiter, StreamShared *stream, StreamState asked)
{
	uint32		state = STREAM_APPLYING;

	stream->waiter_procno = MyProcNumber;
	if (pg_atomic_compare_exchange_u32(&stream->state, &state, asked))
		ring_wake_stream_writer(waiter->ring, stream);
	while ((state = pg_atomic_read_u32(&stream->state)) == asked)
		(void) writer_sleep(-1, ring_wait_event(RING_WAIT_WRITER_STREAM));
	pg_read_barrier();
	return state;
}

/* Sets the state that a stream writer leaves its transaction in; it is not its own then. */
void
ring_report_stream(StreamShared *stream, StreamState state)
{
	int			waiter;

	pg_memory_barrier();
	/* Who waits has written this down before it has asked. */
	waiter = pg_atomic_exchange_u32(&stream->state, state) == STREAM_APPLYING ?
		INVALID_PROC_NUMBER : stream->waiter_procno;
	wake(waiter);
}
