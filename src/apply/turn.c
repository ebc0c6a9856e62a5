/*
 * turn.c
 *	  The commit order: whose turn it is, and who gives way to whom.
 *
 * A writer that waits for earlier transactions holds the locks of what it has
 * applied so far.  If an earlier transaction waits for one of them, neither
 * would ever go on: the wait for the commit order is not one that the server's
 * deadlock detector knows.  The same with sessions of users in between: the
 * oldest transaction waits for a user's lock, the user for ours.
 *
 * This is who may wait for whom.  "Lock" is a heavyweight lock, which the detector
 * knows; every other wait is one for a latch, which it does not.
 *
 *	 who			waits for			how
 *	 writer			earlier writers		latch: their commit, in or out of its turn
 *	 writer			leader				latch: more of its transaction
 *	 writer			stream writer		latch: to finish or discard; holds no locks then
 *	 writer			anybody				lock; SPECULATIVE_LOCK_TIMEOUT at most, unless
 *										it is final, and so the oldest
 *	 stream writer	leader				latch: more of its transaction
 *	 stream writer	writers				latch: what its block needs (SPOOL_AFTER)
 *	 stream writer	anybody				lock; SPECULATIVE_LOCK_TIMEOUT at most
 *	 leader			writers				latch: space, or that nothing is in flight;
 *										holds no locks then
 *	 leader			stream writer		latch: to discard; holds no locks then
 *	 leader			sync worker			latch: that it has caught up, in the server's loop
 *	 leader			anybody				lock: what the server's loop applies, or a
 *										catalog
 *	 leader			parallel worker		lock, and the other way round; see below
 *	 sync worker	leader				latch: how far to catch up; holds no locks then
 *	 sync worker	its helpers			latch; they are one group of locks with it
 *	 sync worker	anybody				lock
 *	 user			anybody				lock
 *	 user			leader, sync worker	latch: that they end (DROP SUBSCRIPTION)
 *
 * "Anybody" may be a writer or the leader of another subscription, too.
 *
 * Who is told to end does so, whatever it waits for, and the leader ends its writers
 * (receive/writers.c).  Any other circle that the detector does not see has a wait for a
 * latch in it, of a writer or stream writer that holds locks meanwhile.  From there the
 * chain leads, by the commit order, to the oldest transaction, or to the leader, which
 * is ahead of it if it applies something itself: nothing is in flight then, and no
 * stream writer gets more.  If neither of the two waits for a lock, nor the leader for a
 * sync worker, they go on, and so does everybody behind them, and nothing is lost but
 * some user's time.  If one of them does wait, it may be for us in the end.
 *
 * So a writer or stream writer looks, from time to time, who waits for a lock that it
 * holds:
 *	 - a writer of the same ring with an earlier transaction: give up at once;
 *	 - one with a later transaction: as it should be;
 *	 - the leader, which applies something itself: give up at once;
 *	 - anybody else: give up if the oldest transaction, or the leader, waits as above.
 * A streamed transaction is later than all others until it has ended.
 *
 * To give up is to roll back, wait until we are the oldest, and begin again: no
 * lock is held while waiting then, and the oldest waits here for the leader only.  A
 * stream writer leaves its transaction to a writer.
 *
 * A transaction that cannot go back ("committed to") never gives up: it is the oldest,
 * and if it waits here, then for the leader to receive more of it.  The leader waits for
 * no lock then, unless on a catalog.  So this circle is left: a user who has locked a
 * catalog of the server exclusively, and wants a table that such a transaction has
 * changed.  The user's lock_timeout ends it.
 *
 * The server's parallel apply workers are a part of the leader as far as the detector
 * is concerned: they tell each other with locks for whom they wait.  That would not
 * hold if the leader waited for a writer while they are at work.  So no transaction goes
 * into the ring while there are any, and none is given to them while there are writers
 * (receive/streams.c).
 *
 * Vacuum and the like wait for buffer pins, and for old snapshots, without a time-out
 * of Weft's, so whoever sleeps for long between two changes gives these back
 * (change_rest).  A change that has met a conflict keeps them until it is its turn
 * (conflict/apply.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "apply/attempt.h"
#include "apply/turn.h"
#include "apply/writer.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/wait_event.h"
#include "wait_event.h"

/* A streamed transaction is later than any seq until it has ended. */
#define FIRST_OF_STREAM PG_UINT64_MAX

static RingWaiter waiter;

/* The first transaction of the group at hand. */
static uint64 first_seq;

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

/* That of a streamed transaction is known only when it has ended. */
static uint64
own_seq(void)
{
	return first_seq == FIRST_OF_STREAM ? writer_seq(writer.number) : first_seq;
}

/*
 * Does the oldest transaction wait for a lock?  Its state is read without a
 * lock: whoever asks does so again and again.
 */
static bool
oldest_waits(void)
{
	uint64		oldest = ring_committed(writer.ring) + 1;

	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
	{
		int			procno = writer.ring->writer_procno[i];

		/* One that was streamed has two writers. */
		if (procno != INVALID_PROC_NUMBER && writer_seq(i) == oldest &&
			GetPGProcByNumber(procno)->waitStatus == PROC_WAIT_STATUS_WAITING)
			return true;
	}
	return false;
}

/* Does the leader wait for a lock, or for somebody who may wait for one? */
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

/* Does anybody whom we must yield to wait for this lock? */
static bool
wanted(LOCK *lock)
{
	dlist_iter	iter;

	dclist_foreach(iter, &lock->waitProcs)
	{
		if (must_yield_to(dlist_container(PGPROC, links, iter.cur)))
			return true;
	}
	return false;
}

/*
 * Must the writer give its locks up?  Asked while it waits, and now and then while a
 * stream writer applies.
 */
bool
turn_must_yield(void)
{
	bool		result = false;

	if (!IsTransactionState() || attempt_stage() == ATTEMPT_COMMITTED_TO)
		return false;

	for (int i = 0; i < NUM_LOCK_PARTITIONS && !result; i++)
	{
		dlist_iter	iter;
		LWLock	   *partition = LockHashPartitionLockByIndex(i);

		/*
		 * Somebody who wants a lock that we hold by the fast path enters it
		 * here first.  If that is missed, we look again soon.
		 */
		if (dlist_is_empty(&MyProc->myProcLocks[i]))
			continue;

		LWLockAcquire(partition, LW_SHARED);
		dlist_foreach(iter, &MyProc->myProcLocks[i])
		{
			PROCLOCK   *held = dlist_container(PROCLOCK, procLink, iter.cur);

			if (held->holdMask != 0 && wanted(held->tag.myLock))
			{
				result = true;
				break;
			}
		}
		LWLockRelease(partition);
	}
	return result;
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
	waiter.ring = writer.ring;
	waiter.writer = writer.number;
	waiter.give_up = give_up;
	waiter.rest = rest;
}

/* For waits outside of the commit order. */
RingWaiter *
turn_waiter(void)
{
	return &waiter;
}

/* The writer is going to apply a group that begins with a transaction. */
void
turn_begin(uint64 first)
{
	first_seq = first;
}

/* The writer is going to apply a streamed transaction, before its turn. */
void
turn_begin_stream(void)
{
	first_seq = FIRST_OF_STREAM;
}

/* Is the writer applying a streamed transaction before its turn? */
bool
turn_of_stream(void)
{
	return first_seq == FIRST_OF_STREAM;
}

/* Are all transactions before the group committed? */
bool
turn_is_oldest(void)
{
	return ring_committed(writer.ring) == first_seq - 1;
}

static bool
wait_committed(uint64 seq, WriterActivity activity, WeftWaitEvent wait_event)
{
	bool		result;

	writer_set_activity(activity);
	result = ring_wait_committed(&waiter, seq, wait_event_id(wait_event));
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
	return wait_committed(first_seq - 1, WRITER_WAITING_FOR_COMMIT_ORDER,
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
	return wait_committed(Min(seq, first_seq - 1), WRITER_WAITING_FOR_DEPENDENCY,
						  WEFT_WAIT_WRITER_DEPENDENCY);
}

/*
 * After an attempt was rolled back, waits until its transaction is the oldest.  The
 * writer holds no locks that anybody could want.
 */
void
turn_wait_retry(void)
{
	while (!wait_committed(first_seq - 1, WRITER_RETRYING, WEFT_WAIT_WRITER_RETRY))
		;
}
