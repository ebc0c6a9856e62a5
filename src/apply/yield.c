/*
 * yield.c
 *	  Must a waiting writer give its locks up?
 *
 * A writer that waits for earlier transactions holds the locks of what it has
 * applied so far.  If an earlier transaction waits for one of them, neither
 * would ever go on: the wait for the commit order is not one that the server's
 * deadlock detector knows.  The same with sessions of users in between: the
 * oldest transaction waits for a user's lock, the user for ours.
 *
 * So a waiting writer looks, from time to time, who waits for a lock that it
 * holds:
 *	 - a writer of the same ring with an earlier transaction: give up at once;
 *	 - one with a later transaction: as it should be;
 *	 - the leader, which applies something itself: give up at once;
 *	 - anybody else: give up if the oldest transaction waits for a lock itself.
 *	   If it does not, it goes on, and so shall we, and nothing is lost but the
 *	   user's time.
 *
 * To give up is to roll back, wait until we are the oldest, and begin again: no
 * lock is held while waiting then, and the oldest never waits here.
 */
#include "postgres.h"

#include "access/xact.h"
#include "apply/writer.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

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
	return pg_atomic_read_u64(&writer.subscription->writers[number].seq);
}

/* A streamed transaction has none before it has ended: it is behind all others. */
static uint64
own_seq(void)
{
	uint64		seq;

	if (writer.stream == NULL)
		return writer.first;
	seq = pg_atomic_read_u64(&writer.stream->seq);
	return seq == 0 ? PG_UINT64_MAX : seq;
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

static bool
must_yield_to(PGPROC *proc)
{
	int			procno = GetNumberFromPGProc(proc);
	int			number = find_writer(procno);

	if (number >= 0)
		return writer_seq(number) < own_seq();
	return procno == writer.ring->leader_procno || oldest_waits();
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

	if (!IsTransactionState())
		return false;

	for (int i = 0; i < NUM_LOCK_PARTITIONS && !result; i++)
	{
		dlist_iter	iter;
		LWLock	   *partition = LockHashPartitionLockByIndex(i);

		/* Only we change our own lists, so an empty one needs no lock. */
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
