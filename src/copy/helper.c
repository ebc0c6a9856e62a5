/*
 * helper.c
 *	  Helpers: the parallel workers that copy a table.
 *
 * P is the process that copies the table: a table synchronization worker, or the worker of
 * a node that joins a group.  H1, H2, … are its helpers.  However many helpers there are,
 * the table is copied in one transaction, P's.  Therefore nobody sees its rows before P has
 * committed, and a copy that ends early, for whatever reason, leaves nothing but dead rows
 * behind, as the server's own copy does: there is nothing to repair, and no row can be
 * copied twice.
 *
 * Helpers are the server's parallel workers, which share their leader's transaction: its
 * ID, snapshot, user, settings and locks, and locks of one such group do not conflict.  P's
 * transaction never ends before its helpers have; that is the server's rule, too.  But the
 * server forbids parallel workers to write, because some writes would go wrong.  Its code
 * gives the reasons:
 *	 - GetCurrentCommandId(): P would not learn that the current command ID is used.  P has
 *	   used it before the helpers start.
 *	 - heap_insert(): foreign keys need new command IDs.  No triggers fire here; tables with
 *	   triggers that would fire are not copied with helpers (target_table.c).
 *	 - Assigning a transaction ID: P has one before the helpers start.
 *	 - Everything else (updates, deletes, sequences, new files, temporary tables, settings,
 *	   unsafe functions) stays forbidden, because the transaction stays in parallel mode.
 * Therefore, while a helper inserts rows, its ParallelWorkerNumber says that it is no
 * parallel worker.  The number must be restored before the helper sends P anything.  The
 * only thing that it can send is one error, because start_helpers() suppresses all
 * messages below that.
 *
 * The server is made for inserts of several processes into one table; that they have the
 * same transaction ID makes no difference to it.  No index is maintained (indexes.c), apart
 * from those of TOAST tables, whose values have IDs of their own.  Only logical decoding
 * assumes that a transaction is the work of one process; helpers_wanted() in table.c says
 * when that matters.
 *
 * A helper that cannot connect, or gets no lock on the publisher, logs that and ends; it
 * has not taken a range yet.  If that happens to all helpers, P copies what is left itself,
 * on the server's connection.  Once a helper has taken a range, its error is an error of
 * the whole copy.
 *
 * Deadlocks:
 * 1. H1 and H2 wait for each other while they extend the table: these are short waits for
 *	  the extension lock, and lock_timeout is off for them (copy_helpers_run()).
 * 2. H1 waits on the publisher for a lock behind a session that waits for P's transaction
 *	  there: H1 gives up after a while (source.c).
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/table.h"
#include "access/xact.h"
#include "compat.h"
#include "copy/command.h"
#include "copy/helper.h"
#include "copy/progress.h"
#include "copy/ranges.h"
#include "copy/source.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "replication/origin.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "wait_event.h"

#define KEY_TASK UINT64CONST(1)

/* How often P sends something on its connection to the publisher, in milliseconds. */
#define KEEP_ALIVE_INTERVAL 10000

/* How often P checks its helpers if none of them sets its latch, in milliseconds. */
#define LOOK_INTERVAL 1000

/*
 * In a helper: its ParallelWorkerNumber while that is hidden, else -1.  Static because
 * emit_log_hook needs it.
 */
static int	number = -1;
static emit_log_hook_type previous_emit_log_hook;

static void
restore_number(void)
{
	if (number >= 0)
		ParallelWorkerNumber = number;
	number = -1;
}

/* An error that ends the process is sent without being catchable. */
static void
emit_log(ErrorData *error)
{
	if (error->elevel >= ERROR)
		restore_number();
	if (previous_emit_log_hook)
		previous_emit_log_hook(error);
}

/* Copies as if this were not a parallel worker; the head of the file says why. */
static void
insert_rows(CopyTask *task, const CopyCommand *command, WalReceiverConn *conn)
{
	previous_emit_log_hook = emit_log_hook;
	emit_log_hook = emit_log;
	number = ParallelWorkerNumber;
	replorigin_session_origin = task->origin;
	PG_TRY();
	{
		ParallelWorkerNumber = -1;
		copy_ranges(task, command, conn, true);
	}
	PG_FINALLY();
	{
		restore_number();
		emit_log_hook = previous_emit_log_hook;
		replorigin_session_origin = InvalidRepOriginId;
	}
	PG_END_TRY();
}

static void
parse_command(const CopyTask *task, Relation rel, CopyCommand *command)
{
	if (!copy_command_parse(task->texts, get_namespace_name(RelationGetNamespace(rel)),
							RelationGetRelationName(rel), command))
		elog(ERROR, "could not parse command of the initial copy: %s", task->texts);
}

/* Entry point of a helper. */
void
copy_helper_main(dsm_segment *segment, shm_toc *toc)
{
	CopyTask   *task = shm_toc_lookup(toc, KEY_TASK, false);
	CopyProgress *progress = copy_progress_get(task->progress);
	Relation	rel = table_open(task->relid, RowExclusiveLock);
	CopyCommand command;
	WalReceiverConn *conn;

	pgstat_report_appname("weft copy helper");
	parse_command(task, rel, &command);
	table_close(rel, NoLock);
	conn = copy_source_join(task, &command);
	if (conn == NULL)
		return;

	pg_atomic_fetch_add_u32(&progress->helpers, 1);
	insert_rows(task, &command, conn);
	pg_atomic_fetch_sub_u32(&progress->helpers, 1);
	walrcv_disconnect(conn);
}

/*
 * Is a helper starting or at work?  WaitForParallelWorkersToFinish() deals with one that
 * has ended without a message.
 */
static bool
helpers_running(ParallelContext *context)
{
	pid_t		pid;

	for (int i = 0; i < context->nworkers_launched; i++)
		if (context->worker[i].error_mqh != NULL &&
			GetBackgroundWorkerPid(context->worker[i].bgwhandle, &pid) != BGWH_STOPPED)
			return true;
	return false;
}

/* Waits until all helpers have ended.  Their errors are thrown here. */
static void
wait_for_helpers(ParallelContext *context, WalReceiverConn *conn)
{
	TimestampTz kept = GetCurrentTimestamp();

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (!helpers_running(context))
			break;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LOOK_INTERVAL, wait_event_id(WEFT_WAIT_COPY_HELPERS));
		ResetLatch(MyLatch);
		if (TimestampDifferenceExceeds(kept, GetCurrentTimestamp(), KEEP_ALIVE_INTERVAL))
		{
			copy_source_keep_alive(conn);
			kept = GetCurrentTimestamp();
		}
	}
	WaitForParallelWorkersToFinish(context);
}

static ParallelContext *
start_helpers(const CopyTask *task, Size size)
{
	ParallelContext *context;
	CopyTask   *shared;

	/* Helpers send nothing but errors. */
	SetConfigOption("client_min_messages", "error", PGC_SUSET, PGC_S_OVERRIDE);
	(void) GetCurrentTransactionId();
	(void) GetCurrentCommandId(true);

	EnterParallelMode();
	context = CreateParallelContext("weft", "copy_helper_main", task->num_helpers);
	shm_toc_estimate_chunk(&context->estimator, size);
	shm_toc_estimate_keys(&context->estimator, 1);
	InitializeParallelDSM(context);
	shared = shm_toc_allocate(context->toc, size);
	memcpy(shared, task, size);
	SpinLockInit(&shared->mutex);
	shm_toc_insert(context->toc, KEY_TASK, shared);
	LaunchParallelWorkers(context);
	return context;
}

/*
 * Copies a table with up to task->num_helpers helpers.  Returns the state in which they
 * have left the task; if no helper could work, ranges are left to be taken.
 */
CopyTask *
copy_helpers_run(const CopyTask *task, Size size, WalReceiverConn *conn)
{
	CopyTask   *result = palloc(size);
	int			nest_level = NewGUCNestLevel();
	ParallelContext *context;

	/*
	 * Helpers wait for each other to extend the table, which a single process
	 * never does.
	 */
	(void) set_config_option("lock_timeout", "0", PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	context = start_helpers(task, size);
	if (context->nworkers_launched < task->num_helpers)
		ereport(LOG,
				(errmsg("table %s of %s is copied by %d of %d helpers: no more parallel workers are available",
						get_rel_name(task->relid), task->user,
						context->nworkers_launched, task->num_helpers),
				 errhint("Increase \"max_worker_processes\" and \"max_parallel_workers\".")));
	wait_for_helpers(context, conn);
	memcpy(result, shm_toc_lookup(context->toc, KEY_TASK, false), size);
	DestroyParallelContext(context);
	ExitParallelMode();
	AtEOXact_GUC(false, nest_level);

	if (result->ranges_taken != result->ranges_done)
		elog(ERROR, "a helper ended during the initial copy of table %s", get_rel_name(task->relid));
	return result;
}
