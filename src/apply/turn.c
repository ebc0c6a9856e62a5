/*
 * turn.c
 *	  The commit order: whose turn it is, and who gives way to whom.
 *
 * Actors: the leader; W1 with transaction T1 and W2 with T2, where T1 comes before T2; S1, a
 * stream writer; U, a user's session.
 *
 * W2 holds the locks of what it has applied of T2 while it waits for T1 to be committed.
 * The server's deadlock detector does not know of that wait.  It knows only waits for
 * heavyweight locks ("lock" below).  Every other wait is one for a latch.  This is who may
 * wait for whom:
 *
 *	 who			waits for			how
 *	 writer			earlier writers		latch: their commit, in or out of its turn
 *	 writer			leader				latch: more of its transaction
 *	 writer			stream writer		latch: to finish or discard; holds no locks then
 *	 writer			anybody				lock; SPECULATIVE_LOCK_TIMEOUT at most, unless
 *										it is final, and therefore the oldest
 *	 stream writer	leader				latch: more of its transaction
 *	 stream writer	writers				latch: what its block needs (SPOOL_AFTER)
 *	 stream writer	anybody				lock; SPECULATIVE_LOCK_TIMEOUT at most
 *	 writer			other members'		latch: a schema change that is still to come
 *					writers				(schema_wait.c); the oldest only, holds no locks then,
 *										unless it is committed to
 *	 writer			other members'		latch: a schema change that has locked a table in the
 *					writers				node group (gate.c); gives up if anybody waits for it
 *	 leader			writers				latch: space, or that nothing is in flight;
 *										holds no locks then
 *	 leader			stream writer		latch: to discard; holds no locks then
 *	 leader			sync worker			latch: that it has caught up, in the server's
 *										apply loop
 *	 leader			anybody				lock: what the server's apply loop applies, or a
 *										catalog
 *	 leader			parallel worker		lock, and the other way round; see deadlock 5
 *	 sync worker	leader				latch: how far to catch up; holds no locks then
 *	 sync worker	its helpers			latch; they are one group of locks with it
 *	 sync worker	anybody				lock
 *	 user			anybody				lock
 *	 user			leader, sync worker	latch: that they end (DROP SUBSCRIPTION)
 *
 * "Anybody" includes writers and the leader of another subscription.
 *
 * A process that is told to end does so, whatever it waits for, and the leader ends its
 * writers (receive/writers.c).  Any other cycle that the detector does not see contains a wait
 * for a latch, by a writer or stream writer W that holds locks meanwhile.  From W the chain
 * leads, along the commit order, to the oldest transaction or to the leader.  (The leader
 * comes before the oldest transaction if it applies something itself.  Then nothing is
 * in flight, and no stream writer gets more.)  If neither of the two waits for a lock, and the
 * leader does not wait for a sync worker, then they go on, and so does everybody behind
 * them; nothing is lost but some time of a user.  If one of them does wait, it may wait for
 * W in the end.
 *
 * Therefore a writer or stream writer W checks, at intervals, who waits for a lock that it
 * holds:
 *	 - a writer of the same ring with an earlier transaction: W yields at once;
 *	 - one with a later transaction: W does not yield;
 *	 - the leader, which applies something itself: W yields at once;
 *	 - anybody else: W yields if the oldest transaction or the leader waits as above.
 * A streamed transaction counts as later than all others until it has ended.
 *
 * To yield, W rolls back, waits until its transaction is the oldest, and applies it again from
 * its beginning.  It holds no lock while it waits, and once its transaction is the oldest, it
 * waits here for the leader only.  A stream writer leaves its transaction to an ordinary
 * writer instead.
 *
 * Possible deadlocks, and how each ends:
 *	 1. W1 waits for a lock of W2, and W2 for T1 to be committed.  W2 yields.
 *	 2. W1 waits for a lock of U, U for a lock of W2, and W2 for T1 to be committed.  W2 sees
 *		that U waits for it while the oldest transaction waits for a lock, and yields.
 *	 3. The leader waits for a lock of S1, or for a sync worker that does, and S1 waits for
 *		the leader to receive more.  S1 yields.
 *	 4. T1 is the oldest and committed to (attempt.c), so W1 never yields.  If W1 waits here, then
 *		for the leader to receive more of T1, and the leader waits for no lock then, except
 *		on a catalog.  One cycle is left: U has locked a catalog of the server exclusively,
 *		and waits for a table that T1 has changed.  U's lock_timeout ends it.
 *	 5. The server's parallel apply workers are a part of the leader as far as the detector is
 *		concerned: they and the leader tell each other, by locks, for whom they wait.  That
 *		would not hold if the leader waited for a writer while they are at work.
 *		Therefore no transaction goes into the ring while there are any, and none is given
 *		to them while there are writers (receive/streams.c).
 *
 * VACUUM and others wait for buffer pins and for old snapshots, without a timeout of
 * Weft's.  Therefore a writer that sleeps between two changes gives these back
 * (change_rest).  A change that has met a conflict keeps them until it is its turn
 * (conflict/conflict_apply.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "apply/attempt.h"
#include "apply/turn.h"
#include "apply/writer.h"
#include "compat.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/wait_event.h"
#include "wait_event.h"

/* A streamed transaction is later than any seq until it has ended. */
#define FIRST_OF_STREAM PG_UINT64_MAX

typedef struct Turn
{
	RingWaiter	waiter;
	uint64		first;			/* transaction of the group at hand */
} Turn;

/* A global: the server's wait loops and callbacks ask whose turn it is. */
static Turn turn;

/* Returns the number of the writer that a process is, or -1. */
static int
find_writer(int procno)
{
	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
		if (writer.ring->writer_procno[i] == procno)
			return i;
	return -1;
}

static uint64
writer_seq(int number)
{
	return shmem_writer_seq(writer.subscription, number);
}

/* The place in the commit order; that of a streamed transaction is known once it ends. */
static uint64
own_seq(void)
{
	return turn.first == FIRST_OF_STREAM ? writer_seq(writer.number) : turn.first;
}

/*
 * Does a process wait for a lock, for a schema change that has locked a table in the node group (gate.c), or for others that it was
 * in a deadlock with (step_back.c)?
 */
static bool
waits(PGPROC *proc)
{
	return proc->waitStatus == PROC_WAIT_STATUS_WAITING ||
		proc->wait_event_info == wait_event_id(WEFT_WAIT_GATE) ||
		proc->wait_event_info == wait_event_id(WEFT_WAIT_WRITER_STEP_BACK);
}

/*
 * Does the oldest transaction wait for others, or for a schema change (schema_wait.c)?  Reads its state without a lock, since the
 * caller asks repeatedly.
 */
static bool
oldest_waits(void)
{
	uint64		oldest = ring_committed(writer.ring) + 1;

	/* A process that brings the schema may wait for locks of later writers. */
	if (pg_atomic_read_u32(&writer.subscription->schema_waits) != 0)
		return true;
	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
	{
		int			procno = writer.ring->writer_procno[i];

		/* A streamed transaction has two writers. */
		if (procno != INVALID_PROC_NUMBER && writer_seq(i) == oldest &&
			waits(GetPGProcByNumber(procno)))
			return true;
	}
	return false;
}

/* Does the leader wait for a lock, or for a sync worker that may wait for one? */
static bool
leader_waits(void)
{
	PGPROC	   *leader = GetPGProcByNumber(writer.ring->leader_procno);

	return leader->waitStatus == PROC_WAIT_STATUS_WAITING ||
		leader->wait_event_info == WAIT_EVENT_LOGICAL_SYNC_STATE_CHANGE;
}

static bool
must_yield_to(PGPROC *proc)
{
	int			procno = GetNumberFromPGProc(proc);
	int			number = find_writer(procno);

	if (number >= 0)
		return writer_seq(number) < own_seq();
	return procno == writer.ring->leader_procno || oldest_waits() || leader_waits();
}

/* Does a process to which this writer must yield wait for this lock? */
static bool
wanted(LOCK *lock)
{
	dlist_iter	iter;

	dclist_foreach(iter, &lock->waitProcs)
	{
		if (must_yield_to(dlist_container(PGPROC, COMPAT_WAIT_LINK, iter.cur)))
			return true;
	}
	return false;
}

/* Does any process wait for this lock? */
static bool
awaited(LOCK *lock)
{
	return !dclist_is_empty(&lock->waitProcs);
}

/* Does a test hold for a lock of this process? */
static bool
test_locks(bool (*test) (LOCK *lock))
{
	bool		result = false;

	for (int i = 0; i < NUM_LOCK_PARTITIONS && !result; i++)
	{
		dlist_iter	iter;
		LWLock	   *partition = LockHashPartitionLockByIndex(i);

		/*
		 * A lock that this process holds by the server's fast path is entered
		 * here by whoever wants it, before waiting for it.  If that happens
		 * just after this check, the next one sees it.
		 */
		if (dlist_is_empty(&MyProc->myProcLocks[i]))
			continue;

		LWLockAcquire(partition, LW_SHARED);
		dlist_foreach(iter, &MyProc->myProcLocks[i])
		{
			PROCLOCK   *held = dlist_container(PROCLOCK, procLink, iter.cur);

			if (held->holdMask != 0 && test(held->tag.myLock))
			{
				result = true;
				break;
			}
		}
		LWLockRelease(partition);
	}
	return result;
}

/*
 * Must the writer give up its locks?  Called at intervals while it waits, and while a stream
 * writer applies.
 */
bool
turn_must_yield(void)
{
	return IsTransactionState() && attempt_stage() != ATTEMPT_COMMITTED_TO && test_locks(wanted);
}

/* Does anybody wait for a lock of this writer? */
bool
turn_blocks_others(void)
{
	return IsTransactionState() && test_locks(awaited);
}

static bool
give_up(void *arg)
{
	return turn_must_yield();
}

/*
 * Called once in a writer; "rest" gives back what the writer has while it sleeps with a
 * transaction open, except for locks.
 */
void
turn_init(RingRest rest)
{
	turn.waiter.ring = writer.ring;
	turn.waiter.writer = writer.number;
	turn.waiter.give_up = give_up;
	turn.waiter.rest = rest;
}

/* Returns what waits outside of the commit order need. */
RingWaiter *
turn_waiter(void)
{
	return &turn.waiter;
}

/* The writer is going to apply a group that begins with a transaction. */
void
turn_begin(uint64 first)
{
	turn.first = first;
}

/* The writer is going to apply a streamed transaction, before its turn. */
void
turn_begin_stream(void)
{
	turn.first = FIRST_OF_STREAM;
}

/* Is the writer applying a streamed transaction before its turn? */
bool
turn_of_stream(void)
{
	return turn.first == FIRST_OF_STREAM;
}

/* Are all transactions before the group committed? */
bool
turn_is_oldest(void)
{
	return ring_committed(writer.ring) == turn.first - 1;
}

static bool
wait_committed(uint64 seq, WriterActivity activity, WeftWaitEvent wait_event)
{
	bool		result;

	writer_set_activity(activity);
	result = ring_wait_committed(&turn.waiter, seq, wait_event_id(wait_event));
	writer_set_activity(WRITER_APPLYING);
	return result;
}

/*
 * Waits until all transactions before the group are committed.  Returns false if
 * somebody needs the writer's locks.
 */
bool
turn_wait_oldest(void)
{
	if (turn_is_oldest())
	{
		pg_read_barrier();
		return true;
	}
	pg_atomic_fetch_add_u64(&writer.shared->order_waits, 1);
	return wait_committed(turn.first - 1, WRITER_WAITING_FOR_COMMIT_ORDER,
						  WEFT_WAIT_WRITER_COMMIT_ORDER);
}

/*
 * Waits until an earlier transaction, and therefore all before it, is committed; for one
 * of the same group, until all before the group are.  Returns false if somebody needs the
 * writer's locks.
 */
bool
turn_wait_dependency(uint64 seq)
{
	pg_atomic_fetch_add_u64(&writer.shared->dependency_waits, 1);
	return wait_committed(Min(seq, turn.first - 1), WRITER_WAITING_FOR_DEPENDENCY,
						  WEFT_WAIT_WRITER_DEPENDENCY);
}

/*
 * After an attempt was rolled back, waits until its transaction is the oldest.  The
 * writer holds no locks that anybody could want.
 */
void
turn_wait_retry(void)
{
	while (!wait_committed(turn.first - 1, WRITER_RETRYING, WEFT_WAIT_WRITER_RETRY))
		;
}
