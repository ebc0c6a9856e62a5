/*
 * applied_position.c
 *	  How far a subscription has been applied here.
 *
 * What the leader has collected can be seen, but there is no leader while the subscription is disabled
 * or waits after an error, and a busy one is late.  The replication origin's position is always there, but
 * lags as long as nothing is published; and a commit advances it before others can see its rows: the flush of its
 * WAL comes between, and the wait for a synchronous standby of this server.  So the origin counts only if no process of
 * the subscription has a transaction that has written something.  That is looked at after the position has been read,
 * so whoever has advanced it has ended by then.
 */
#include "postgres.h"

#include "applied_position.h"
#include "compat.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "shmem.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"

/* Is a process in a transaction that has written something, or is about to become visible? */
static bool
writes(const PGPROC *process)
{
	return process != NULL && TransactionIdIsValid(process->xid);
}

/* The same for those that apply a subscription; they may be of the server's own. */
static bool
any_writes(Oid subid, SubscriptionShared *entry)
{
	bool		result = false;
	List	   *workers;

	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	workers = compat_workers_find(subid);
	foreach_ptr(LogicalRepWorker, worker, workers)
		result = result || (!compat_is_tablesync(worker) && writes(worker->proc));
	LWLockRelease(LogicalRepWorkerLock);
	list_free(workers);
	for (int i = 0; entry != NULL && i < WEFT_MAX_PROCESSES && !result; i++)
	{
		int			pid = pg_atomic_read_u32(&entry->writers[i].pid);

		result = pid != 0 && writes(BackendPidGetProc(pid));
	}
	return result;
}

/*
 * Returns the position on the publisher up to which the subscription has been applied, and can be seen by
 * whoever looks now; zero if that is not known.
 */
XLogRecPtr
applied_position(Oid subid)
{
	SubscriptionShared *entry = shmem_find(subid);
	XLogRecPtr	applied = entry ? pg_atomic_read_u64(&entry->applied_lsn) : InvalidXLogRecPtr;
	char		origin_name[NAMEDATALEN];
	RepOriginId origin;
	XLogRecPtr	progress = InvalidXLogRecPtr;

	ReplicationOriginNameForLogicalRep(subid, InvalidOid, origin_name, sizeof(origin_name));
	origin = replorigin_by_name(origin_name, true);
	if (origin != InvalidRepOriginId)
		progress = replorigin_get_progress(origin, false);
	return progress > applied && !any_writes(subid, entry) ? progress : applied;
}
