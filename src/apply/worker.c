/*
 * worker.c
 *	  The background worker that a writer is.
 *
 * To the server's apply code, a writer looks like the subscription's apply worker.  It is
 * connected as the subscription's owner, and has MySubscription, a copy of the leader's
 * LogicalRepWorker entry, and the leader's replication origin.  The copy protects the entry
 * itself from what the writer does, and lets server_apply.c pretend for a moment that the
 * process is another kind of worker.
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "access/xact.h"
#include "apply/change.h"
#include "apply/commit_group.h"
#include "apply/local_transaction.h"
#include "apply/order.h"
#include "apply/server_apply.h"
#include "apply/stream_writer.h"
#include "apply/turn.h"
#include "apply/worker.h"
#include "apply/writer.h"
#include "catalog/pg_authid.h"
#include "compat.h"
#include "conflict/cleanup.h"
#include "conflict/plain_row.h"
#include "conflict/remote_transaction.h"
#include "conflict/settings.h"
#include "conflict/version.h"
#include "conflict/watched_columns.h"
#include "fast/fast.h"
#include "gate.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

/* Report statistics after this time without work, as the server does. */
#define STATS_INTERVAL 1000L	/* ms */

static emit_log_hook_type next_emit_log_hook;
static bool initializing = false;

/*
 * If the leader ends its writers, it reports the reason itself.  The server's code would report
 * each writer as an apply worker that starts.
 */
static void
be_quiet(ErrorData *edata)
{
	if (next_emit_log_hook)
		next_emit_log_hook(edata);
	if (initializing && edata->elevel == LOG)
		edata->output_to_server = false;
	if (edata->elevel == FATAL && edata->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN &&
		ring_stopping(writer.ring))
		edata->output_to_server = false;
}

/* Becomes, for the server's apply code, the subscription's apply worker. */
static void
impersonate_apply_worker(Oid subid)
{
	LogicalRepWorker *copy = MemoryContextAllocZero(TopMemoryContext,
													sizeof(LogicalRepWorker));
	LogicalRepWorker *leader;

	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	leader = compat_worker_find(subid, InvalidOid, true);
	if (leader)
		*copy = *leader;
	LWLockRelease(LogicalRepWorkerLock);
	if (leader == NULL)
		proc_exit(0);

	copy->stream_fileset = NULL;
	copy->parallel_apply = false;
	MyLogicalRepWorker = copy;
}

/* Connects to the database as the subscription's owner, and creates the server's context. */
static void
connect_as_owner(void)
{
	SubscriptionShared *subscription = writer.subscription;

	if (COMPAT_WORKER_KEEPS_CONNINFO)
	{
		initializing = true;
		InitializeLogRepWorker();
		initializing = false;
		return;
	}
	SetConfigOption("session_replication_role", "replica", PGC_SUSET, PGC_S_OVERRIDE);
	BackgroundWorkerInitializeConnectionByOid(subscription->dbid, subscription->userid, 0);
	SetConfigOption("search_path", "", PGC_SUSET, PGC_S_OVERRIDE);
	ApplyContext = AllocSetContextCreate(TopMemoryContext, "ApplyContext",
										 ALLOCSET_DEFAULT_SIZES);
}

static void
load_subscription(Oid subid)
{
	MemoryContext old;

	StartTransactionCommand();
	old = MemoryContextSwitchTo(ApplyContext);
	MySubscription = GetSubscription(subid, true);
	MemoryContextSwitchTo(old);
	if (MySubscription == NULL || !MySubscription->enabled)
		proc_exit(0);

	/* The server's code reads it once more, the first time it is asked. */
	maybe_reread_subscription();
	CommitTransactionCommand();

	/* As in the leader: so that pg_stat_activity says whose process this is. */
	SetConfigOption("application_name", MySubscription->name, PGC_USERSET, PGC_S_SESSION);

	/* The leader sees to durability. */
	SetConfigOption("synchronous_commit", "off", PGC_BACKEND, PGC_S_OVERRIDE);
}

/* Applies streamed transactions until the leader ends this writer, or it is idle for long. */
static void
work_for_streams(void)
{
	while (stream_writer_work())
	{
		pgstat_report_stat(true);
		fast_report(true);
	}
	writer.ring->writer_procno[writer.number] = INVALID_PROC_NUMBER;
}

/* Applies transactions from the ring until the leader ends this writer. */
static void
work(void)
{
	for (;;)
	{
		bool		stats_pending = pgstat_report_stat(false) > 0;
		bool		rows_pending = fast_report(false);
		long		timeout = stats_pending || rows_pending ? STATS_INTERVAL : -1;
		int			count;
		uint64		first;

		/* One writer is enough to remove old rows of conflict/. */
		if ((writer.detect_conflicts || track_commit_timestamp) && writer.number == 0)
		{
			long		next = conflict_clean();

			timeout = timeout < 0 ? next : Min(timeout, next);
		}
		first = ring_wait_transactions(turn_waiter(), timeout, &count);

		if (first != 0)
		{
			commit_group_apply(first, count);
			continue;
		}
		fast_report(true);
		if (ring_stopping(writer.ring))
			break;
		pgstat_report_stat(true);
	}
}

/* May a trigger fire now?  For the fast path. */
static bool
everything_before_is_there(void)
{
	return turn_is_oldest() && !order_pending();
}

/* Tells the fast path what it needs to know of this writer. */
static void
init_fast(void)
{
	FastContext context = {
		.subscription = writer.subscription,
		.detect_conflicts = writer.detect_conflicts,
		.find_remote = server_apply_find_relation,
		.everything_before_is_there = everything_before_is_there,
		.has_delta_columns = conflict_has_delta_columns,
		.watched_columns = conflict_watched_columns,
		.origin_differs = conflict_origin_differs,
		.was_deleted = conflict_was_deleted,
		.remember_delete = conflict_remember_delete,
	};

	fast_init(&context);
}

/* Entry point of the background worker. */
void
worker_main(Datum main_arg)
{
	char		origin_name[NAMEDATALEN];
	ErrorContextCallback callback;
	Oid			subid;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	/* A reload since this process was forked has been ignored. */
	ConfigReloadPending = true;

	compat_injection_point("weft-writer-attaches");
	writer_attach(main_arg);
	commit_group_attach();
	turn_init(change_rest);
	gate_ask_before_waiting(turn_blocks_others);
	next_emit_log_hook = emit_log_hook;
	emit_log_hook = be_quiet;
	subid = writer.subscription->subid;
	impersonate_apply_worker(subid);
	connect_as_owner();
	compat_injection_point("weft-writer-starts");

	ApplyMessageContext = AllocSetContextCreate(ApplyContext, "ApplyMessageContext",
												ALLOCSET_DEFAULT_SIZES);
	load_subscription(subid);
	local_transaction_init();
	ReplicationOriginNameForLogicalRep(subid, InvalidOid, origin_name, sizeof(origin_name));
	set_apply_error_context_origin(origin_name);
	callback.callback = apply_error_callback;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	apply_error_context_stack = error_context_stack;

	server_apply_init();
	init_fast();
	writer_watch_subscription();
	if (writer.detect_conflicts)
		conflict_init(writer.subscription, turn_wait_oldest);
	writer_set_activity(WRITER_IDLE);
	pgstat_report_activity(STATE_IDLE, NULL);

	if (writer_is_for_streams())
		work_for_streams();
	else
		work();
	proc_exit(0);
}
