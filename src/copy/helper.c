/*
 * helper.c
 *	  Helpers: the parallel workers that copy a table.
 *
 * A table is copied in one transaction, that of its table synchronisation worker or
 * of a node that joins a group, however many processes take part.  So nobody sees its rows before the server has
 * committed it, and whatever ends the copy leaves nothing but dead rows behind, as
 * with the server's own copy.  There is nothing to be mended, and nothing that could
 * be doubled.
 *
 * The server's parallel workers share their leader's transaction: its ID, snapshot,
 * user, settings, and locks, among which there are no conflicts within the group.
 * The leader's transaction does not end before they have, whatever happens; that is
 * the server's rule, too.  But the server forbids them to write, since there are
 * writes that they could not do right.  Why is written where it says so:
 *	 - GetCurrentCommandId(): the leader would not learn that the current command ID
 *	   is used.  Ours has used it before the helpers start.
 *	 - heap_insert(): foreign keys need new command IDs.  Triggers do not fire here;
 *	   tables with triggers that would are not copied so (target_table.c).
 *	 - Assigning a transaction ID: ours has one before the helpers start.
 *	 - Everything else - updates, deletes, sequences, new files, temporary tables,
 *	   settings, unsafe functions - stays forbidden, for the transaction stays in
 *	   parallel mode.
 * So while rows are inserted, the worker's number says that it is none.  It must be
 * back before anything is sent to the leader, which is no more than one error, for
 * nothing below that is sent (start_helpers()).
 *
 * Inserts of several processes into one table are what the server is made for; that
 * they have one transaction ID makes no difference to it.  No index is maintained
 * (indexes.c), but for those of TOAST tables, in which values have their own IDs.  Only
 * logical decoding takes a transaction for the work of one process; copy.c says when that
 * matters.
 *
 * A helper that cannot connect, or gets no lock on the publisher, says so in the log
 * and is done; it has taken no range yet.  If all are, the leader copies what is left
 * itself, on the server's connection.  After a range was taken, an error is an error
 * of the whole copy.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/table.h"
#include "access/xact.h"
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

/* How often the publisher hears of us, in milliseconds. */
#define KEEP_ALIVE_INTERVAL 10000

/* How long we sleep at most between two looks at the helpers, in milliseconds. */
#define LOOK_INTERVAL 1000

/* In a helper, its number, while it is put away. */
static int	number = -1;
static emit_log_hook_type previous_emit_log_hook;

static void
restore_number(void)
{
	if (number >= 0)
		ParallelWorkerNumber = number;
	number = -1;
}

/* An error that ends the process is sent without a way to catch it. */
static void
emit_log(ErrorData *error)
{
	if (error->elevel >= ERROR)
		restore_number();
	if (previous_emit_log_hook)
		previous_emit_log_hook(error);
}

/* Copies, as if this were no parallel worker; the head of the file says why. */
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

/* What the server calls in a parallel worker. */
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
 * Is a helper still to come, or at work?  One that is gone without a word is left
 * to WaitForParallelWorkersToFinish().
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

/* Waits until all helpers are done.  Their errors are thrown here. */
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

	/* Only errors go from helpers to us. */
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
 * Copies a table with helpers, as many of task->num_helpers as can be had.  Returns
 * what has become of the task: not all of it need be done, if there were none.
 */
CopyTask *
copy_helpers_run(const CopyTask *task, Size size, WalReceiverConn *conn)
{
	CopyTask   *result = palloc(size);
	int			nest_level = NewGUCNestLevel();
	ParallelContext *context;

	/*
	 * They wait for each other while the table grows; one process alone never
	 * does.
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
