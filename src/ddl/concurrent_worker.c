/*
 * concurrent_worker.c
 *	  The background worker that executes a schema change outside of the stream.
 *
 * The head of concurrent.c has the protocol.  The worker executes one statement, and ends.
 *
 * Rights.  A statement with several transactions cannot be executed as another user than that of the
 * session.  Therefore the worker's session belongs to the role of the statement, as if that role had
 * connected, and its code can do no more than the role may.  The worker's own changes of Weft's
 * tables are made below SQL.
 *
 * Settings.  Those of the statement are set for the session, because each of its transactions ends
 * what is set locally.  Like a writer, the worker is a replica: triggers that are not meant for replicas
 * do not fire.
 *
 * Origin.  Schema changes that the worker publishes in turn have the origin of the subscription, like
 * all that is applied, but its transactions have none: it must not advance the subscription's progress.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "compat.h"
#include "ddl/concurrent.h"
#include "ddl/ddl_apply.h"
#include "ddl/ddl_queue.h"
#include "ddl/statement_settings.h"
#include "guc.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/logicalworker.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "tcop/dest.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

PGDLLEXPORT void weft_ddl_worker_main(Datum arg);

static ConcurrentTask task;

/* Lives as long as the worker: the statement's transactions end before it does. */
static MemoryContext context;

static void
set(const char *name, const char *value)
{
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

/* The role's own settings are meant for its sessions, not for this. */
static void
set_parameters(void)
{
	set("role", "none");
	set("session_replication_role", "replica");
	set("default_transaction_read_only", "off");
	set("default_transaction_isolation", "read committed");
	set("lock_timeout", "0");
	set("statement_timeout", "0");
	set("transaction_timeout", "0");
	set("idle_in_transaction_session_timeout", "0");
}

static void
begin(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	MemoryContextSwitchTo(context);
}

static void
commit(void)
{
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
}

/* Executes a statement that has its own transactions.  Its last one remains open. */
static void
execute(RawStmt *tree, const char *text)
{
	List	   *queries;
	List	   *plans;

	PushActiveSnapshot(GetTransactionSnapshot());
	queries = pg_analyze_and_rewrite_fixedparams(tree, text, NULL, 0, NULL);
	plans = pg_plan_queries(queries, text, 0, NULL);
	ProcessUtility(linitial_node(PlannedStmt, plans), text, false,
				   PROCESS_UTILITY_TOPLEVEL, NULL, NULL, None_Receiver, NULL);
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	MemoryContextSwitchTo(context);
}

/* Drops the invalid index that an earlier attempt has left behind, if there is one. */
static void
clean_up(Node *statement)
{
	bool		replication = weft_ddl_replication;
	char	   *text;
	char	   *index;

	begin();
	index = concurrent_leftover(statement, GetUserId());
	if (index == NULL)
	{
		commit();
		return;
	}
	text = psprintf("DROP INDEX CONCURRENTLY %s", index);

	weft_ddl_replication = false;
	PG_TRY();
	{
		execute(linitial_node(RawStmt, pg_parse_query(text)), text);
	}
	PG_FINALLY();
	{
		weft_ddl_replication = replication;
	}
	PG_END_TRY();
	commit();
}

/*
 * Takes the lock, and reads the statement; returns NULL if there is nothing to be done any more.  Called in a
 * transaction.
 */
static ConcurrentRow *
load(void)
{
	(void) concurrent_lock(task.subid, true, true);
	MySubscription = GetSubscription(task.subid, true);
	return MySubscription ? concurrent_get(task.subid, task.id) : NULL;
}

/* Who executes the statement, and how. */
static void
prepare(const DdlMessage *message)
{
	char		name[NAMEDATALEN];

	if (ddl_apply_role(message) != GetUserId())
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role \"%s\" was replaced by another one", message->role)));
	statement_settings_set_session(message->settings);
	ReplicationOriginNameForLogicalRep(task.subid, InvalidOid, name, sizeof(name));
	ddl_queue_set_origin(replorigin_by_name(name, true));
	debug_query_string = message->statement;
	pgstat_report_activity(STATE_RUNNING, message->statement);
}

/* The statement has been executed, in the transaction that is open. */
static void
finish(const DdlMessage *message)
{
	ConcurrentRow *row = concurrent_get(task.subid, task.id);

	compat_injection_point("weft-ddl-worker-done");
	if (row == NULL)
		return;
	ddl_queue_record(MySubscription->name, message, row->lsn, "applied");
	concurrent_remove(row);
}

static void
error_callback(void *arg)
{
	const DdlMessage *message = arg;

	errcontext("applying schema change " INT64_FORMAT " of role \"%s\": %s",
			   message->id, message->role, message->statement);
}

/* Executes the statement, unless all attempts are used up, and this one has only to clean up. */
static void
attempt(const ConcurrentRow *row, const DdlMessage *message, RawStmt *tree)
{
	clean_up(tree->stmt);
	if (row->attempts > CONCURRENT_ATTEMPTS)
		ereport(ERROR,
				(errmsg("the background worker has ended unexpectedly")));
	compat_injection_point("weft-ddl-worker-begin");
	begin();
	concurrent_set_mode(tree->stmt, true);
	execute(tree, message->statement);
	finish(message);
	commit();
}

static void
run(void)
{
	ConcurrentRow *row;
	DdlMessage *message;
	RawStmt    *tree;
	ErrorContextCallback callback = {.callback = error_callback};

	begin();
	row = load();
	if (row == NULL)
	{
		commit();
		return;
	}
	message = concurrent_message(row);
	callback.arg = message;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	prepare(message);
	tree = ddl_apply_parse(message);
	commit();
	if (tree != NULL)
		attempt(row, message, tree);
	error_context_stack = callback.previous;
}

/* The statement has failed: another attempt follows, or none. */
static void
note_failure(const char *problem)
{
	ConcurrentRow *row;

	begin();
	row = load();
	if (row != NULL)
	{
		DdlMessage *message = concurrent_message(row);

		row->failed = row->attempts >= CONCURRENT_ATTEMPTS;
		row->last_error = pstrdup(problem);
		row->retry_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													wal_retrieve_retry_interval);
		concurrent_replace(row);
		if (row->failed)
			ereport(WARNING,
					(errmsg("schema change " INT64_FORMAT " of subscription \"%s\" has failed",
							row->id, MySubscription->name),
					 errdetail("%s", problem),
					 errhint("Remove the cause, and execute the statement here: %s",
							 message->statement)));
	}
	commit();
}

/* Drops what a failed attempt has left behind.  If that fails, the next one does it. */
static void
clean_up_failure(void)
{
	ConcurrentRow *row;
	RawStmt    *tree = NULL;

	begin();
	row = load();
	if (row != NULL)
		tree = ddl_apply_parse(concurrent_message(row));
	commit();
	if (tree != NULL)
		clean_up(tree->stmt);
}

/* Runs a step; returns the problem if it fails. */
static char *
run_step(void (*step) (void))
{
	ErrorData  *error = NULL;

	PG_TRY();
	{
		step();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		EmitErrorReport();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(context);
	}
	PG_END_TRY();
	return error ? error->message : NULL;
}

/* The server expects a background worker to release the locks of its session. */
static void
release_locks(int code, Datum arg)
{
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
}

/* Entry point of the background worker. */
void
weft_ddl_worker_main(Datum arg)
{
	char	   *problem;

	memcpy(&task, MyBgworkerEntry->bgw_extra, sizeof(task));
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGINT, StatementCancelHandler);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	before_shmem_exit(release_locks, (Datum) 0);
	BackgroundWorkerInitializeConnectionByOid(task.database, task.role,
											  BGWORKER_BYPASS_ROLELOGINCHECK);
	context = AllocSetContextCreate(TopMemoryContext, "weft ddl worker", ALLOCSET_DEFAULT_SIZES);
	/* Some commands keep there what they need after their first transaction. */
	PortalContext = context;
	set_parameters();

	problem = run_step(run);
	if (problem != NULL)
	{
		(void) run_step(clean_up_failure);
		note_failure(problem);
	}
	proc_exit(0);
}
