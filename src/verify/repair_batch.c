/*
 * repair_batch.c
 *	  Repairs a few rows of one table at a cut of their own.
 *
 * In one transaction:
 *	 1. The batch takes a cut (cut.h).  From then on nothing is applied, and the publisher's
 *		snapshot contains exactly what has been applied.
 *	 2. It reads the publisher's rows in that snapshot, locks the local rows, compares them, and writes
 *		what differs (row_repair.c), and what has become of it (repair_item.c).
 *	 3. It fires deferred triggers, and pins the cut.  If apply has gone on meanwhile, then
 *		a row may be older than what is applied next, and everything is rolled back.
 *	 4. It commits.  Apply goes on after that.
 *
 * If two nodes of a group were compared, then step 2 decides which row wins (member_repair.c).
 *
 * Therefore nothing newer is overwritten: whatever the publisher commits after its snapshot is
 * applied after the commit.  If the leader ends between 3 and 4, and the next leader
 * applies a newer change, then that waits for the rows that this transaction has locked; a row
 * that it has inserted counts as locked.  If this process, or the server, dies anywhere
 * before the commit record is written, nothing has happened; afterwards everything has.
 *
 * Waiting.  Apply waits for this process, for up to max_pause; this process waits for locks of
 * users' sessions, for up to lock_timeout.  A session never waits for apply to go on, except
 * for rows of the batch.  Nothing is locked before the leader stands, so what it has to apply until then
 * cannot wait for this process.  The lock on the subscription is an exception; no writer needs
 * it, and DROP SUBSCRIPTION, which does, waits.
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "remote_query.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "verify/cut.h"
#include "verify/member_repair.h"
#include "verify/member_version.h"
#include "verify/publisher.h"
#include "verify/publisher_rows.h"
#include "verify/repair_batch.h"
#include "verify/repair_item.h"
#include "verify/repair_origin.h"
#include "verify/row_repair.h"

/* No more rows are read for a batch if those that it has are longer than this. */
#define MAX_BYTES (64 * 1024 * 1024)

/* What take_row() needs. */
typedef struct Taking
{
	RowTable   *table;
	List	   *items;
	bool		versions;		/* the last column is the row's version */
	Size		bytes;
	MemoryContext context;
} Taking;

/* Reads the subscription, and keeps it from being dropped or altered. */
static Subscription *
lock_subscription(Oid subid)
{
	LockSharedObject(SubscriptionRelationId, subid, 0, AccessShareLock);
	return publisher_subscription_by_oid(subid);
}

/*
 * Keeps the publisher's table from being truncated or rewritten while it is read, which would
 * hide its rows from the snapshot.
 */
static char *
lock_command(const PublishedTable *table)
{
	return psprintf("LOCK TABLE %s%s.%s IN ACCESS SHARE MODE",
					table->publisher_relkind == RELKIND_RELATION ? "ONLY " : "",
					quote_identifier(table->schema), quote_identifier(table->name));
}

static RowValues
copy_row(const RowTable *table, char **row)
{
	RowValues	result = palloc0(Max(table->count, 1) * sizeof(char *));

	for (int i = 0; i < table->count; i++)
		if (row[i] != NULL)
			result[i] = MemoryContextStrdup(CurrentMemoryContext, row[i]);
	return result;
}

/* Gives a row of the publisher to the items that are about it. */
static bool
take_row(void *arg, char **row, Size size)
{
	Taking	   *taking = arg;
	MemoryContext old = MemoryContextSwitchTo(taking->context);

	foreach_ptr(RepairItem, item, taking->items)
	{
		if (item->identity == NULL || !row_table_same_key(taking->table, item->identity, row))
			continue;
		if (item->publisher == NULL)
		{
			item->publisher = copy_row(taking->table, row);
			if (taking->versions)
				item->version = member_version_parse(row[taking->table->count]);
		}
		item->publisher_count++;
	}
	MemoryContextSwitchTo(old);
	taking->bytes += size;
	return taking->bytes <= MAX_BYTES || taking->table->published->key == NIL;
}

/*
 * Reads the publisher's rows of items that are pending.  Returns the items for which that
 * is complete: all, or, if the rows are too large, those whose rows have arrived.
 */
static List *
read_publisher(RepairJob *job, RowTable *table, bool convert, List *items)
{
	Taking		taking = {table, items, job->nodes, 0, CurrentMemoryContext};
	List	   *rows = NIL;
	List	   *result = NIL;
	bool		complete;

	foreach_ptr(RepairItem, item, items)
		if (item->identity != NULL)
		rows = lappend(rows, item->identity);
	if (rows == NIL)
		return items;
	complete = publisher_rows_read(job->conn, published_table_name(table->published),
								   row_table_publisher_query(table, convert, job->nodes, rows),
								   table->count + (job->nodes ? 1 : 0), take_row, &taking);
	foreach_ptr(RepairItem, item, items)
		if (complete || item->identity == NULL || item->publisher != NULL)
		result = lappend(result, item);
	return result;
}

/* Fires deferred triggers, which otherwise would run after the cut is pinned. */
static void
fire_deferred_triggers(void)
{
	SPI_connect();
	if (SPI_execute("SET CONSTRAINTS ALL IMMEDIATE", false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "could not fire deferred triggers");
	SPI_finish();
}

/* Sets what the caller needs to know. */
static void
report(RepairBatch *batch, List *items)
{
	batch->done = 0;
	batch->num_blocked = 0;
	batch->blocked = MemoryContextAlloc(batch->context, Max(batch->count, 1) * sizeof(int64));
	foreach_ptr(RepairItem, item, items)
	{
		if (item->outcome == REPAIR_PENDING)
			continue;

		/* What is done comes first. */
		for (int i = batch->done; i < batch->count; i++)
			if (batch->differences[i] == item->difference)
			{
				batch->differences[i] = batch->differences[batch->done];
				batch->differences[batch->done++] = item->difference;
				break;
			}
		if (item->outcome == REPAIR_BLOCKED)
			batch->blocked[batch->num_blocked++] = item->difference;
	}
}

/* Repairs items of two nodes; returns false if a node needs an origin first. */
static bool
repair_members(RepairJob *job, RepairBatch *batch, RowTable *table, List *items)
{
	MemberRepair repair = {
		.conn = job->conn,
		.comparison = job->comparison,
		.table = table,
		.winner = job->winner,
		.dry_run = job->dry_run,
		.max_wait = job->max_pause / 2,
		.context = CurrentMemoryContext,
	};

	return member_repair_all(&repair, items, &batch->node);
}

/* Writes what differs, at the cut.  Returns false if nothing can be written yet. */
static bool
write_rows(RepairJob *job, RepairBatch *batch, const Subscription *subscription,
		   const PublishedTables *published, const Cut *cut)
{
	RowTable   *table;
	List	   *items;

	/* Statements take snapshots of their own, but must be within one. */
	PushActiveSnapshot(GetTransactionSnapshot());
	job->stage = REPAIR_OPENING;
	table = row_table_open(linitial(published->tables), subscription->runasowner);
	items = repair_items_read(job->comparison, table, batch->differences, batch->count);
	job->stage = REPAIR_WRITING;
	items = read_publisher(job, table, published->convert, items);
	compat_injection_point("weft-repair-read");
	repair_origin_use();
	if (!job->nodes)
		row_repair_all(table, items);
	else if (!repair_members(job, batch, table, items))
		return false;
	repair_items_store(job->comparison, items, cut_lsn(cut));
	row_table_close(table);
	fire_deferred_triggers();
	PopActiveSnapshot();
	report(batch, items);
	return true;
}

/* Commits if apply still stands; returns false, having done nothing, if not. */
static bool
commit_at(Cut *cut)
{
	compat_injection_point("weft-repair-written");
	if (!cut_pin(cut))
		return false;
	compat_injection_point("weft-repair-commits");
	CommitTransactionCommand();
	repair_origin_clear();
	compat_injection_point("weft-repair-committed");
	return true;
}

static void
roll_back(void)
{
	repair_origin_clear();
	AbortOutOfAnyTransaction();
}

/*
 * Repairs a batch, in a transaction of its own.  If an error is thrown, the caller calls
 * repair_batch_roll_back() and looks at job->stage.
 */
RepairEnd
repair_batch(RepairJob *job, RepairBatch *batch)
{
	Subscription *subscription;
	PublishedTables *published;
	PublishedTable *table;
	CutOptions	options = {.stand = job->max_pause};
	Cut		   *cut;
	bool		written;

	job->stage = REPAIR_PREPARING;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	subscription = lock_subscription(job->subid);
	PushActiveSnapshot(GetTransactionSnapshot());
	published = published_tables_get(subscription, job->conn, list_make1_oid(batch->relid));
	PopActiveSnapshot();
	table = published->tables == NIL ? NULL : linitial(published->tables);
	if (table == NULL || table->status != PUBLISHED_TABLE_COMPARABLE)
	{
		batch->reason = MemoryContextStrdup(batch->context,
											table && table->reason ? table->reason :
											"The table is not published any more.");
		roll_back();
		return REPAIR_UNSUITABLE;
	}
	options.publisher_commands = lock_command(table);
	cut = cut_begin(subscription, &options);
	compat_injection_point("weft-repair-cut");
	publisher_import(job->conn, subscription, cut_snapshot(cut));
	written = write_rows(job, batch, subscription, published, cut);
	if (!written || !commit_at(cut))
	{
		roll_back();
		remote_command(job->conn, "end a transaction on the publisher", "ROLLBACK");
		return written ? REPAIR_LOST : REPAIR_WITHOUT_ORIGIN;
	}
	remote_command(job->conn, "end a transaction on the publisher", "COMMIT");
	return REPAIR_COMMITTED;
}

/* Rolls a batch back that has thrown an error, here and on the publisher. */
void
repair_batch_roll_back(RepairJob *job)
{
	roll_back();

	/* If the connection is broken, the next batch will tell. */
	(void) remote_query(job->conn, NULL, "ROLLBACK", WALRCV_OK_COMMAND, 0);
}
