/*
 * wake.c
 *	  Waking those that sleep around a ring.
 *
 * The head of wait.c has the rule that sleepers and wakers follow, and lists where each
 * sleeper writes down what it waits for.
 *
 * The leader does not wake a writer for each transaction: it assumes that a writer that
 * is awake will take it.  But an awake writer may be blocked for long.  Therefore, before
 * the leader sleeps for long, it checks whether the backlog has been taken; if not, it
 * wakes as many idle writers as there is work for.
 */
#include "postgres.h"

#include "port/pg_bitutils.h"
#include "ring/wake.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

/*
 * If no transaction has been taken for this long, in microseconds, the leader assumes
 * that the awake writers are blocked: for STUCK_TIME if one of them is seen to wait for
 * something, else for STUCK_TIME_RUNNING.  A writer that is not waiting is usually just
 * not scheduled, and another one would not get a processor either.
 */
#define STUCK_TIME 1000
#define STUCK_TIME_RUNNING 20000

/* Sets the latch of a process; INVALID_PROC_NUMBER stands for none. */
void
ring_wake_process(int procno)
{
	if (procno != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

/* The idle writers that may take something, as a bit mask. */
static uint64
idle_writers(Ring *ring)
{
	uint32		active = pg_atomic_read_u32(&ring->active_writers);
	uint64		idle = pg_atomic_read_u64(&ring->idle_writers.value);

	return active < 64 ? idle & ((UINT64CONST(1) << active) - 1) : idle;
}

/*
 * Wakes one idle writer; returns false if there is none.  The lowest number goes first,
 * so that under light load the same writer, with warm caches, does all the work.
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
			ring_wake_process(ring->writer_procno[writer]);
			return true;
		}
	}
	return false;
}

/* How many transactions of the backlog will no awake writer take with its next run? */
static uint64
unattended(Ring *ring, uint64 idle)
{
	uint64		awake = pg_atomic_read_u32(&ring->active_writers) - pg_popcount64(idle);
	uint64		attended = awake * pg_atomic_read_u32(&ring->run_limit);
	uint64		backlog = ring_backlog(ring);

	return backlog > attended ? backlog - attended : 0;
}

/*
 * Called when a transaction has been published: wakes a writer if those that are awake
 * each have enough to take already.
 */
void
ring_wake_for_backlog(Ring *ring)
{
	uint64		idle;

	pg_memory_barrier();
	if ((idle = idle_writers(ring)) != 0 && unattended(ring, idle) > 0)
		(void) wake_idle_writer(ring);
}

/* Is a writer that is not idle waiting for something? */
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
 * Called before the leader sleeps.  The awake writers will usually take the backlog
 * soon, but may be blocked for long.  If nothing has been taken for a while, the leader
 * wakes other writers for all of it.  The caller keeps *progress between calls.  Returns
 * true if the leader should look again soon.
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
		ring_wake_process(ring->writer_procno[transaction->writer]);
	}
}

/* Wakes those of "count" writers from number "first" on that wait for seq "last". */
static void
wake_waiting(Ring *ring, int first, int count, uint64 last)
{
	for (int i = first; i < first + count; i++)
	{
		uint64		awaited = pg_atomic_read_u64(&ring->writer_awaits[i]);

		if (awaited != 0 && awaited <= last)
			ring_wake_process(ring->writer_procno[i]);
	}
}

/* Called when "committed" has become "last": wakes all that wait for that. */
void
ring_wake_committed(Ring *ring, uint64 last)
{
	uint64		awaited;

	pg_memory_barrier();
	wake_waiting(ring, 0, ring->num_writers, last);
	wake_waiting(ring, WEFT_MAX_WRITERS,
				 pg_atomic_read_u32(&ring->num_stream_writers), last);
	awaited = pg_atomic_read_u64(&ring->leader_awaits);
	if (awaited != 0 && awaited <= last)
	{
		pg_atomic_write_u64(&ring->leader_awaits, 0);
		ring_wake_process(ring->leader_procno);
	}
}

/* Wakes all writers, stream writers included, whatever they wait for. */
void
ring_wake_all_writers(Ring *ring)
{
	pg_memory_barrier();
	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
		ring_wake_process(ring->writer_procno[i]);
}
