/*
 * gate_cycle.c
 *	  Sessions in the way of a schema change that they wait for.
 *
 * A session R has read a table T of a gate, in a transaction that goes on; then it wants to write to T, or
 * to another table of the gate, and waits until the gate opens.  The taker, who is about to execute the schema
 * change, wants a lock on T that conflicts with R's.  That is a deadlock, and whoever completes it, or looks for
 * it first, gets the error; the taker's schema change would fail, or its subscription.  R cannot go on in any case:
 * it has read T before the schema change, and may write to it only after that.  Therefore R's statement is
 * canceled: by the taker, before it executes the schema change; and by the gate worker, while the taker waits
 * for a table and R for another one.  An R that comes when the taker waits completes the deadlock itself.
 *
 * Readers that do not write are waited for, as by any ALTER TABLE.
 *
 * The same happens to a session R that waits for the gate worker, and for which a writer waits, since R has a row of any
 * table.  The gate worker waits for the schema change, but not in the server's lock manager, and the schema
 * change waits for that row: it may come before it in the stream of its member, or be of another member whose
 * changes were there when the schema change was made (ddl/seen.c); or the requester waits for it, before the gate is
 * confirmed.
 */
#include "postgres.h"

#include <signal.h>

#include "catalog/pg_type.h"
#include "compat.h"
#include "gate_cycle.h"
#include "gate_shared.h"
#include "miscadmin.h"
#include "node_identity.h"
#include "shmem.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

/* How often, and at what intervals in milliseconds, the taker looks whether they are gone. */
#define CLEAR_LOOKS 200
#define CLEAR_INTERVAL 5

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

/* Is what a process has of a table in the way of a lock? */
static bool
is_in_the_way(const LockInstanceData *has, LOCKMODE wanted)
{
	for (LOCKMODE mode = AccessShareLock; mode <= AccessExclusiveLock; mode++)
		if ((has->holdMask & LOCKBIT_ON(mode)) != 0 && DoLockModesConflict(mode, wanted))
			return true;
	return false;
}

static bool
is_session(int pid)
{
	PGPROC	   *process = BackendPidGetProc(pid);

	return process != NULL && compat_is_session(process);
}

static void
cancel(int pid)
{
	if (!is_session(pid))
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
			if (locks->locks[j].pid != taker &&
				memcmp(&locks->locks[j].locktag, &waits->locktag, sizeof(LOCKTAG)) == 0 &&
				is_in_the_way(&locks->locks[j], waits->waitLockMode) &&
				waits_for_gate(locks, locks->locks[j].pid, status))
				cancel(locks->locks[j].pid);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/* Cancels sessions, each once; returns whether there is any. */
static bool
clear(const GateStatus *status, LOCKMODE mode, List **canceled)
{
	LockData   *locks = GetLockStatusData();
	bool		result = false;

	for (int i = 0; i < locks->nelements; i++)
	{
		LockInstanceData *each = &locks->locks[i];

		if (each->pid == MyProcPid || !is_of_gate(each, status) || !is_in_the_way(each, mode) ||
			!waits_for_gate(locks, each->pid, status) || !is_session(each->pid))
			continue;
		if (!list_member_int(*canceled, each->pid))
			cancel(each->pid);
		*canceled = list_append_unique_int(*canceled, each->pid);
		result = true;
	}
	return result;
}

/* For the taker, which is about to lock the tables of its gate in some mode. */
void
gate_cycle_clear(LOCKMODE mode)
{
	List	   *canceled = NIL;
	bool		found = !gate_none();

	for (int i = 0; i < CLEAR_LOOKS && found; i++)
	{
		if (canceled != NIL)
			gate_nap(CLEAR_INTERVAL);
		found = false;
		foreach_ptr(GateStatus, status, gate_list())
			if (status->taker == MyProcNumber)
			found = clear(status, mode, &canceled) || found;
	}
}

/*
 * Cancels sessions that wait for this process, and that a writer waits for, perhaps through others.  "seen" are
 * those that were looked at.  Returns whether a process that is no session waits for this one.
 */
static bool
release(int pid, List **seen)
{
	bool		result = false;
	Datum	   *blockers;
	int			count;

	*seen = lappend_int(*seen, pid);
	deconstruct_array_builtin(DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids,
																	 Int32GetDatum(pid))),
							  INT4OID, &blockers, NULL, &count);
	for (int i = 0; i < count; i++)
	{
		int			blocker = DatumGetInt32(blockers[i]);

		if (blocker == MyProcPid && is_session(pid))
			cancel(pid);
		else if (blocker == MyProcPid)
			result = true;
		else if (blocker != 0 && !list_member_int(*seen, blocker))
			result = release(blocker, seen) || result;
	}
	return result;
}

static SubscriptionShared *
find_shared(const NodeMember *member)
{
	Oid			subid = get_subscription_oid(member->subscription, true);

	return OidIsValid(subid) ? shmem_find(subid) : NULL;
}

/* The same for all writers of a member. */
static bool
release_member(const NodeMember *member, List **seen)
{
	SubscriptionShared *shared = find_shared(member);
	bool		result = false;

	for (int i = 0; shared != NULL && i < WEFT_MAX_PROCESSES; i++)
	{
		int			pid = pg_atomic_read_u32(&shared->writers[i].pid);

		if (pid != 0 && !list_member_int(*seen, pid))
			result = release(pid, seen) || result;
	}
	return result;
}

/*
 * For the gate worker, once the gate is closed: cancels what keeps the schema change from arriving, or from being
 * made, and waits for the gate.  Returns which writers wait for the gate itself, with rows that cannot pass, or for
 * such ones.  If the schema change waits here for what other members have written, those of any member may come
 * before it.  Needs a transaction.
 */
GateWaiter
gate_cycle_release(const GateStatus *status)
{
	List	   *seen = NIL;
	List	   *members = node_identity_members();
	bool		change_waits = false;
	GateWaiter	result = WAITER_NONE;

	/* The schema change is this node's own, and waits for no member any more. */
	if (status->confirmed && !status->durable)
		return result;
	foreach_ptr(NodeMember, member, members)
	{
		SubscriptionShared *shared;

		if (strcmp(member->name, NameStr(status->requester)) != 0)
			continue;
		if (release_member(member, &seen))
			result = WAITER_BEFORE;
		shared = find_shared(member);
		change_waits = shared != NULL && pg_atomic_read_u32(&shared->schema_waits) != 0;
	}
	foreach_ptr(NodeMember, member, members)
		if (release_member(member, &seen) && result == WAITER_NONE)
		result = change_waits ? WAITER_BEFORE : WAITER_ANY;
	return result;
}
