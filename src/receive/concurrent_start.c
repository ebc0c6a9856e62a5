/*
 * concurrent_start.c
 *	  Starts the workers that execute schema changes outside of the stream.
 *
 * The head of ddl/concurrent.c has the protocol.  A writer that has stored a statement sets a flag in
 * shared memory when it has committed.  The leader clears it before it looks, so it misses none.
 *
 * The leader's own transactions here do not belong to the stream: they have no origin, because with one, they
 * would advance the subscription's progress.
 */
#include "postgres.h"

#include "access/xact.h"
#include "ddl/concurrent.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "receive/concurrent_start.h"
#include "receive/led_subscription.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* How often to look while a statement is known to wait, without being told to. */
#define LOOK_INTERVAL 500		/* ms */

StaticAssertDecl(sizeof(ConcurrentTask) <= BGW_EXTRALEN, "a task fits into bgw_extra");

static struct
{
	BackgroundWorkerHandle *worker; /* the one that was started last, or NULL */
	bool		started;		/* has the leader looked at all? */
	bool		waiting;		/* is a statement known to wait? */
	bool		complained;		/* was no background worker available? */
	TimestampTz last_look;
}			start;

/* Returns false if no background worker is available. */
static bool
start_worker(const ConcurrentTask *task)
{
	BackgroundWorker worker = {0};
	MemoryContext old;
	bool		result;

	snprintf(worker.bgw_name, BGW_MAXLEN, "weft ddl worker for subscription %u", task->subid);
	strlcpy(worker.bgw_type, "weft ddl worker", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	strlcpy(worker.bgw_library_name, "weft", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "weft_ddl_worker_main", BGW_MAXLEN);
	memcpy(worker.bgw_extra, task, sizeof(*task));
	old = MemoryContextSwitchTo(led.context);
	result = RegisterDynamicBackgroundWorker(&worker, &start.worker);
	MemoryContextSwitchTo(old);
	if (!result)
		start.worker = NULL;
	return result;
}

/* Says once that a statement has to wait. */
static void
complain(const ConcurrentTask *task)
{
	if (!start.complained)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("no background worker is available for schema change " INT64_FORMAT " of subscription \"%s\"",
						task->id, MySubscription->name),
				 errdetail("It waits until one is."),
				 errhint("You might need to increase \"%s\".", "max_worker_processes")));
	start.complained = true;
}

/* Looks for a statement, and starts a worker for it. */
static void
look(void)
{
	ConcurrentTask task;
	ConcurrentChoice choice;

	if (!start.started)
		concurrent_find_owners();
	start.started = true;
	(void) pg_atomic_exchange_u32(&led.shared->concurrent_ddl, 0);
	choice = concurrent_take(MySubscription->oid, &task);

	/* The worker waits for the lock, and so for the end of this transaction. */
	if (choice == CONCURRENT_TAKEN && start_worker(&task))
	{
		concurrent_taken(&task);
		start.complained = false;
	}
	else if (choice == CONCURRENT_TAKEN)
		complain(&task);
	start.waiting = choice != CONCURRENT_NONE;
}

/* Has the worker that was started last ended? */
static bool
worker_ended(void)
{
	pid_t		pid;

	if (GetBackgroundWorkerPid(start.worker, &pid) != BGWH_STOPPED)
		return false;
	pfree(start.worker);
	start.worker = NULL;
	return true;
}

/*
 * Starts the next worker if one is needed.  Called by the leader between transactions, and while it waits for the end
 * of one, which may wait for the worker.
 */
void
concurrent_start_turn(void)
{
	MemoryContext old = CurrentMemoryContext;
	RepOriginId origin = replorigin_session_origin;
	TimestampTz now;
	bool		told;

	if (IsTransactionState() || (start.worker != NULL && !worker_ended()))
		return;
	told = pg_atomic_read_u32(&led.shared->concurrent_ddl) != 0;
	if (start.started && !start.waiting && !told)
		return;
	now = GetCurrentTimestamp();
	if (!told && !TimestampDifferenceExceeds(start.last_look, now, LOOK_INTERVAL))
		return;
	start.last_look = now;
	replorigin_session_origin = InvalidRepOriginId;
	StartTransactionCommand();
	look();
	CommitTransactionCommand();
	replorigin_session_origin = origin;
	MemoryContextSwitchTo(old);
}
