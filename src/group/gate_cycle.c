/*
 * gate_cycle.c
 *	  Sessions in the way of a schema change that they wait for.
 *
 * A session R has read a table T of a gate, in a transaction that goes on; then it wants to write to T, or
 * to another table of the gate, and waits until the gate opens.  The taker, who is about to execute the schema
 * change, wants a lock on T that conflicts with R's.  Both are waiting in the server's lock
 * manager then, and it would find the deadlock; but the one who has waited longer may be the taker, whose
 * schema change would fail, or its subscription.  R cannot go on in any case: it has read T before the
 * schema change, and may write to it only after that.  Therefore R's statement is canceled, before anybody
 * looks for the deadlock.
 *
 * Readers that do not write are waited for, as by any ALTER TABLE.
 */
#include "postgres.h"

#include <signal.h>

#include "compat.h"
#include "group/gate_cycle.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/memutils.h"

/* Is this lock on a table of the gate? */
static bool
is_of_gate(const LockInstanceData *lock, const GateStatus *status)
{
	if (lock->locktag.locktag_type != LOCKTAG_RELATION ||
		lock->locktag.locktag_field1 != status->dbid)
		return false;
	for (int i = 0; i < status->num_tables; i++)
		if (lock->locktag.locktag_field2 == status->tables[i].relid)
			return true;
	return false;
}

/* Does a process wait for a table of the gate? */
static bool
waits_for_gate(const LockData *locks, int pid, const GateStatus *status)
{
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *lock = &locks->locks[i];

		if (lock->pid == pid && lock->waitLockMode != NoLock && is_of_gate(lock, status))
			return true;
	}
	return false;
}

/* Is what a process has of a table in the way of what another one waits for? */
static bool
is_in_the_way(const LockInstanceData *has, const LockInstanceData *waits)
{
	if (has->pid == waits->pid || has->holdMask == 0 ||
		memcmp(&has->locktag, &waits->locktag, sizeof(LOCKTAG)) != 0)
		return false;
	for (LOCKMODE mode = AccessShareLock; mode <= AccessExclusiveLock; mode++)
		if ((has->holdMask & LOCKBIT_ON(mode)) != 0 && DoLockModesConflict(mode, waits->waitLockMode))
			return true;
	return false;
}

static void
cancel(int pid)
{
	PGPROC	   *process = BackendPidGetProc(pid);

	if (process == NULL || !compat_is_session(process))
		return;
	ereport(LOG,
			(errmsg("canceling the statement of process %d, which is in the way of a schema change of the node group, and waits for it",
					pid)));
	(void) kill(pid, SIGINT);
}

/* Cancels what is in the way of the taker of a gate, and waits for the gate. */
void
gate_cycle_break(const GateStatus *status)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "weft gate cycle",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	LockData   *locks = GetLockStatusData();
	int			taker = GetPGProcByNumber(status->taker)->pid;

	for (int i = 0; i < locks->nelements; i++)
	{
		LockInstanceData *waits = &locks->locks[i];

		if (waits->pid != taker || waits->waitLockMode == NoLock || !is_of_gate(waits, status))
			continue;
		for (int j = 0; j < locks->nelements; j++)
			if (is_in_the_way(&locks->locks[j], waits) &&
				waits_for_gate(locks, locks->locks[j].pid, status))
				cancel(locks->locks[j].pid);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}
