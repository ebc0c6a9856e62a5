/*
 * yield.c
 *	  Must a writer give its locks up?
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
#include "apply/writer.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/wait_event.h"

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

/* A streamed transaction has none before it has ended: it is behind all others. */
static uint64
own_seq(void)
{
	return writer.stream == NULL ? writer.first : writer_seq(writer.number);
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

/* Must we give our locks up?  Asked while waiting. */
bool
yield_needed(void *arg)
{
	bool		result = false;

	if (!IsTransactionState() || writer.committed_to)
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
