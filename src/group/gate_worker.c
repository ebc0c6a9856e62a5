/*
 * gate_worker.c
 *	  The background worker that holds the tables of a gate.
 *
 * gate.c has the protocol.  There is one worker per gate; this one is G.  Its locks belong to the session, and
 * must outlive whatever it does in transactions.  The server releases a session's locks when a transaction is
 * aborted.  Therefore G asks for locks outside of transactions, and what may fail in a
 * transaction is in a subtransaction.
 *
 * G asks for a lock for LOCK_SLICE at most, and then lets everybody who waits behind it
 * go ahead: a writer of another member may be needed by the transaction that G waits for.
 *
 * Tables in another order.  G has T1 and waits for T2, which session S has written to; then S wants to write to
 * T1.  S would get the server's error for a deadlock.  Therefore G looks for deadlocks several times before S
 * does, and withdraws: it goes back to SHARE UPDATE EXCLUSIVE on what it has, so that S goes on, and begins with T2.
 *	 - The gate was open for a moment, which costs a new round.  What is confirmed must not be opened.  So if T1
 *	   is confirmed, and a further statement of A needs T2, then S gets its error.
 *	 - Writers W may have passed T1.  G keeps SHARE UPDATE EXCLUSIVE for them, as when the gate ends, but does not wait for
 *	   them: W may wait for S, or for a session that holds T2 and waits for T1.  They go on passing T1 until none
 *	   of them is left; other writers lock T1 as if there was no gate.
 *	 - A taker finds nothing to take at T1, as at T2.  It is offered the rest when none passes.
 *	 - So does G if a writer W waits for T1 itself, and A waits for W.  W cannot pass with what the server's own code applies:
 *	   TRUNCATE, changes of tables without a key, and what triggers write.  Rows of A that are committed while its
 *	   schema change is in progress come before it.  If W waits for T1 with one of them, G withdraws from what is
 *	   confirmed, too; sessions that would slip get their errors.
 *	 - If all sessions write in one order, then each withdrawal puts T2 in front for good, and G finds that order
 *	   after some of them.  If there are always sessions of either order, G may withdraw until A's time-out: A's
 *	   statement fails, not the sessions.
 *
 * When the gate ends.  Writers may have passed it, under locks of mode ROW SHARE.  G goes on holding
 * SHARE UPDATE EXCLUSIVE in their stead until their transactions are over; sessions go on meanwhile.
 *
 * The requester A tells G nothing: it may crash at any time.  G ends an unconfirmed gate when the connection that
 * A has asked through is lost (gate.c).  Afterwards, G asks A for the outcome, repeatedly.  If the transaction was
 * aborted, the gate ends.  If it was committed, the gate ends when the schema change has been applied, or
 * skipped, here: then the position of A's WAL that A has told after the commit is applied.  If A
 * does not answer for as long as a lock may take, the gate ends with a WARNING: rows that are written here then may wait on A for
 * the schema change, or fail there.
 *
 * After a crash of this server the postmaster starts G again, with the gate that was stored; or
 * without one, if it was not confirmed.
 */
#include "postgres.h"

#include "access/xact.h"
#include "applied_position.h"
#include "compat.h"
#include "gate.h"
#include "gate_cycle.h"
#include "gate_file.h"
#include "gate_shared.h"
#include "group/gate_worker.h"
#include "group/remote.h"
#include "local_query.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "pinned_settings.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timeout.h"
#include "wait_event.h"

/*
 * What is held in the stead of writers that have passed.  Sessions go on.  CREATE INDEX CONCURRENTLY does not: it waits for
 * the transactions of those who have the table, and would find neither this session lock nor the writers' ROW SHARE.
 */
#define PASSING_LOCK ShareUpdateExclusiveLock

/* Milliseconds. */
#define LOCK_SLICE 1000
#define LOCK_PAUSE 20
#define LOCK_FIRST_LOOK 50
#define LOCK_LOOK_INTERVAL 250
#define TAG_SLICE 100
#define TAG_DEADLOCK_TIMEOUT 10
#define IDLE_INTERVAL 100
#define PASSING_INTERVAL 5

/* Milliseconds between two looks for sessions that wait for the gate, and are in the way. */
#define CYCLE_INTERVAL 1000

/* Milliseconds between two questions for the outcome. */
#define ASK_INTERVAL 200

/* Milliseconds that the requester has for its answer. */
#define ASK_TIMEOUT 5000

/* Milliseconds after the requester's time-out in which that ends its request itself. */
#define GRACE 1000

/* Seconds after which the postmaster starts a worker that has failed. */
#define RESTART_SECONDS 1

/* What is in bgw_extra. */
typedef struct GateArguments
{
	Oid			database;
	int64		lock;
} GateArguments;

/* What the requester has answered. */
typedef enum Outcome
{
	OUTCOME_UNKNOWN,			/* it did not answer */
	OUTCOME_OPEN,
	OUTCOME_OVER,				/* aborted, or settled here */
} Outcome;

static int64 lock;
static TimestampTz asked;		/* when the outcome was asked for */
static TimestampTz answered;	/* when the requester has last answered */

/* Tables that could not be had after others, the last one first; those that are not among them follow. */
static List *preferred = NIL;

/* Looks for deadlocks while the worker waits for a lock. */
static TimeoutId look_timer = MAX_TIMEOUTS;

/* Where the committed schema change is on the requester at the latest. */
static XLogRecPtr commit_bound;

extern PGDLLEXPORT void weft_gate_main(Datum main_arg);

/*
 * Acquires a lock for the session, outside of a transaction.  Returns false if that has failed or takes
 * longer than "slice"; *deadlock says whether it was a deadlock.
 *
 * The lock may be granted just before the time is over, and the error comes all the same.  LockErrorCleanup() then accepts the
 * lock, but has already allowed others to lock the table by the server's fast path, which does not see this one:
 * it is written for transactions that are aborted.  So such a lock is given back.
 */
static bool
acquire(const LOCKTAG *tag, LOCKMODE mode, int slice, int deadlock_timeout, bool *deadlock)
{
	MemoryContext context = CurrentMemoryContext;
	int			old_timeout = LockTimeout;
	int			old_deadlock_timeout = DeadlockTimeout;
	volatile bool result = false;

	*deadlock = false;
	LockTimeout = slice;
	DeadlockTimeout = deadlock_timeout;
	PG_TRY();
	{
		result = LockAcquire(tag, mode, true, false) != LOCKACQUIRE_NOT_AVAIL;

		/* The time may have been over just after the last look at that. */
		if (get_timeout_indicator(LOCK_TIMEOUT, false))
			CHECK_FOR_INTERRUPTS();
	}
	PG_CATCH();
	{
		LockErrorCleanup();
		if (LockHeldByMe(tag, mode, false))
			LockRelease(tag, mode, true);
		result = false;
		*deadlock = geterrcode() == ERRCODE_T_R_DEADLOCK_DETECTED;
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	LockTimeout = old_timeout;
	DeadlockTimeout = old_deadlock_timeout;
	return result;
}

static LOCKTAG
tag_of(Oid relid)
{
	LOCKTAG		result;

	SET_LOCKTAG_RELATION(result, MyDatabaseId, relid);
	return result;
}

static void
wait_until_none_passes(void)
{
	while (gate_passing(lock) > 0)
		gate_nap(PASSING_INTERVAL);
}

/* Exchanges the session's lock on a table; the new one is granted at once. */
static void
exchange(Oid relid, LOCKMODE from, LOCKMODE to)
{
	LOCKTAG		tag = tag_of(relid);

	(void) LockAcquire(&tag, to, true, false);
	LockRelease(&tag, from, true);
}

/* See "Tables in another order"; returns whether there is anything to withdraw from.  "all": even what is confirmed. */
static bool
withdraw(bool all)
{
	GateStatus	status;

	if (!gate_withdraw(lock, all) || !gate_look(lock, &status))
		return false;
	elog(DEBUG1, "the gate of node \"%s\" was open for a moment: its worker has withdrawn",
		 NameStr(status.requester));
	for (int i = 0; i < status.num_tables; i++)
	{
		LOCKTAG		tag = tag_of(status.tables[i].relid);

		if (status.tables[i].state == TABLE_WITHDRAWN &&
			LockHeldByMe(&tag, ShareRowExclusiveLock, false))
			exchange(status.tables[i].relid, ShareRowExclusiveLock, PASSING_LOCK);
	}
	return true;
}

/* Releases what is kept of the tables that the worker has withdrawn from, if no writer needs that. */
static void
finish_withdrawal(void)
{
	GateStatus	status;

	if (!gate_look(lock, &status) || !gate_finish_withdrawal(lock))
		return;
	for (int i = 0; i < status.num_tables; i++)
		if (status.tables[i].state == TABLE_WITHDRAWN)
		{
			LOCKTAG		tag = tag_of(status.tables[i].relid);

			LockRelease(&tag, PASSING_LOCK, true);
		}
}

/* Locks one more table, or pauses.  "after": another one is held that the worker may withdraw from. */
static void
close_table(const GateTable *table, bool after)
{
	LOCKTAG		tag = tag_of(table->relid);
	int			interval = Max(Min(DeadlockTimeout / 4, LOCK_LOOK_INTERVAL), 1);
	bool		closed;
	bool		deadlock;

	/*
	 * The first look for deadlocks also cancels autovacuum, unless LOCK_SLICE
	 * is over at the same time.
	 */
	if (after)
		enable_timeout_every(look_timer,
							 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), interval), interval);
	closed = acquire(&tag, ShareRowExclusiveLock, LOCK_SLICE,
					 after ? Min(interval, LOCK_FIRST_LOOK) : Min(DeadlockTimeout, LOCK_SLICE / 2),
					 &deadlock);
	if (after)
		disable_timeout(look_timer, false);
	if (closed)
	{
		gate_set_tables(lock, table->state, TABLE_HELD, table->relid);
		if (table->state == TABLE_WITHDRAWN)
			LockRelease(&tag, PASSING_LOCK, true);
		return;
	}
	if (deadlock && withdraw(false))
	{
		preferred = list_delete_oid(preferred, table->relid);
		preferred = lcons_oid(table->relid, preferred);
	}
	elog(DEBUG1, "a gate could not be closed yet: table %u is in use%s", table->relid,
		 deadlock ? ", by a deadlock" : "");
	gate_nap(LOCK_PAUSE);
}

/* Hands the tables over to the taker. */
static void
give(void)
{
	GateStatus	status;
	LOCKTAG		tag;
	bool		deadlock;

	gate_set_tables(lock, TABLE_HELD, TABLE_GIVING, InvalidOid);
	wait_until_none_passes();
	finish_withdrawal();
	if (!gate_look(lock, &status))
		return;
	for (int i = 0; i < status.num_tables; i++)
		if (status.tables[i].state == TABLE_GIVING)
			exchange(status.tables[i].relid, ShareRowExclusiveLock, ShareLock);
	gate_offer(lock);

	gate_tag(&tag);
	do
	{
		GateStatus	now;

		if (acquire(&tag, ShareLock, TAG_SLICE, TAG_DEADLOCK_TIMEOUT, &deadlock))
			LockRelease(&tag, ShareLock, true);
		gate_nap(1);

		/* It may have taken them, and want more already. */
		if (!gate_look(lock, &now) || now.taken || !now.offered ||
			now.taker == INVALID_PROC_NUMBER)
			break;
	} while (true);

	/* If the taker has failed, the gate has to be closed again. */
	gate_set_tables(lock, TABLE_GIVING, TABLE_WANTED, InvalidOid);
	for (int i = 0; i < status.num_tables; i++)
		if (status.tables[i].state == TABLE_GIVING)
		{
			tag = tag_of(status.tables[i].relid);
			LockRelease(&tag, ShareLock, true);
		}
}

/* The answer to a question, in a subtransaction. */
static Outcome
ask_requester(const char *requester)
{
	char	   *dsn = local_value(psprintf("SELECT CASE WHEN EXISTS (SELECT FROM weft.node_entry WHERE node_name = %1$s)"
										   " THEN weft.node_dsn(%1$s) END",
										   quote_literal_cstr(requester)));
	char	   *subid;
	char	   *answer;
	Remote	   *remote;

	/* It has parted, with everything that it has written. */
	if (dsn == NULL)
		return OUTCOME_OVER;
	if (commit_bound == InvalidXLogRecPtr)
	{
		remote = remote_connect_until(dsn, requester,
									  TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ASK_TIMEOUT));
		PG_TRY();
		{
			answer = remote_value(remote, psprintf("SELECT weft.member_ddl_outcome(" INT64_FORMAT ")", lock));
		}
		PG_FINALLY();
		{
			remote_close(remote);
		}
		PG_END_TRY();
		if (answer == NULL || strcmp(answer, "aborted") == 0)
			return OUTCOME_OVER;
		if (strcmp(answer, "open") == 0)
			return OUTCOME_OPEN;
		commit_bound = remote_lsn(answer);
	}
	subid = local_value(psprintf("SELECT weft.local_subscription(%s)",
								 quote_literal_cstr(requester)));
	return subid == NULL || applied_position(atooid(subid)) >= commit_bound ?
		OUTCOME_OVER : OUTCOME_OPEN;
}

/* What the worker does in a transaction, with a result for whoever wants it. */
typedef void (*Work) (const GateStatus *status, void *result);

/* Does something that may fail, and survives that: *result is what it was then. */
static void
try(Work work, const GateStatus *status, void *result)
{
	MemoryContext context = CurrentMemoryContext;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		work(status, result);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
}

static void
ask(const GateStatus *status, void *result)
{
	*(Outcome *) result = ask_requester(NameStr(status->requester));
}

static void
release_cycle(const GateStatus *status, void *result)
{
	*(GateWaiter *) result = gate_cycle_release(status);
}

/* Looks, from time to time, whether somebody waits for the gate who is in the way of the schema change. */
static void
look_for_cycles(const GateStatus *status)
{
	static TimestampTz looked = 0;
	TimestampTz now = GetCurrentTimestamp();
	GateWaiter	waiter = WAITER_NONE;

	if (!TimestampDifferenceExceeds(looked, now, CYCLE_INTERVAL))
		return;
	looked = now;
	if (status->num_tables > 0)
		try(release_cycle, status, &waiter);
	if (waiter != WAITER_NONE)
		(void) withdraw(waiter == WAITER_BEFORE);
}

/* Is a confirmed gate over, as far as the requester says? */
static bool
is_over(const GateStatus *status)
{
	TimestampTz now = GetCurrentTimestamp();
	Outcome		outcome = OUTCOME_UNKNOWN;

	if (!status->durable || !TimestampDifferenceExceeds(asked, now, ASK_INTERVAL))
		return false;
	asked = now;
	try(ask, status, &outcome);
	switch (outcome)
	{
		case OUTCOME_OVER:
			return true;
		case OUTCOME_OPEN:
			answered = now;
			return false;
		case OUTCOME_UNKNOWN:
			break;
	}
	if (!TimestampDifferenceExceeds(answered, now, status->timeout))
		return false;
	ereport(WARNING,
			(errmsg("the lock for a schema change of node \"%s\" has ended without an answer from there",
					NameStr(status->requester)),
			 errdetail("Rows that are written here before the schema change arrives may fail on that node.")));
	return true;
}

/*
 * May the worker lock a table?  A taker that did not find it locked, because an earlier one had been aborted, is going
 * to lock it itself, and would wait for the worker for ever.  The requester that adds a table to its
 * lock waits for the worker to have it.
 */
static bool
may_close(const GateStatus *status, const GateTable *table)
{
	return (table->state == TABLE_WANTED || table->state == TABLE_WITHDRAWN) &&
		(status->taker == INVALID_PROC_NUMBER ||
		 (status->taker_lock == lock && !table->confirmed));
}

/* Has the requester neither confirmed the gate in time, nor closed its connection? */
static bool
is_late(const GateStatus *status)
{
	if (status->state != GATE_ACTIVE || status->confirmed ||
		GetCurrentTimestamp() < TimestampTzPlusMilliseconds(status->since, (int64) status->timeout + GRACE))
		return false;
	ereport(WARNING,
			(errmsg("the lock for a schema change of node \"%s\" has ended, because that has not confirmed it in time",
					NameStr(status->requester))));
	return true;
}

/* Does the worker lock the first table before the second one? */
static bool
comes_before(const GateTable *one, const GateTable *other)
{
	foreach_oid(relid, preferred)
	{
		if (relid == other->relid)
			return false;
		if (relid == one->relid)
			return true;
	}
	return false;
}

/* Serves the gate until it ends. */
static void
serve(void)
{
	for (;;)
	{
		GateStatus	status;
		GateTable  *wanted = NULL;
		bool		held = false;

		finish_withdrawal();
		if (!gate_look(lock, &status) || status.state == GATE_ENDING)
			return;
		for (int i = 0; i < status.num_tables; i++)
		{
			GateTable  *table = &status.tables[i];

			if (may_close(&status, table) && (wanted == NULL || comes_before(table, wanted)))
				wanted = table;
			held = held || (table->state == TABLE_HELD && !table->confirmed &&
							table->request == status.request);
		}
		if (status.taker != INVALID_PROC_NUMBER && !status.offered)
			give();
		else if (is_late(&status))
			gate_end(lock);
		else if (wanted != NULL)
		{
			/*
			 * What is confirmed is closed once more: the schema change waits
			 * for others only.
			 */
			if (status.confirmed)
				look_for_cycles(&status);
			close_table(wanted, held);
		}
		else
		{
			if (status.taker != INVALID_PROC_NUMBER)
				gate_cycle_break(&status);
			look_for_cycles(&status);
			if (is_over(&status))
				gate_end(lock);
			else
				gate_nap(IDLE_INTERVAL);
		}
	}
}

/* Opens the gate. */
static void
finish(void)
{
	GateStatus	status;
	LOCKTAG		tag;

	if (!gate_look(lock, &status))
		return;
	for (int i = 0; i < status.num_tables; i++)
		if (status.tables[i].state == TABLE_HELD)
			exchange(status.tables[i].relid, ShareRowExclusiveLock, PASSING_LOCK);
	wait_until_none_passes();
	for (int i = 0; i < status.num_tables; i++)
		if (status.tables[i].state == TABLE_HELD || status.tables[i].state == TABLE_WITHDRAWN)
		{
			tag = tag_of(status.tables[i].relid);
			LockRelease(&tag, PASSING_LOCK, true);
		}
	gate_remove(lock);
}

/* Outside of a transaction, nobody else releases the locks of a session that ends: the tables would be locked for ever. */
static void
detach(int code, Datum arg)
{
	gate_detach();
	LockErrorCleanup();
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
}

/* Entry point of the background worker. */
void
weft_gate_main(Datum main_arg)
{
	GateArguments arguments;

	memcpy(&arguments, MyBgworkerEntry->bgw_extra, sizeof(arguments));
	lock = arguments.lock;
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	SetConfigOption("session_replication_role", "replica", PGC_SUSET, PGC_S_OVERRIDE);
	BackgroundWorkerInitializeConnectionByOid(arguments.database, InvalidOid, 0);
	pinned_settings_set();
	load_file("libpqwalreceiver", false);
	if (!gate_attach(lock))
		proc_exit(0);
	before_shmem_exit(detach, (Datum) 0);
	pgstat_report_activity(STATE_RUNNING, "schema change of a node group");
	look_timer = RegisterTimeout(USER_TIMEOUT, CheckDeadLockAlert);
	answered = GetCurrentTimestamp();
	serve();
	finish();
	proc_exit(0);
}

static void
describe(BackgroundWorker *worker, Oid database, int64 of_lock)
{
	GateArguments arguments = {database, of_lock};

	memset(worker, 0, sizeof(BackgroundWorker));
	snprintf(worker->bgw_name, BGW_MAXLEN, "weft gate");
	strlcpy(worker->bgw_type, "weft gate", BGW_MAXLEN);
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = RESTART_SECONDS;
	strlcpy(worker->bgw_library_name, "weft", sizeof(worker->bgw_library_name));
	strlcpy(worker->bgw_function_name, "weft_gate_main", BGW_MAXLEN);
	memcpy(worker->bgw_extra, &arguments, sizeof(arguments));
}

/* Starts the worker of a gate of this database. */
void
gate_worker_start(int64 of_lock)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;

	describe(&worker, MyDatabaseId, of_lock);
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("no background worker is available for the lock of a schema change"),
				 errhint("Increase \"max_worker_processes\".")));
}

/* Registers the workers of gates that were stored; called once, while the postmaster loads the library. */
void
gate_worker_install(void)
{
	GateStatus *gates = palloc0(GATE_COUNT * sizeof(GateStatus));
	int			count = gate_file_read(gates);

	for (int i = 0; i < count; i++)
	{
		BackgroundWorker worker;

		describe(&worker, gates[i].dbid, gates[i].lock);
		RegisterBackgroundWorker(&worker);
	}
	pfree(gates);
}
