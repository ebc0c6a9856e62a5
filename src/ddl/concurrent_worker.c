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
 * Signals.  SIGTERM, with which a server that is shut down ends its workers, is handled like a request to cancel the
 * statement.  Then the worker notes that this attempt does not count, and ends.
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
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "compat.h"
#include "ddl/concurrent.h"
#include "ddl/concurrent_index.h"
#include "ddl/concurrent_yield.h"
#include "ddl/ddl_apply.h"
#include "ddl/ddl_queue.h"
#include "ddl/repeated_rows.h"
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
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/dest.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

PGDLLEXPORT void weft_ddl_worker_main(Datum arg);

static ConcurrentTask task;

/* Was the worker told to end? */
static volatile sig_atomic_t terminated = false;

/* Does the attempt count, if it fails? */
static bool counts = true;

/* Has the statement's index not been created yet? */
static bool index_expected = false;

static object_access_hook_type previous_object_access_hook = NULL;

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

	/*
	 * In a deadlock, it is the worker that starts again, not a user's
	 * session.
	 */
	set("deadlock_timeout", "10ms");
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

/*
 * Locks the table for the session, as the statement will do, as long as there is no snapshot: see the head of
 * concurrent.c.
 */
static void
lock_table(Node *statement)
{
	LockRelId	id = {.dbId = MyDatabaseId};

	begin();
	id.relId = concurrent_index_table(statement);
	InvalidateCatalogSnapshot();
	if (OidIsValid(id.relId))
		LockRelationIdForSession(&id, ShareUpdateExclusiveLock);
	commit();
}

/* Drops the invalid index that an earlier attempt has left behind, if there is one. */
static void
clean_up(Node *statement, Oid made)
{
	bool		replication = weft_ddl_replication;
	char	   *text = NULL;
	Oid			index;

	begin();
	index = concurrent_index_leftover(statement, made);
	if (OidIsValid(index))
		text = psprintf("DROP INDEX CONCURRENTLY %s",
						quote_qualified_identifier(get_namespace_name(get_rel_namespace(index)),
												   get_rel_name(index)));

	if (text == NULL)
	{
		commit();
		return;
	}

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

/* Notes the index that the statement creates, in the same transaction: the next attempt may find it. */
static void
object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	ConcurrentRow *row;

	if (previous_object_access_hook)
		previous_object_access_hook(access, class_id, object_id, sub_id, arg);
	if (!index_expected || access != OAT_POST_CREATE || class_id != RelationRelationId ||
		sub_id != 0)
		return;
	index_expected = false;
	row = concurrent_get(task.subid, task.id, false);
	if (row == NULL)
		return;
	row->made = object_id;
	concurrent_replace(row);
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
	return MySubscription ? concurrent_get(task.subid, task.id, false) : NULL;
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

/* The statement has been executed, in the transaction that is open.  "detail" may be NULL. */
static void
finish(const DdlMessage *message, const char *detail)
{
	ConcurrentRow *row;

	concurrent_yield_stop();
	row = concurrent_get(task.subid, task.id, false);
	compat_injection_point("weft-ddl-worker-done");

	/* The subscription may have been dropped. */
	if (row == NULL || !concurrent_remove(row))
		return;
	ddl_queue_record_with(MySubscription->name, message, row->lsn, "applied", detail);
	concurrent_forget_dropped(message);
}

static void
error_callback(void *arg)
{
	const DdlMessage *message = arg;

	errcontext("applying schema change " INT64_FORMAT " of role \"%s\": %s",
			   message->id, message->role, message->statement);
}

/*
 * Executes the statement, unless all attempts are used up, and this one has only to clean up.  "detail" is
 * for the history.
 */
static void
attempt(const ConcurrentRow *row, const DdlMessage *message, RawStmt *tree, const char *detail)
{
	concurrent_yield_start(task.subid);
	compat_injection_point("weft-ddl-worker-lock");
	lock_table(tree->stmt);
	clean_up(tree->stmt, row->made);
	if (row->attempts > CONCURRENT_ATTEMPTS)
		ereport(ERROR,
				(errmsg("the background worker has ended unexpectedly")));
	compat_injection_point("weft-ddl-worker-begin");
	begin();
	if (concurrent_index_exists(tree->stmt))
	{
		finish(message, CONCURRENT_EXISTS);
		commit();
		return;
	}
	concurrent_set_mode(tree->stmt, true);
	index_expected = IsA(tree->stmt, IndexStmt);
	repeated_rows_begin();
	execute(tree, message->statement);
	repeated_rows_end();
	index_expected = false;
	finish(message, detail);
	commit();
}

static void
run(void)
{
	ConcurrentRow *row;
	DdlMessage *message;
	RawStmt    *tree;
	char	   *missing;
	ErrorContextCallback callback = {.callback = error_callback};

	begin();
	row = load();
	if (row == NULL)
	{
		commit();
		return;
	}
	message = concurrent_message(row);
	concurrent_allow_missing(message);
	missing = concurrent_missing(message);
	callback.arg = message;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	prepare(message);
	tree = ddl_apply_parse(message);
	commit();
	if (tree != NULL)
		attempt(row, message, tree, missing);
	error_context_stack = callback.previous;
}

/*
 * The statement has failed: another attempt follows, or none.  If the worker was told to end, has yielded, or there was
 * a deadlock, the statement has not failed.
 */
static void
note_failure(const char *problem)
{
	ConcurrentRow *row;

	begin();
	row = load();
	if (row != NULL)
	{
		row->attempts -= counts ? 0 : 1;
		row->last_error = pstrdup(problem);
		row->retry_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													wal_retrieve_retry_interval);
		if (row->attempts >= CONCURRENT_ATTEMPTS)
			concurrent_fail(row, MySubscription->name, problem);
		else
			concurrent_replace(row);
	}
	commit();
}

/*
 * Drops what a failed attempt has left behind.  If that fails, or the worker has yielded, the next one does it.  The statement may have
 * gone with its subscription; then the index remains.
 */
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
	if (tree == NULL)
		return;
	concurrent_yield_start(task.subid);
	lock_table(tree->stmt);
	clean_up(tree->stmt, row->made);
}

/* A step has failed: says so, and notes whether the attempt counts. */
static void
report_failure(ErrorData *error)
{
	bool		yields = concurrent_yielded() && !terminated &&
		error->sqlerrcode == ERRCODE_QUERY_CANCELED;

	if (terminated || yields || error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED)
		counts = false;
	if (!yields)
	{
		EmitErrorReport();
		return;
	}
	error->message = "The background worker was waiting for other sessions, and a later schema change for it.";
	ereport(LOG,
			(errmsg("schema change " INT64_FORMAT " of subscription \"%s\" gives way to a later one",
					task.id, MySubscription->name),
			 errdetail("%s", error->message)));
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
		concurrent_yield_stop();
		error = CopyErrorData();
		repeated_rows_end();
		report_failure(error);
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

/* Ends the statement with an error, so that the worker can say that it has been interrupted. */
static void
handle_sigterm(SIGNAL_ARGS)
{
	terminated = true;
	StatementCancelHandler(COMPAT_SIGNAL_ARGUMENTS);
}

/* Entry point of the background worker. */
void
weft_ddl_worker_main(Datum arg)
{
	char	   *problem;

	memcpy(&task, MyBgworkerEntry->bgw_extra, sizeof(task));
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGINT, StatementCancelHandler);
	pqsignal(SIGTERM, handle_sigterm);
	BackgroundWorkerUnblockSignals();
	before_shmem_exit(release_locks, (Datum) 0);
	BackgroundWorkerInitializeConnectionByOid(task.database, task.role,
											  BGWORKER_BYPASS_ROLELOGINCHECK);
	context = AllocSetContextCreate(TopMemoryContext, "weft ddl worker", ALLOCSET_DEFAULT_SIZES);
	/* Some commands keep there what they need after their first transaction. */
	PortalContext = context;
	set_parameters();
	previous_object_access_hook = object_access_hook;
	object_access_hook = object_access;

	problem = run_step(run);
	if (problem != NULL)
	{
		if (!terminated && !concurrent_yielded())
			(void) run_step(clean_up_failure);
		concurrent_yield_stop();
		note_failure(problem);
	}
	proc_exit(0);
}
