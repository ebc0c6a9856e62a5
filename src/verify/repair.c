/*
 * repair.c
 *	  weft.repair(): makes rows that differ from the publisher's equal to them.
 *
 * The session only checks who calls, starts a worker that does the work (repair_worker.c),
 * and waits for it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "subscription_settings.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "verify/publisher.h"
#include "verify/repair_item.h"
#include "verify/repair_worker.h"
#include "verify/session_worker.h"

PG_FUNCTION_INFO_V1(weft_repair);

/* Fails if the subscription cannot be repaired, or the caller does not own it. */
static Subscription *
check_subscription(const RepairSource *source)
{
	Subscription *subscription = publisher_subscription_by_oid(source->subid);

	if (!subscription->enabled)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" is disabled", subscription->name),
				 errdetail("Rows are repaired while apply stands at a position of the publisher."),
				 errhint("Run ALTER SUBSCRIPTION ... ENABLE.")));
	if (source->node == NULL && subscription_settings_get(source->subid).detect_conflicts)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("subscription \"%s\" detects conflicts, and cannot be repaired by weft.repair()",
						subscription->name),
				 errdetail("A repaired row would not have the time and the origin of the publisher's row, by which later conflicts are decided."),
				 errhint("In a node group, compare with weft.compare_node().")));
	return subscription;
}

/* Finds out which node has the right rows. */
static RepairWinner
get_winner(const RepairSource *source, const char *winner)
{
	if (winner == NULL)
		return WINNER_NEWER;
	if (source->node == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" cannot be used for the comparison of a subscription", "winner"),
				 errdetail("The publisher's rows are the right ones.")));
	if (strcmp(winner, source->node) == 0)
		return WINNER_THERE;
	if (source->local_node == NULL || strcmp(winner, source->local_node) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("node \"%s\" was not compared", winner),
				 errhint("The winner must be \"%s\" or this node.", source->node)));
	return WINNER_HERE;
}

/* Checks a number of milliseconds that the caller has passed as an interval. */
static int
get_milliseconds(const char *name, Interval *interval)
{
	double		result = interval->time / 1000.0 +
		(interval->day + interval->month * 30.0) * (double) (USECS_PER_DAY / 1000);

	if (INTERVAL_NOT_FINITE(interval) || result < 1 || result > 3600 * 1000)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" must be between 1 millisecond and 1 hour", name)));
	return (int) result;
}

static void
check_arguments(FunctionCallInfo fcinfo)
{
	int			batch_size = PG_ARGISNULL(2) ? 0 : PG_GETARG_INT32(2);

	for (int i = 0; i < 5; i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("arguments of weft.repair() must not be null")));
	if (batch_size < 1 || batch_size > 10000)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" must be between 1 and 10000", "batch_size")));
	if (!IsA(fcinfo->context, CallContext) || castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("weft.repair() cannot run inside a transaction block"),
				 errdetail("The rows are written by another process, and committed in batches.")));
}

/* Only of nodes can the procedure tell what it would do. */
static void
check_dry_run(const RepairSource *source, int64 comparison, bool apply)
{
	if (!apply && source->node == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("nothing is to be applied"),
				 errhint("To see the statements, run SELECT statement FROM weft.repair(%lld).",
						 (long long) comparison)));
}

/* Waits until the worker has ended; ends it if the session is canceled. */
static void
wait_for_worker(RepairShared *shared, BackgroundWorkerHandle *handle)
{
	PG_ENSURE_ERROR_CLEANUP(session_worker_terminate, PointerGetDatum(handle));
	{
		(void) WaitForBackgroundWorkerShutdown(handle);
	}
	PG_END_ENSURE_ERROR_CLEANUP(session_worker_terminate, PointerGetDatum(handle));

	if (failure_reported(&shared->failure))
		failure_throw(&shared->failure);
	if (pg_atomic_read_u32(&shared->finished) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_ADMIN_SHUTDOWN),
				 errmsg("the process that repairs has ended"),
				 errdetail("What it has repaired is recorded in weft.difference."),
				 errhint("See the server log. Repeat the call to repair the rest.")));
}

static void
report_summary(int64 comparison, const RepairShared *wanted)
{
	RepairSummary summary = repair_items_summary(comparison);

	if (wanted->dry_run)
		ereport(NOTICE,
				(errmsg("comparison %lld: nothing was written", (long long) comparison),
				 errhint("See weft.difference.repair_reason for what would be done.")));
	else if (wanted->nodes)
		ereport(NOTICE,
				(errmsg("comparison %lld: %lld repaired, %lld vanished, %lld kept, %lld not repaired",
						(long long) comparison, (long long) summary.repaired,
						(long long) summary.vanished, (long long) summary.kept,
						(long long) (summary.failed + summary.pending)),
				 summary.failed + summary.kept > 0 ?
				 errhint("See weft.difference.repair_reason for the reasons.") : 0));
	else
		ereport(NOTICE,
				(errmsg("comparison %lld: %lld repaired, %lld vanished, %lld not repaired",
						(long long) comparison, (long long) summary.repaired,
						(long long) summary.vanished,
						(long long) (summary.failed + summary.pending)),
				 summary.failed > 0 ?
				 errhint("See weft.difference.repair_reason for the reasons.") : 0));
}

/*
 * weft.repair(comparison bigint, apply boolean, batch_size integer, lock_timeout interval,
 *			   max_pause interval, winner name)
 *
 * Repairs the differences of a comparison that have not been repaired yet; sql/10-verify.sql
 * describes the arguments.  Fails if the caller does not own the subscription, or it is
 * disabled, or detects conflicts although no nodes were compared.
 */
Datum
weft_repair(PG_FUNCTION_ARGS)
{
	int64		comparison = PG_GETARG_INT64(0);
	RepairSource source;
	Subscription *subscription;
	dsm_segment *segment;
	RepairShared *shared;
	RepairShared wanted = {0};

	shmem_require();
	check_arguments(fcinfo);
	wanted.comparison = comparison;
	wanted.batch_size = PG_GETARG_INT32(2);
	wanted.lock_timeout = get_milliseconds("lock_timeout", PG_GETARG_INTERVAL_P(3));
	wanted.max_pause = get_milliseconds("max_pause", PG_GETARG_INTERVAL_P(4));

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	source = repair_items_source(comparison);
	check_dry_run(&source, comparison, PG_GETARG_BOOL(1));
	subscription = check_subscription(&source);
	wanted.nodes = source.node != NULL;
	wanted.winner = get_winner(&source, PG_ARGISNULL(5) ? NULL : NameStr(*PG_GETARG_NAME(5)));
	wanted.dry_run = !PG_GETARG_BOOL(1);
	wanted.dbid = MyDatabaseId;
	wanted.userid = subscription->owner;
	wanted.subid = subscription->oid;

	/* Nothing of this session may be in the worker's way. */
	SPI_commit();
	segment = dsm_create(sizeof(RepairShared), 0);
	shared = dsm_segment_address(segment);
	*shared = wanted;
	pg_atomic_init_u32(&shared->finished, 0);
	failure_init(&shared->failure);
	wait_for_worker(shared,
					session_worker_start(psprintf("weft repair of comparison %lld",
												  (long long) comparison),
										 "weft repair", "repair_worker_main", segment));
	dsm_detach(segment);
	report_summary(comparison, &wanted);
	SPI_finish();
	PG_RETURN_VOID();
}
