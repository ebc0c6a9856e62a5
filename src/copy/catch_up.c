/*
 * catch_up.c
 *	  Tables that catch up with a leader that has ended.
 *
 * When a table has been copied, its table synchronization worker W waits (SYNCWAIT) until the server's
 * apply loop in the leader tells it up to which position P it is to apply the table's changes
 * (CATCHUP).  The loop then waits until W has done so (SYNCDONE), because it does not apply changes of the table
 * before that, and W applies none after P.
 *
 * If the leader ends while it waits, W goes on towards P.  The loop of the next leader waits only
 * for workers that it has told P itself.  If W were slower, that leader would pass P, and leave out the changes
 * of the table that nobody applies any more.  Therefore a leader that is about to receive changes waits
 * first until no worker is in CATCHUP, nor in SYNCDONE: W says that in shared memory before the catalog
 * has it, and ends soon afterwards.  W needs nothing of the leader for that; if W fails, the next worker
 * of the table begins at SYNCWAIT again, or before.
 */
#include "postgres.h"

#include "catalog/pg_subscription_rel.h"
#include "compat.h"
#include "copy/catch_up.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/wait_event.h"

/* How often to look, in milliseconds, although W wakes the leader when it ends. */
#define INTERVAL 100

static bool
is_catching_up(LogicalRepWorker *worker)
{
	char		state;

	if (!compat_is_tablesync(worker))
		return false;
	SpinLockAcquire(&worker->relmutex);
	state = worker->relstate;
	SpinLockRelease(&worker->relmutex);
	return state == SUBREL_STATE_CATCHUP || state == SUBREL_STATE_SYNCDONE;
}

static bool
any_catches_up(void)
{
	bool		result = false;

	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	foreach_ptr(LogicalRepWorker, worker, compat_workers_find(MySubscription->oid))
		result |= is_catching_up(worker);
	LWLockRelease(LogicalRepWorkerLock);
	return result;
}

/* Called in a leader before it receives changes: waits until nothing catches up with an earlier one. */
void
catch_up_wait(void)
{
	while (any_catches_up())
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, INTERVAL,
						 WAIT_EVENT_LOGICAL_SYNC_STATE_CHANGE);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}
