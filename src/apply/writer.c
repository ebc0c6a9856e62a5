/*
 * writer.c
 *	  A writer: the background worker that applies transactions.
 *
 * A writer looks to the server's apply code as if it were the apply worker: it
 * is connected as the subscription's owner, has MySubscription and a copy of
 * the leader's LogicalRepWorker entry, and the leader's replication origin.
 * The copy keeps the entry itself safe from us, and lets change.c say for a
 * moment that we are something else.
 *
 * The origin's position may be advanced by a commit only.  An abort would
 * advance it, too, if it met the origin set, so it is taken away first: in
 * transaction.c after an error, and here when the process ends.
 */
#include "postgres.h"

#include "access/xact.h"
#include "apply/order.h"
#include "apply/stream_writer.h"
#include "apply/writer.h"
#include "compat.h"
#include "catalog/pg_authid.h"
#include "conflict/cleanup.h"
#include "conflict/remote_transaction.h"
#include "conflict/settings.h"
#include "conflict/version.h"
#include "conflict/watched_columns.h"
#include "fast/fast.h"
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

/* Statistics are reported after so long without work, as the server does. */
#define STATS_INTERVAL 1000L	/* ms */

Writer		writer;

static emit_log_hook_type next_emit_log_hook;

static void
writer_exit(int code, Datum arg)
{
	replorigin_session_origin = InvalidRepOriginId;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;
}

/* The leader ends its writers, for a reason that it reports itself. */
static void
end_quietly(ErrorData *edata)
{
	if (next_emit_log_hook)
		next_emit_log_hook(edata);
	if (edata->elevel == FATAL && edata->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN &&
		ring_stopping(writer.ring))
		edata->output_to_server = false;
}

/*
 * Everything is rolled back: tell the leader that we are gone.  The ring is not
 * mapped any more.
 */
static void
writer_gone(int code, Datum leader_procno)
{
	pg_atomic_write_u32(&writer.shared->activity, WRITER_EXITED);
	pg_atomic_fetch_add_u32(&writer.subscription->writers_gone, 1);
	SetLatch(&GetPGProcByNumber(DatumGetInt32(leader_procno))->procLatch);
}

/*
 * Finds the ring that we were started for.  If it is not there any more, the
 * leader has ended, or has started others: then so do we.
 */
static void
attach(Datum main_arg)
{
	int			index = DatumGetInt32(main_arg) / WEFT_MAX_PROCESSES;
	uint32		generation;
	SubscriptionShared *subscription = shmem_get(index);
	dsm_handle	handle = DSM_HANDLE_INVALID;
	dsm_segment *segment;

	writer.number = DatumGetInt32(main_arg) % WEFT_MAX_PROCESSES;
	writer.subscription = subscription;
	writer.shared = &subscription->writers[writer.number];
	memcpy(&generation, MyBgworkerEntry->bgw_extra, sizeof(generation));

	SpinLockAcquire(&subscription->mutex);
	if (subscription->generation == generation)
		handle = subscription->ring;
	writer.detect_conflicts = subscription->detect_conflicts;
	SpinLockRelease(&subscription->mutex);

	segment = handle == DSM_HANDLE_INVALID ? NULL : dsm_attach(handle);
	if (segment == NULL)
		proc_exit(0);
	dsm_pin_mapping(segment);
	writer.ring = dsm_segment_address(segment);
	broadcast_attach(&writer.broadcast, writer.ring);

	writer.waiter.ring = writer.ring;
	writer.waiter.writer = writer.number;
	writer.waiter.give_up = yield_needed;
	writer.waiter.rest = change_rest;
	writer.ring->writer_procno[writer.number] = MyProcNumber;
	pg_write_barrier();
	pg_atomic_write_u32(&writer.shared->pid, MyProcPid);
}

/* Becomes, for the server's apply code, the subscription's apply worker. */
static void
impersonate_apply_worker(Oid subid)
{
	LogicalRepWorker *copy = MemoryContextAllocZero(TopMemoryContext,
													sizeof(LogicalRepWorker));
	LogicalRepWorker *leader;

	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	leader = logicalrep_worker_find(subid, InvalidOid, true);
	if (leader)
		*copy = *leader;
	LWLockRelease(LogicalRepWorkerLock);
	if (leader == NULL)
		proc_exit(0);

	copy->stream_fileset = NULL;
	copy->parallel_apply = false;
	MyLogicalRepWorker = copy;
}

/* Connects to the database as the subscription's owner. */
static void
connect_as_owner(void)
{
	SubscriptionShared *subscription = writer.subscription;

	SetConfigOption("session_replication_role", "replica", PGC_SUSET, PGC_S_OVERRIDE);
	BackgroundWorkerInitializeConnectionByOid(subscription->dbid, subscription->userid, 0);
	SetConfigOption("search_path", "", PGC_SUSET, PGC_S_OVERRIDE);
}

/* Loads the subscription. */
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

	/* Durability is the leader's affair. */
	SetConfigOption("synchronous_commit", "off", PGC_BACKEND, PGC_S_OVERRIDE);
}

/* Applies streamed transactions, until it is time to end. */
static void
work_for_streams(void)
{
	while (stream_work())
	{
		pgstat_report_stat(true);
		fast_report(true);
	}
	writer.ring->writer_procno[writer.number] = INVALID_PROC_NUMBER;
}

/* Applies what there is to apply, until it is time to end. */
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

		/* One is enough to remove what is too old. */
		if (writer.detect_conflicts && writer.number == 0)
		{
			long		next = conflict_clean();

			timeout = timeout < 0 ? next : Min(timeout, next);
		}
		first = ring_wait_transactions(&writer.waiter, timeout, &count);

		if (first != 0)
		{
			transaction_apply(first, count);
			continue;
		}
		fast_report(true);
		if (ring_stopping(writer.ring))
			break;
		pgstat_report_stat(true);
	}
}

/* For the fast path: may a trigger fire now? */
static bool
everything_before_is_there(void)
{
	return transaction_is_oldest() && !order_pending();
}

/* Tells the fast path what it needs to know of this writer. */
static void
init_fast(void)
{
	FastContext context = {
		.subscription = writer.subscription,
		.detect_conflicts = writer.detect_conflicts,
		.find_remote = change_find_relation,
		.everything_before_is_there = everything_before_is_there,
		.has_delta_columns = conflict_has_delta_columns,
		.watched_columns = conflict_watched_columns,
		.origin_differs = conflict_origin_differs,
	};

	fast_init(&context);
}

/* Entry point of the background worker. */
void
writer_main(Datum main_arg)
{
	char		origin_name[NAMEDATALEN];
	ErrorContextCallback callback;
	Oid			subid;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	/* A reload since we were forked has been ignored. */
	ConfigReloadPending = true;

	attach(main_arg);
	on_shmem_exit(writer_gone, Int32GetDatum(writer.ring->leader_procno));
	next_emit_log_hook = emit_log_hook;
	emit_log_hook = end_quietly;
	subid = writer.subscription->subid;
	impersonate_apply_worker(subid);
	connect_as_owner();
	compat_injection_point("weft-writer-starts");

	ApplyContext = AllocSetContextCreate(TopMemoryContext, "ApplyContext",
										 ALLOCSET_DEFAULT_SIZES);
	ApplyMessageContext = AllocSetContextCreate(ApplyContext, "ApplyMessageContext",
												ALLOCSET_DEFAULT_SIZES);
	load_subscription(subid);
	replorigin_session_setup(writer.subscription->origin, MyLogicalRepWorker->proc->pid);
	before_shmem_exit(writer_exit, (Datum) 0);
	ReplicationOriginNameForLogicalRep(subid, InvalidOid, origin_name, sizeof(origin_name));
	set_apply_error_context_origin(origin_name);
	callback.callback = apply_error_callback;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	apply_error_context_stack = error_context_stack;

	init_fast();
	change_init();
	transaction_init();
	if (writer.detect_conflicts)
		conflict_init(writer.subscription, transaction_wait_oldest);
	pg_atomic_write_u32(&writer.shared->activity, WRITER_IDLE);
	pgstat_report_activity(STATE_IDLE, NULL);

	if (writer.number < WEFT_MAX_WRITERS)
		work();
	else
		work_for_streams();
	proc_exit(0);
}
