/*
 * join.c
 *	  The background worker that makes this node a member of a group.
 *
 * J joins, M is the member that it copies, X any other member; J makes every connection.
 * The steps:
 *
 * 1. weft.join_step_prepare: removes from all members what an earlier attempt has left behind;
 *	  checks once more; takes over the list of members.  weft.join_step_register: enters J into
 *	  the list of every member.  A list accepts only one node that is joining or parting, so
 *	  there is never more than one in a group.
 * 2. weft.join_step_publish, weft.join_step_make_own_slots: J's publication, and its slots for the
 *	  others.  Everything that is written on J from now on reaches all of them.
 *	  weft.join_step_note_time, weft.join_step_make_slots: the slots for J on every X.
 *	  weft.join_step_catch_up: M applies what X had when its slot was made.
 * 3. copy(): M's slot for J and a snapshot, with the position that M had reached for each X
 *	  (snapshot.c); schema, rows and indexes.  M's tables are locked while they are copied
 *	  (copied_tables.c).  This is one transaction, with a replication origin that nobody follows, so
 *	  that it is not sent to the others.  It ends with the step "copied" in weft.join_entry.
 * 4. weft.join_step_subscribe: J's subscriptions, disabled.  Rows that were changed recently get
 *	  the times of these changes (recent.c).  weft.join_step_follow: the subscriptions' origins
 *	  are set to the positions that M had reached, and the subscriptions are enabled.
 * 5. weft.join_step_announce: the others subscribe to J.
 * 6. weft.join_step_finish: when J has what the others have now, J is a member.
 *
 * If something fails up to and including step 3, nothing that was done is of any use, and it
 * is removed (weft.join_undo).  What cannot be removed, because a member is unreachable or J
 * was killed, is removed by the next attempt or by weft.part_node.  From step 4 on, the
 * worker resumes from "copied".  The postmaster restarts it after an error; after a restart
 * of the server, weft.join_node_group or weft.wait_for_join_completion does.  Every step
 * from 4 on may be repeated.
 *
 * A slot is not ready before all transactions of its server that have written anything have
 * ended, which may include J's own.  Therefore no step writes and then has a slot made.
 *
 * If J was made from a physical copy of M, other steps take the place of the first three (sql/15-physical-copy.sql).
 * "copied" is set from the beginning, since nothing is to be undone.
 *
 * J is identified by its identity, a random number, not by its name: members refuse another
 * node of the same name, and nobody removes that node's entry (weft.check_identity).
 *
 * The worker runs as the role that called weft.join_node_group.
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "extension_version.h"
#include "fmgr.h"
#include "group/data.h"
#include "group/function_guard.h"
#include "local_query.h"
#include "group/recent.h"
#include "group/remote.h"
#include "group/schema.h"
#include "group/snapshot.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "pinned_settings.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/origin.h"
#include "replication/slot.h"
#include "server_copy.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"

/* The pause before the next attempt, after a failure in step 4 or later. */
#define RESTART_SECONDS 3

/* How long to wait for each lock on J's tables that are to be emptied, in milliseconds. */
#define TRUNCATE_LIMIT 10000

/* What is in bgw_extra. */
typedef struct JoinArguments
{
	Oid			database;
	Oid			role;
	TransactionId xid;			/* that requested the join; invalid if it has
								 * not written anything */
} JoinArguments;

StaticAssertDecl(sizeof(JoinArguments) <= BGW_EXTRALEN, "join arguments must fit");

static const char *const steps_before_copy[] = {
	"prepare", "register", "publish", "make_own_slots",
	"note_time", "make_slots", "catch_up"
};
static const char *const steps_of_physical_copy[] = {
	"make_copy_slots", "become"
};
static const char *const steps_after_copy[] = {
	"follow", "meet", "announce", "finish"
};

PG_FUNCTION_INFO_V1(weft_launch_join);

extern PGDLLEXPORT void weft_join_main(Datum main_arg);

static void
begin(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
}

static void
commit(void)
{
	CommitTransactionCommand();
	pgstat_report_stat(true);
}

/* Records in weft.join_entry which step begins. */
static void
enter_step(const char *step)
{
	begin();
	local_run(psprintf("UPDATE weft.join_entry SET step = %s", quote_literal_cstr(step)));
	pgstat_report_activity(STATE_RUNNING, step);
	commit();
}

static void
run_step(const char *step)
{
	enter_step(step);
	begin();
	local_run(psprintf("SELECT weft.join_step_%s()", step));
	compat_injection_point("weft-join-step");
	commit();
}

/* This node has tables: M's may have become other ones since the join began. */
static void
check_schema(void)
{
	local_run("SELECT weft.check_schema(n.dsn, n.node_name)"
			  " FROM weft.member n JOIN weft.join_entry j ON n.node_name = j.target_node");
}

/* What step 3 copies. */
typedef struct Copied
{
	const char *dsn;			/* of M */
	const char *node;
	const char *slot;			/* M's slot for J */
	bool		with_schema;
	char	   *before_rows;	/* M's schema, as scripts */
	char	   *after_rows;
	JoinSnapshot snapshot;
} Copied;

/* May an attempt to lock M's tables that has failed with this error succeed later? */
static bool
may_lock_later(int sqlstate)
{
	switch (sqlstate)
	{
		case ERRCODE_LOCK_NOT_AVAILABLE:
		case ERRCODE_T_R_DEADLOCK_DETECTED:
			/* Renamed, or replaced, while J has waited. */
		case ERRCODE_UNDEFINED_TABLE:
		case ERRCODE_UNDEFINED_SCHEMA:
		case ERRCODE_WRONG_OBJECT_TYPE:
			return true;
		default:
			return false;
	}
}

/* Locks M's tables; returns what prevents that, or NULL. */
static const char *
lock_copied(Remote *now)
{
	MemoryContext context = CurrentMemoryContext;
	const char *volatile problem = NULL;

	PG_TRY();
	{
		problem = data_lock(now);
	}
	PG_CATCH();
	{
		if (!may_lock_later(geterrcode()))
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		problem = psprintf("Its tables could not be locked: %s.", CopyErrorData()->message);
		FlushErrorState();
	}
	PG_END_TRY();
	return problem;
}

/*
 * Empties J's tables, before the copy.  Sessions of M may wait for J's locks there, and somebody here for one of
 * them; so J does not wait for long.
 */
static void
truncate_tables(void)
{
	local_run("SELECT pg_catalog.set_config('lock_timeout', '" CppAsString2(TRUNCATE_LIMIT) "', true)");
	local_run("SELECT weft.join_truncate()");
	local_run("SET LOCAL lock_timeout TO DEFAULT");
}

/* Takes a snapshot of M, dumps its schema, and locks its tables; returns what prevents the latter, or NULL. */
static const char *
begin_copy(Copied *copied)
{
	JoinSnapshot *snapshot = &copied->snapshot;
	const char *problem;

	snapshot_take(snapshot, copied->dsn, copied->node, copied->slot);
	if (copied->with_schema)
	{
		copied->before_rows = schema_dump(copied->dsn, copied->node, snapshot->name, "pre-data");
		copied->after_rows = schema_dump(copied->dsn, copied->node, snapshot->name, "post-data");
	}
	else
		check_schema();
	compat_injection_point("weft-join-lock");
	data_open(copied->dsn, copied->node, snapshot->name);
	problem = lock_copied(snapshot->schema);
	if (problem == NULL)
		snapshot_let_schema_go(snapshot);
	return problem;
}

/* M's tables could not be locked: gives the snapshot up, and fails if that was the last attempt. */
static void
give_snapshot_up(Copied *copied, const char *problem, bool last)
{
	data_close();
	if (last)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not lock the tables of node \"%s\"", copied->node),
				 errdetail("%s", problem),
				 errhint("Join again when no session there alters, truncates or locks tables.")));
	ereport(LOG,
			(errmsg("taking another snapshot of node \"%s\"", copied->node),
			 errdetail("%s", problem)));
	snapshot_give_up(&copied->snapshot, copied->slot);
}

/* Copies what the snapshot has, in the current transaction. */
static void
copy_snapshot(const Copied *copied)
{
	/* An origin that nobody follows; it has no position of its own. */
	replorigin_session_origin = DoNotReplicateId;
	if (copied->with_schema)
		schema_run(copied->before_rows);
	else
		truncate_tables();

	/* Rows written here are published as soon as the tables exist. */
	local_run("SELECT weft.join_step_publish()");
	data_copy();
	data_check_types();
	if (copied->with_schema)
		schema_run(copied->after_rows);
	data_copy_recent();
	data_close();
	local_run("RESET ALL");
	local_run("UPDATE weft.join_entry SET step = 'copied', copied = true");
	remote_close(copied->snapshot.slot);
}

/* Returns false if another snapshot is needed; fails if this was the last attempt. */
static bool
try_to_copy(bool last)
{
	Copied		copied = {0};
	const char *problem;
	char	  **row;

	begin();
	row = linitial(local_rows("SELECT n.dsn, n.node_name, j.copy_schema,"
							  " weft.subscription_name(j.node_group_name, n.node_name, l.node_name)"
							  " FROM weft.join_entry j JOIN weft.member n ON n.node_name = j.target_node,"
							  " weft.node_entry l WHERE l.is_local", 4));
	copied.dsn = row[0];
	copied.node = row[1];
	copied.with_schema = row[2][0] == 't';
	copied.slot = row[3];
	problem = begin_copy(&copied);
	if (problem != NULL)
		give_snapshot_up(&copied, problem, last);
	else
		copy_snapshot(&copied);
	commit();
	replorigin_session_origin = InvalidRepOriginId;
	return problem == NULL;
}

/* Step 3.  Each attempt has a transaction of its own, because taking a snapshot writes. */
static void
copy(void)
{
	int			attempt = 1;

	enter_step("copy");
	while (!try_to_copy(attempt == SNAPSHOT_ATTEMPTS))
	{
		attempt++;
		snapshot_pause();
	}
}

static bool
is_copied(void)
{
	char	   *copied;

	begin();
	copied = local_value("SELECT copied FROM weft.join_entry WHERE error IS NULL OR copied");
	if (copied != NULL)
		copied = MemoryContextStrdup(TopMemoryContext, copied);
	commit();

	/* The join was given up, or is complete. */
	if (copied == NULL)
		proc_exit(0);
	return copied[0] == 't';
}

/* Is this server still a physical copy that is to become a node? */
static bool
is_physical_copy(void)
{
	bool		result;

	begin();
	result = server_copy_next_node() != NULL;
	commit();
	return result;
}

static void
join(void)
{
	if (!is_copied())
	{
		for (int i = 0; i < lengthof(steps_before_copy); i++)
			run_step(steps_before_copy[i]);
		copy();
	}
	else if (is_physical_copy())
		for (int i = 0; i < lengthof(steps_of_physical_copy); i++)
			run_step(steps_of_physical_copy[i]);
	run_step("subscribe");
	enter_step("stamp");
	recent_stamp();
	for (int i = 0; i < lengthof(steps_after_copy); i++)
		run_step(steps_after_copy[i]);
}

/* After an error: undoes everything if the copy is not complete, and records the error. */
static void
give_up(ErrorData *error)
{
	char	   *message = error->message;

	if (error->detail)
		message = psprintf("%s (%s)", message, error->detail);
	begin();
	local_run(psprintf("SELECT weft.join_undo(%s)", quote_literal_cstr(message)));
	commit();
}

/* Makes sure that this is the only worker; the lock ends with the process. */
static bool
lock_join(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0x77656674, 0x6a6f696e, 3);
	return LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
}

static void
connect_database(void)
{
	JoinArguments arguments;

	memcpy(&arguments, MyBgworkerEntry->bgw_extra, sizeof(arguments));
	SetConfigOption("session_replication_role", "replica", PGC_SUSET, PGC_S_OVERRIDE);
	/* The others have the schema that is copied. */
	SetConfigOption("weft.ddl_replication", "off", PGC_SUSET, PGC_S_OVERRIDE);
	BackgroundWorkerInitializeConnectionByOid(arguments.database, arguments.role, 0);
	pinned_settings_set();
	load_file("libpqwalreceiver", false);

	/* The transaction that requested the join must have committed. */
	StartTransactionCommand();
	if (TransactionIdIsValid(arguments.xid))
		XactLockTableWait(arguments.xid, NULL, NULL, XLTW_None);
	CommitTransactionCommand();
	function_guard_join();
}

/* Entry point of the background worker. */
void
weft_join_main(Datum main_arg)
{
	MemoryContext context;
	ErrorData  *error = NULL;
	bool		copied;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	connect_database();
	if (!lock_join())
		proc_exit(0);

	context = AllocSetContextCreate(TopMemoryContext, "weft join", ALLOCSET_DEFAULT_SIZES);
	PG_TRY();
	{
		join();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		EmitErrorReport();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		replorigin_session_origin = InvalidRepOriginId;

		/*
		 * A slot that is not ready is dropped by this; give_up() drops all
		 * others of this node.
		 */
		if (MyReplicationSlot != NULL)
			ReplicationSlotRelease();
	}
	PG_END_TRY();

	if (error != NULL)
	{
		copied = is_copied();
		give_up(error);
		if (copied)
			proc_exit(1);		/* to be started again */
	}
	proc_exit(0);
}

/*
 * weft.launch_join()
 *
 * Starts the worker once the transaction has committed.  The worker does nothing if another
 * one is running.
 */
Datum
weft_launch_join(PG_FUNCTION_ARGS)
{
	BackgroundWorker worker = {0};
	JoinArguments arguments = {MyDatabaseId, GetUserId(), GetTopTransactionIdIfAny()};
	BackgroundWorkerHandle *handle;

	shmem_require();
	extension_version_require();
	snprintf(worker.bgw_name, BGW_MAXLEN, "weft join");
	strlcpy(worker.bgw_type, "weft join", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = RESTART_SECONDS;
	strlcpy(worker.bgw_library_name, "weft", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "weft_join_main", BGW_MAXLEN);
	memcpy(worker.bgw_extra, &arguments, sizeof(arguments));
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("no background worker is available to join the node group"),
				 errhint("Increase \"max_worker_processes\".")));
	PG_RETURN_VOID();
}
