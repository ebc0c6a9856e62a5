/*
 * concurrent_yield.c
 *	  A worker for a schema change yields to a later one.
 *
 * Actors, as in the head of concurrent.c: worker B, which executes statement P and holds its subscription's lock; writer
 * W, which waits for that lock to execute the later statement S; session R on the subscriber.
 *
 * B waits for other sessions: P without CONCURRENTLY would not wait for all of these.  If R is one that B waits for, and keeps
 * it waiting for long, it would halt the whole stream.  R may also wait for S, by weft.wait_for_subscription() for
 * instance.  This would be a deadlock that the server cannot see.  Therefore B looks every LOOK_INTERVAL, by a timer, whether
 *
 *	 - W waits for the lock,
 *	 - and B waits for another lock, for which W would not have to wait.
 *
 * The second is so in three cases:
 *
 * 1. CREATE INDEX CONCURRENTLY waits, in its last phase, until all snapshots that are older than the index are gone.  R may
 *	  have nothing to do with P's table.  In all other phases, statements wait for transactions that have locks on
 *	  P's table.  There B does not yield: W would wait for R as well, and all who write to the table for W.
 *
 * 2. W does not need P, but a statement behind P.  It says so by the mode in which it waits for the lock.
 *
 * 3. S has a group lock, which W, or before it the gate's worker, holds on P's table.  If B has not locked the table before,
 *	  it waits for W.  That would be a deadlock: B has looked for one before there was one, so W would be canceled.
 *	  Writers on all members wait for S, so B does not hold it up for others either.  W says so as in case 2.
 *
 * If it has found both YIELD_LOOKS times in a row, it cancels its statement.  To abort the transaction releases the lock.
 * W is in the lock's queue, so it gets the lock before B, which cleans up later, and before any other worker.  If P
 * is complete while B decides to yield, then either it is committed, and W finds it gone, or the transaction aborts that
 * makes the index valid and removes P from the table, and W finds P as it was before.  B does not yield while it builds.
 *
 * The decision is B's alone, so it does not matter whether B's leader still runs, or for which subscription W waits.
 *
 * The timer's handler must not take locks.  It reads the mask of awaited modes in the server's shared entry for B's lock,
 * which exists as long as B holds the lock.
 */
#include "postgres.h"

#include "commands/progress.h"
#include "ddl/concurrent.h"
#include "ddl/concurrent_yield.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/backend_progress.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

/* A session that waits for the stream should not wait long for this; many short snapshots end before. */
#define LOOK_INTERVAL 100		/* ms */
#define YIELD_LOOKS 10

/* The lock that this process holds, or NULL. */
static LOCK *volatile held = NULL;

/* How many times in a row has it been found in the way? */
static volatile int looks = 0;

static volatile sig_atomic_t yielded = false;

/* Is CREATE INDEX CONCURRENTLY in the phase in which it waits for older snapshots? */
static bool
in_last_phase(void)
{
	volatile PgBackendStatus *status = MyBEEntry;

	return status != NULL &&
		status->st_progress_command == PROGRESS_COMMAND_CREATE_INDEX &&
		status->st_progress_param[PROGRESS_CREATEIDX_PHASE] == PROGRESS_CREATEIDX_PHASE_WAIT_3;
}

/* Does a writer wait for this process, which waits for what the writer would not have to wait for? */
static bool
is_in_the_way(void)
{
	volatile LOCK *lock = held;
	LOCKMASK	awaited = lock ? lock->waitMask : 0;

	return awaited != 0 && MyProc->waitLock != NULL &&
		((awaited & LOCKBIT_ON(CONCURRENT_IMPATIENT)) != 0 || in_last_phase());
}

/* The timer's handler. */
static void
look(void)
{
	if (yielded || !is_in_the_way())
	{
		looks = 0;
		return;
	}
	if (++looks < YIELD_LOOKS)
		return;
	yielded = true;
	QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

/* Returns the shared entry of a lock that this process holds. */
static LOCK *
find_lock(const LOCKTAG *tag)
{
	uint32		hash = LockTagHashCode(tag);
	LOCK	   *result = NULL;
	dlist_iter	iterator;

	LWLockAcquire(LockHashPartitionLock(hash), LW_SHARED);
	dlist_foreach(iterator, &MyProc->myProcLocks[LockHashPartition(hash)])
	{
		PROCLOCK   *each = dlist_container(PROCLOCK, procLink, iterator.cur);

		if (memcmp(&each->tag.myLock->tag, tag, sizeof(LOCKTAG)) == 0)
			result = each->tag.myLock;
	}
	LWLockRelease(LockHashPartitionLock(hash));
	return result;
}

/* From here on, the worker, which holds the subscription's lock, may yield. */
void
concurrent_yield_start(Oid subid)
{
	static TimeoutId timer = MAX_TIMEOUTS;
	LOCKTAG		tag;

	/* The phases are shown only with this. */
	SetConfigOption("track_activities", "on", PGC_SUSET, PGC_S_OVERRIDE);
	if (timer == MAX_TIMEOUTS)
		timer = RegisterTimeout(USER_TIMEOUT, look);
	concurrent_lock_tag(subid, &tag);
	looks = 0;
	held = find_lock(&tag);
	enable_timeout_every(timer, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOOK_INTERVAL),
						 LOOK_INTERVAL);
}

/* It does not yield any more. */
void
concurrent_yield_stop(void)
{
	held = NULL;
}

/* Has it decided to yield? */
bool
concurrent_yielded(void)
{
	return yielded;
}
