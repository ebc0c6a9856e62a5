/*
 * repair_worker.c
 *	  The background worker that repairs the differences of a comparison.
 *
 * Rows are not written by the session that wants it, but by a process that is like a writer:
 * it is connected as the subscription's owner, is a replica to triggers, has the settings of
 * apply and none of the session's, and uses the leader's replication origin, which a process
 * cannot give back (repair_origin.c).
 *
 * It repairs table by table, in batches (repair_batch.c).  A batch that apply does not wait
 * for is tried again with half as many rows, and so is one that fails as a whole, until the
 * row that is the reason is alone.  When all rows of a table have been tried, those whose unique
 * values were taken are tried once more, as long as that repairs at least one.
 *
 * The session waits until the worker has ended; if the session is canceled or ends, it
 * terminates the worker.  What has been committed until then stays, and is recorded.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "pinned_settings.h"
#include "replication/message.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "verify/publisher.h"
#include "verify/repair_batch.h"
#include "verify/repair_item.h"
#include "verify/repair_origin.h"
#include "verify/repair_worker.h"
#include "verify/session_worker.h"

/* Differences that are still to be repaired, in order. */
typedef struct Queue
{
	Oid			relid;
	int64	   *differences;
	int			count;
	int			done;
	int			batch_size;		/* at the moment */
	int			max_batch_size;

	/* Those that a unique value keeps from being repaired. */
	int64	   *blocked;
	int			num_blocked;
} Queue;

static void
connect_as_owner(const RepairShared *shared)
{
	/* A transaction is not waited for; the last one is. */
	SetConfigOption("session_replication_role", "replica", PGC_SUSET, PGC_S_OVERRIDE);
	BackgroundWorkerInitializeConnectionByOid(shared->dbid, shared->userid, 0);
	pinned_settings_set();
	SetConfigOption("session_replication_role", "replica", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("row_security", "off", PGC_USERSET, PGC_S_OVERRIDE);
	SetConfigOption("lock_timeout", psprintf("%d", shared->lock_timeout),
					PGC_USERSET, PGC_S_OVERRIDE);
}

/* Commits are flushed if "wait": not while apply stands. */
static void
set_synchronous_commit(bool wait)
{
	SetConfigOption("synchronous_commit", wait ? "on" : "off", PGC_USERSET, PGC_S_OVERRIDE);
}

/* Records that the next "count" differences, or all of the rest, have failed. */
static void
fail(RepairJob *job, Queue *queue, int count, const char *reason)
{
	StartTransactionCommand();
	repair_items_fail(job->comparison, queue->differences + queue->done, count, reason);
	CommitTransactionCommand();
	queue->done += count;
}

static void
create_origin(int node)
{
	StartTransactionCommand();
	repair_origin_create(node);
	CommitTransactionCommand();
}

static void
take_blocked(Queue *queue, const RepairBatch *batch)
{
	for (int i = 0; i < batch->num_blocked; i++)
		queue->blocked[queue->num_blocked++] = batch->blocked[i];
}

/* Makes the next batch smaller; if it has one row, that fails. */
static void
shrink(RepairJob *job, Queue *queue, const RepairBatch *batch, const char *reason)
{
	if (batch->count > 1)
		queue->batch_size = batch->count / 2;
	else
		fail(job, queue, 1, reason);
}

/* Repairs the next batch.  An error that is not about its rows or its table is thrown. */
static void
repair_next(RepairJob *job, Queue *queue)
{
	MemoryContext caller = CurrentMemoryContext;
	RepairBatch batch = {
		.relid = queue->relid,
		.differences = queue->differences + queue->done,
		.count = Min(queue->batch_size, queue->count - queue->done),
		.context = caller,
	};
	ErrorData  *error = NULL;
	RepairEnd	end = REPAIR_LOST;

	PG_TRY();
	{
		end = repair_batch(job, &batch);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		repair_batch_roll_back(job);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);

	if (error != NULL)
	{
		int			class = ERRCODE_TO_CATEGORY(error->sqlerrcode);

		if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
			fail(job, queue, queue->count - queue->done,
				 "another session has locked the table, or the subscription");
		else if (job->stage == REPAIR_PREPARING || class == ERRCODE_CONNECTION_EXCEPTION ||
				 class == ERRCODE_OPERATOR_INTERVENTION)
			ReThrowError(error);
		else if (job->stage == REPAIR_OPENING)
			fail(job, queue, queue->count - queue->done, error->message);
		else
			shrink(job, queue, &batch, error->message);
	}
	else if (end == REPAIR_LOST)
		shrink(job, queue, &batch, "apply did not wait until the row was written");
	else if (end == REPAIR_WITHOUT_ORIGIN)
		create_origin(batch.node);
	else if (end == REPAIR_UNSUITABLE)
		fail(job, queue, queue->count - queue->done, batch.reason);
	else
	{
		take_blocked(queue, &batch);
		queue->done += batch.done;
		queue->batch_size = Min(queue->batch_size * 2, queue->max_batch_size);
	}
}

/* Tries all differences of a table once.  Returns those that are blocked. */
static Queue
repair_once(RepairJob *job, const RepairTable *table, int batch_size)
{
	Queue		queue = {
		.relid = table->relid,
		.differences = table->differences,
		.count = table->count,
		.blocked = palloc(Max(table->count, 1) * sizeof(int64)),
	};
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "weft repair batch",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);

	queue.batch_size = queue.max_batch_size = batch_size;
	while (queue.done < queue.count)
	{
		CHECK_FOR_INTERRUPTS();
		repair_next(job, &queue);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return queue;
}

static void
repair_table(RepairJob *job, const RepairTable *table, int batch_size)
{
	RepairTable rest = *table;
	int			before;

	do
	{
		Queue		queue = repair_once(job, &rest, batch_size);

		before = rest.count;
		rest.count = queue.num_blocked;
		rest.differences = queue.blocked;
	} while (rest.count > 0 && rest.count < before);
}

/* Repairs everything. */
static void
work(RepairShared *shared)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "weft repair",
												  ALLOCSET_DEFAULT_SIZES);
	RepairJob	job = {
		.comparison = shared->comparison,
		.subid = shared->subid,
		.max_pause = shared->max_pause,
		.nodes = shared->nodes,
		.winner = shared->winner,
		.dry_run = shared->dry_run,
	};
	List	   *tables;
	Subscription *subscription;

	StartTransactionCommand();
	MemoryContextSwitchTo(context);
	subscription = publisher_subscription_by_oid(shared->subid);
	repair_origin_init(subscription);
	job.conn = publisher_connect(subscription);
	tables = repair_items_tables(shared->comparison);
	CommitTransactionCommand();

	MemoryContextSwitchTo(context);
	set_synchronous_commit(false);
	foreach_ptr(RepairTable, table, tables)
		repair_table(&job, table, shared->batch_size);
	walrcv_disconnect(job.conn);

	/*
	 * Everything before this is flushed with it, and standbys are waited for.
	 * A transaction that writes nothing would do neither.
	 */
	set_synchronous_commit(true);
	StartTransactionCommand();
	(void) LogLogicalMessage("weft", "repaired", strlen("repaired"), true, false);
	CommitTransactionCommand();
}

/* Entry point of the background worker; the argument is the handle of a RepairShared. */
void
repair_worker_main(Datum main_arg)
{
	RepairShared *shared = session_worker_attach(main_arg);

	connect_as_owner(shared);
	pgstat_report_activity(STATE_RUNNING, NULL);

	PG_TRY();
	{
		work(shared);
		pg_atomic_write_u32(&shared->finished, 1);
	}
	PG_CATCH();
	{
		session_worker_report(&shared->failure);
		repair_origin_clear();
		AbortOutOfAnyTransaction();
	}
	PG_END_TRY();
	proc_exit(0);
}
