/*
 * compare_worker.c
 *	  The processes that compute sums at one cut.
 *
 * They are the session that compares, and the server's parallel workers, which share its
 * snapshot, user and settings.  Each takes queries from the task (compare_task.c), for the
 * publisher or for this server, until none is left or the time of the cut is over.  A
 * worker connects to the publisher when it has the first query for it, and imports the
 * snapshot there; if it cannot connect, that is an error of the comparison.  If no worker is
 * available, the session does everything.
 *
 * An error of a query that concerns the table is recorded as the outcome of the unit; the local
 * query runs in a subtransaction because of that.  Any other error ends the comparison: a
 * worker's is thrown in the session by the server's machinery.  Both sides of the session's
 * own code must therefore tell the two apart by the class of the error (compare_is_table_error()).
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "remote_query.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"
#include "verify/compare_worker.h"
#include "verify/owner_context.h"
#include "verify/publisher.h"
#include "wait_event.h"

#define KEY_TASK UINT64CONST(1)

/* How often the session's watch is called, in milliseconds. */
#define WATCH_INTERVAL 1000

/* One process at work. */
typedef struct Process
{
	CompareTask *task;
	CompareProgress *progress;
	CompareSession *session;	/* NULL in a worker */
	const Subscription *subscription;	/* NULL until a worker needs it */
	WalReceiverConn *conn;		/* the same */
	TimestampTz watched;
} Process;

/*
 * Does an error with this SQLSTATE concern a table only?  These are errors of its data, its
 * definition, its locks, and those that functions of its owner usually throw.  Values that are
 * too large, and damaged data, are reported as internal errors, too.
 */
bool
compare_is_table_error(int sqlstate)
{
	int			category = ERRCODE_TO_CATEGORY(sqlstate);

	return category == ERRCODE_DATA_EXCEPTION ||
		category == ERRCODE_SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION ||
		category == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE ||
		category == ERRCODE_FEATURE_NOT_SUPPORTED ||
		category == ERRCODE_TO_CATEGORY(ERRCODE_INTERNAL_ERROR) ||
		sqlstate == ERRCODE_OUT_OF_MEMORY ||
		category == ERRCODE_PLPGSQL_ERROR ||
		category == ERRCODE_EXTERNAL_ROUTINE_EXCEPTION ||
		sqlstate == ERRCODE_PROGRAM_LIMIT_EXCEEDED ||
		sqlstate == ERRCODE_T_R_DEADLOCK_DETECTED;
}

static void
put_error(UnitOutcome *outcome, int sqlstate, const char *message)
{
	outcome->sqlstate = sqlstate;
	strlcpy(outcome->message, message, sizeof(outcome->message));
}

/* Stores one row of the answer: [part,] count, sum. */
static void
put_sum(CompareUnit *unit, PartSum *sums, char **values, uint64 *rows)
{
	int			part = unit->grouped && values[0] ? pg_strtoint32(values[0]) : 0;
	char	  **numbers = values + (unit->grouped ? 1 : 0);

	if (part < 0 || part >= unit->num_parts || numbers[0] == NULL || numbers[1] == NULL ||
		strlen(numbers[1]) >= COMPARE_SUM_LEN)
		elog(ERROR, "unexpected answer to a query for the sums of a table");
	sums[part].count = pg_strtoint64(numbers[0]);
	strcpy(sums[part].sum, numbers[1]);
	*rows += sums[part].count;
}

/* A part without rows has no row in the answer to a grouped query. */
static void
clear_sums(CompareUnit *unit, PartSum *sums)
{
	for (int i = 0; i < unit->num_parts; i++)
	{
		sums[i].count = 0;
		strcpy(sums[i].sum, "0");
	}
}

/*
 * Opens a connection to the publisher, as publisher_connect() does, to read tables.  A wait for a
 * lock there is short: who holds it may be waiting for the subscription, and apply for a lock
 * that this comparison holds here.
 */
WalReceiverConn *
compare_connect(const Subscription *subscription)
{
	WalReceiverConn *conn = publisher_connect(subscription);

	remote_command(conn, "set up a connection to compare",
				   "SET lock_timeout = '10s'; SET jit = off; SET max_parallel_workers_per_gather = 0");
	return conn;
}

static void
connect_worker(Process *process)
{
	if (process->conn != NULL)
		return;
	process->subscription = publisher_subscription_by_oid(process->task->subid);
	process->conn = compare_connect(process->subscription);
	publisher_import(process->conn, process->subscription, process->task->snapshot);
}

/* After an error, the snapshot must be imported again. */
static void
recover_connection(Process *process)
{
	remote_command(process->conn, "roll back on the publisher", "ROLLBACK");
	publisher_import(process->conn, process->subscription, process->task->snapshot);
}

/* Runs the publisher's query.  Returns the number of rows that were read there. */
static uint64
run_remote(Process *process, CompareUnit *unit)
{
	UnitOutcome *outcome = &unit->outcomes[SIDE_PUBLISHER];
	PartSum    *sums = task_sums(process->task, unit, SIDE_PUBLISHER);
	const char *query = task_query(process->task, unit, SIDE_PUBLISHER);
	uint64		rows = 0;
	RemoteAnswer answer;

	connect_worker(process);
	answer = remote_query(process->conn, NULL, query, WALRCV_OK_TUPLES, unit->grouped ? 3 : 2);
	if (answer.problem != NULL)
	{
		if (!compare_is_table_error(answer.sqlstate))
			ereport(ERROR,
					(errcode(answer.sqlstate ? answer.sqlstate : ERRCODE_CONNECTION_FAILURE),
					 errmsg("could not read tables of the publisher of subscription \"%s\": %s",
							process->subscription->name, answer.problem)));
		put_error(outcome, answer.sqlstate, answer.problem);
		recover_connection(process);
		return 0;
	}
	clear_sums(unit, sums);
	foreach_ptr(RemoteValue, values, answer.rows)
		put_sum(unit, sums, values, &rows);
	outcome->done = true;
	return rows;
}

static uint64
query_locally(CompareTask *task, CompareUnit *unit)
{
	PartSum    *sums = task_sums(task, unit, SIDE_LOCAL);
	uint64		rows = 0;
	UserContext user;

	owner_context_enter_table(&user, unit->relid, unit->run_as_owner);
	SPI_connect();
	if (SPI_execute(task_query(task, unit, SIDE_LOCAL), true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not query the sums of a table");
	clear_sums(unit, sums);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		char	   *values[3] = {0};

		for (int column = 0; column < Min(SPI_tuptable->tupdesc->natts, 3); column++)
			values[column] = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, column + 1);
		put_sum(unit, sums, values, &rows);
	}
	SPI_finish();
	owner_context_leave_table(&user, unit->run_as_owner);
	return rows;
}

/* Runs the query here.  Returns the number of rows that were read. */
static uint64
run_locally(Process *process, CompareUnit *unit)
{
	UnitOutcome *outcome = &unit->outcomes[SIDE_LOCAL];
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile uint64 rows = 0;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		MemoryContextSwitchTo(context);
		rows = query_locally(process->task, unit);
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		outcome->done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		if (!compare_is_table_error(error->sqlerrcode))
			PG_RE_THROW();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		put_error(outcome, error->sqlerrcode, error->message);
	}
	PG_END_TRY();
	return rows;
}

/* In the session: looks from time to time whether the cut should end. */
static void
watch(Process *process)
{
	CompareSession *session = process->session;
	TimestampTz now = GetCurrentTimestamp();

	if (session == NULL || !TimestampDifferenceExceeds(process->watched, now, WATCH_INTERVAL))
		return;
	if (session->watch(session->watch_argument))
		task_stop(process->task);
	process->watched = GetCurrentTimestamp();
}

/* Keeps to the limit of rows per second, but does not hold the snapshot for that. */
static void
keep_to_rate(Process *process, CompareSide side)
{
	CompareTask *task = process->task;

	for (;;)
	{
		int64		wait = task_milliseconds_ahead(task, side);

		CHECK_FOR_INTERRUPTS();
		watch(process);
		if (wait <= 0 || GetCurrentTimestamp() >= task->deadline || task->stop)
			return;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(wait, WATCH_INTERVAL), wait_event_id(WEFT_WAIT_COMPARE_RATE));
		ResetLatch(MyLatch);
	}
}

static void
run_units(Process *process)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "weft comparison unit",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = CurrentMemoryContext;
	CompareSide side;
	CompareUnit *unit;

	pg_atomic_fetch_add_u32(&process->progress->jobs, 1);
	while ((unit = task_take(process->task, &side)) != NULL)
	{
		uint64		rows;

		CHECK_FOR_INTERRUPTS();
		if (side == SIDE_PUBLISHER)
			connect_worker(process);
		MemoryContextSwitchTo(context);
		rows = side == SIDE_PUBLISHER ? run_remote(process, unit) : run_locally(process, unit);
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
		task_read(process->task, side, rows);
		if (side == SIDE_PUBLISHER)
			pg_atomic_fetch_add_u64(&process->progress->rows, rows);
		keep_to_rate(process, side);
	}
	pg_atomic_fetch_sub_u32(&process->progress->jobs, 1);
	MemoryContextDelete(context);
}

/* Entry point of a parallel worker. */
void
compare_worker_main(dsm_segment *segment, shm_toc *toc)
{
	CompareTask *task = shm_toc_lookup(toc, KEY_TASK, false);
	Process		process = {.task = task,.progress = compare_progress_get(task->progress)};

	pgstat_report_appname("weft comparison");
	run_units(&process);
	if (process.conn != NULL)
		walrcv_disconnect(process.conn);
}

static ParallelContext *
start_workers(CompareSession *session, const TaskBuilder *builder, CompareTask **task)
{
	int			workers = Min(session->jobs, 2 * list_length(builder->units)) - 1;
	ParallelContext *context = CreateParallelContext("weft", "compare_worker_main", workers);

	shm_toc_estimate_chunk(&context->estimator, task_size(builder));
	shm_toc_estimate_keys(&context->estimator, 1);
	InitializeParallelDSM(context);
	*task = shm_toc_allocate(context->toc, task_size(builder));
	task_fill(*task, builder);
	(*task)->subid = session->subscription->oid;
	(*task)->progress = compare_progress_index(session->progress);
	(*task)->deadline = session->deadline;
	strlcpy((*task)->snapshot, session->snapshot, COMPARE_SNAPSHOT_LEN);
	(*task)->rate = session->rate;
	shm_toc_insert(context->toc, KEY_TASK, *task);
	LaunchParallelWorkers(context);
	return context;
}

/*
 * Computes the sums of a task with up to session->jobs processes.  Returns a copy of the
 * task with its outcomes.  There must be an active snapshot, and nothing may have been
 * written since the transaction began that workers would have to see.
 */
CompareTask *
compare_workers_run(CompareSession *session, const TaskBuilder *builder)
{
	Process		process = {.session = session,.subscription = session->subscription,
	.conn = session->conn,.progress = session->progress};
	CompareTask *result = palloc(task_size(builder));
	ParallelContext *context;

	EnterParallelMode();
	context = start_workers(session, builder, &process.task);
	process.watched = GetCurrentTimestamp();
	run_units(&process);
	WaitForParallelWorkersToFinish(context);
	memcpy(result, process.task, task_size(builder));
	DestroyParallelContext(context);
	ExitParallelMode();
	session->rate = result->rate;
	return result;
}
