/*
 * check_worker.c
 *	  The background worker that compares both sides for a switch-over.
 *
 * A step of a switch-over is part of a transaction that has begun, and must be able to give up
 * at any time.  A comparison needs transactions of its own, with snapshots at cuts.  Therefore another
 * process compares, connected as the user who has called.  The session waits for it, and
 * terminates it at the deadline, and when the session itself is canceled or ends.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/timestamp.h"
#include "verify/check_worker.h"
#include "verify/compare.h"
#include "verify/publisher.h"
#include "verify/session_worker.h"
#include "wait_event.h"

/* Of a comparison; as the defaults of weft.compare_subscription(). */
#define JOBS 2
#define MAX_DIFFERENCES 1000

/* Time between two looks at the worker, in ms. */
#define POLL_INTERVAL 100

/* At most so many tables are named in messages. */
#define MAX_NAMED 10

/* What the session shares with its worker, in dynamic shared memory. */
typedef struct CheckShared
{
	/* Set by the session. */
	Oid			dbid;
	Oid			userid;
	CheckOrder	order;			/* its results are set by the worker */

	/* Set by the worker. */
	pg_atomic_uint32 finished;	/* both sides are the same */
	Failure		failure;		/* why not */
} CheckShared;

/* Was the table compared without finding a difference, or need not be? */
static bool
is_equal(const TableResult *result)
{
	if (strcmp(result->status, published_table_status_name(PUBLISHED_TABLE_NOT_SUBSCRIBED)) == 0)
		return true;
	return strcmp(result->status, "done") == 0 && result->complete && result->differences == 0;
}

/* Fails unless all tables were compared, and no difference was found. */
static void
require_equal(const CompareState *state)
{
	StringInfoData text;
	int			named = 0;
	int64		differences = 0;

	initStringInfo(&text);
	foreach_ptr(CompareTable, table, state->tables)
	{
		const TableResult *result = &table->result;

		differences += result->differences;
		if (is_equal(result) || ++named > MAX_NAMED)
			continue;
		if (strcmp(result->status, "done") != 0)
			appendStringInfo(&text, " Table %s was not compared (%s): %s",
							 result->name, result->status, result->reason);
		else
			appendStringInfo(&text, " Table %s: %s" INT64_FORMAT " differences.", result->name,
							 result->complete ? "" : "at least ", result->differences);
	}
	if (named == 0)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_DATA_EXCEPTION),
			 differences > 0 ?
			 errmsg("the tables of subscription \"%s\" are not the same on both sides",
					state->comparison.subname) :
			 errmsg("not all tables of subscription \"%s\" could be compared",
					state->comparison.subname),
			 errdetail_internal("Comparison %lld:%s", (long long) state->comparison.id, text.data),
			 differences > 0 ?
			 errhint("The rows are in weft.difference; weft.repair(%lld, true) repairs them.",
					 (long long) state->comparison.id) :
			 errhint("With verify => 'counts', only the number of rows is compared.")));
}

static void
compare(CheckShared *shared, Subscription *subscription)
{
	CompareState *state = palloc0(sizeof(CompareState));

	state->memory = CurrentMemoryContext;
	state->subscription = subscription;
	state->comparison.subid = subscription->oid;
	state->comparison.subname = subscription->name;
	state->comparison.owner = subscription->owner;
	state->comparison.jobs = JOBS;
	state->comparison.max_differences = state->comparison.limit = MAX_DIFFERENCES;
	PG_TRY();
	{
		compare_run(state, 0);
	}
	PG_FINALLY();
	{
		compare_clean_up(state);
	}
	PG_END_TRY();
	shared->order.comparison = state->comparison.id;
	require_equal(state);
}

static void
work(CheckShared *shared)
{
	CheckOrder *order = &shared->order;
	Subscription *subscription;
	WalReceiverConn *conn;

	subscription = publisher_subscription_by_oid(order->subid);
	if (order->kind != CHECK_COMPARE)
	{
		conn = publisher_connect(subscription);
		if (order->kind == CHECK_MARK_AND_COMPARE)
			rest_check_mark(subscription, conn, &order->mark);
		else if (order->kind == CHECK_RECENT)
			rest_check_recent(subscription, conn, &order->mark, &order->result);
		else
			rest_check_all(subscription, conn, &order->result);
		walrcv_disconnect(conn);
	}
	if (order->kind == CHECK_COMPARE || order->kind == CHECK_MARK_AND_COMPARE)
	{
		/* The comparison's cuts come after the transaction that has marked. */
		SPI_commit();
		compare(shared, subscription);
	}
}

/* Entry point of the background worker; the argument is the handle of a CheckShared. */
void
check_worker_main(Datum main_arg)
{
	CheckShared *shared = session_worker_attach(main_arg);

	BackgroundWorkerInitializeConnectionByOid(shared->dbid, shared->userid,
											  BGWORKER_BYPASS_ROLELOGINCHECK);
	pgstat_report_activity(STATE_RUNNING, "weft: comparison for a switch-over");

	PG_TRY();
	{
		/*
		 * What a connection to SPI without an outer transaction is allocated
		 * in.
		 */
		PortalContext = AllocSetContextCreate(TopMemoryContext, "weft check",
											  ALLOCSET_DEFAULT_SIZES);
		StartTransactionCommand();
		SPI_connect_ext(SPI_OPT_NONATOMIC);
		work(shared);
		SPI_finish();
		CommitTransactionCommand();
		pg_atomic_write_u32(&shared->finished, 1);
	}
	PG_CATCH();
	{
		session_worker_report(&shared->failure);
		AbortOutOfAnyTransaction();
	}
	PG_END_TRY();
	proc_exit(0);
}

static void
wait_for_worker(BackgroundWorkerHandle *handle, TimestampTz deadline, void (*ping) (void))
{
	pid_t		pid;
	BgwHandleStatus status;

	while ((status = GetBackgroundWorkerPid(handle, &pid)) != BGWH_STOPPED)
	{
		if (status == BGWH_POSTMASTER_DIED)
			proc_exit(1);
		if (GetCurrentTimestamp() >= deadline)
			ereport(ERROR,
					(errcode(ERRCODE_QUERY_CANCELED),
					 errmsg("timed out while comparing both sides"),
					 errhint("Before the pause \"timeout\" limits it, during the pause \"max_pause\".")));
		ping();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 POLL_INTERVAL, wait_event_id(WEFT_WAIT_SWITCH));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

void
check_worker_run(CheckOrder *order, TimestampTz deadline, void (*ping) (void))
{
	dsm_segment *segment = dsm_create(sizeof(CheckShared), 0);
	CheckShared *shared = dsm_segment_address(segment);
	BackgroundWorkerHandle *handle;

	shared->dbid = MyDatabaseId;
	shared->userid = GetUserId();
	shared->order = *order;
	pg_atomic_init_u32(&shared->finished, 0);
	failure_init(&shared->failure);
	handle = session_worker_start("weft comparison for a switch-over", "weft comparison",
								  "check_worker_main", segment);
	PG_ENSURE_ERROR_CLEANUP(session_worker_terminate, PointerGetDatum(handle));
	{
		wait_for_worker(handle, deadline, ping);
	}
	PG_END_ENSURE_ERROR_CLEANUP(session_worker_terminate, PointerGetDatum(handle));
	if (failure_reported(&shared->failure))
		failure_throw(&shared->failure);
	if (pg_atomic_read_u32(&shared->finished) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_ADMIN_SHUTDOWN),
				 errmsg("the process that compares both sides has ended"),
				 errhint("See the server log.")));
	*order = shared->order;
	dsm_detach(segment);
}
