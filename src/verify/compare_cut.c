/*
 * compare_cut.c
 *	  Compares tables at cuts, one after the other.
 *
 * Each cut is one transaction of the session:
 *
 *	 1. cut_begin(), the snapshot here, cut_release(): from now on, apply goes on.
 *	 2. The definitions and versions of some tables are read on both sides (table_version.c), and
 *		tables that are new are divided into parts.
 *	 3. Several processes compute the sums of parts (compare_worker.c), until all are computed, or
 *		the snapshots are weft.comparison_snapshot_age old, or somebody waits for a lock on one of
 *		the tables.
 *	 4. The session alone finds the differences of parts whose sums differ (difference.c),
 *		until the time is over.  It compares at least one part, so that there is progress.
 *	 5. The versions are read again.  A table that has changed since is started over, and all that was
 *		found of it is removed.
 *	 6. The results are stored, and the transaction commits, which ends the snapshots.
 *
 * Locks: here, ACCESS SHARE on tables from the first query for them until the commit, after the cut has
 * been released, so that the session never waits for apply with a lock.  On the publisher, the
 * same.  Nobody waits for a lock without a time limit (owner_context.c).
 *
 * Nothing may be written between 1 and 4, because parallel workers would need to see it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "executor/spi.h"
#include "guc.h"
#include "miscadmin.h"
#include "remote_query.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "verify/compare_cut.h"
#include "verify/compare_worker.h"
#include "verify/cut.h"
#include "verify/difference.h"
#include "verify/owner_context.h"
#include "verify/publisher.h"
#include "verify/table_version.h"

/* How many tables, and how many parts of them, are compared at one cut. */
#define MAX_TABLES 64
#define MAX_UNITS 1024

/* How often a cut is tried again at once if apply has gone on before the snapshot was taken. */
#define MAX_RETRIES 10

/* One cut. */
typedef struct CompareCut
{
	CompareState *state;
	List	   *tables;			/* of CompareTable, up to MAX_TABLES */
	List	   *local_relids;	/* of the tables, here and on the publisher */
	List	   *publisher_relids;
	List	   *local_versions; /* as the snapshots see them */
	List	   *publisher_versions;
	Cut		   *cut;
	XLogRecPtr	lsn;
	TimestampTz started;
	double		duration;		/* of making it, in ms */
	TimestampTz deadline;
	bool		wanted;			/* somebody waits for a lock */
} CompareCut;

/* Does somebody wait for a lock that this transaction, or the one on the publisher, may hold? */
static bool
watch(void *argument)
{
	CompareCut *cut = argument;

	cut->wanted = cut->wanted || table_locks_wanted_local(cut->local_relids) ||
		table_locks_wanted_publisher(cut->state->control, cut->publisher_relids);
	return cut->wanted;
}

/* Takes the first tables that are left. */
static void
choose_tables(CompareCut *cut)
{
	foreach_ptr(CompareTable, table, cut->state->tables)
	{
		if (!compare_table_open(table))
			continue;
		cut->tables = lappend(cut->tables, table);
		cut->local_relids = lappend_oid(cut->local_relids, table->result.relid);
		if (cut->state->one_by_one || list_length(cut->tables) >= MAX_TABLES)
			break;
	}
}

/*
 * Begins a transaction with a snapshot at a cut.  Returns false if apply has gone on too early; then
 * there is a new transaction.
 */
static bool
take_snapshots(CompareCut *cut)
{
	CompareState *state = cut->state;
	CutOptions	options = {0};

	XactIsoLevel = XACT_REPEATABLE_READ;
	state->subscription = publisher_subscription_by_oid(state->comparison.subid);
	if (state->subscription->owner != state->comparison.owner)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the owner of subscription \"%s\" has changed during the comparison",
						state->subscription->name)));
	cut->started = GetCurrentTimestamp();
	cut->cut = cut_begin(state->subscription, &options);
	PushActiveSnapshot(GetTransactionSnapshot());
	if (!cut_release(cut->cut))
	{
		PopActiveSnapshot();
		SPI_rollback();
		return false;
	}
	cut->lsn = cut_lsn(cut->cut);
	cut->duration = (GetCurrentTimestamp() - cut->started) / 1000.0;
	cut->deadline = TimestampTzPlusSeconds(cut->started, weft_comparison_snapshot_age);
	pg_atomic_write_u64(&state->progress->snapshot_since, cut->started);
	return true;
}

static void
import_snapshot(CompareCut *cut)
{
	publisher_import(cut->state->conn, cut->state->subscription, cut_snapshot(cut->cut));
}

/* Connects if necessary, and imports the snapshot. */
static void
prepare_connection(CompareCut *cut)
{
	CompareState *state = cut->state;

	if (state->conn == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(state->memory);

		state->conn = compare_connect(state->subscription);
		MemoryContextSwitchTo(old);
	}
	import_snapshot(cut);
}

static PublishedTable *
find_published(PublishedTables *published, Oid relid)
{
	foreach_ptr(PublishedTable, table, published->tables)
		if (table->relid == relid)
		return table;
	return NULL;
}

static void
prepare_tables(CompareCut *cut)
{
	CompareState *state = cut->state;
	PublishedTables *published = published_tables_get(state->subscription, state->conn,
													  cut->local_relids);

	foreach_ptr(PublishedTable, table, published->tables)
		if (OidIsValid(table->publisher_relid))
		cut->publisher_relids = lappend_oid(cut->publisher_relids, table->publisher_relid);
	cut->local_versions = table_versions_local(state->comparison.subid, cut->local_relids);
	cut->publisher_versions = table_versions_publisher(state->conn, cut->publisher_relids);
	foreach_ptr(CompareTable, table, cut->tables)
		compare_table_prepare(table, find_published(published, table->result.relid),
							  published->convert, state->comparison.max_rows_per_second);
}

/*
 * Does an error concern a table?  The publisher's queries for definitions see the catalog partly
 * as of the snapshot and partly as it is now, so they can fail if a table was altered; that is
 * an error of the connection only if the connection is gone.
 */
static bool
is_table_error(CompareCut *cut, int sqlstate)
{
	if (sqlstate == ERRCODE_CONNECTION_FAILURE || sqlstate == ERRCODE_PROTOCOL_VIOLATION)
		return remote_query(cut->state->conn, NULL, "ROLLBACK", WALRCV_OK_COMMAND, 0).problem == NULL;
	return compare_is_table_error(sqlstate);
}

/*
 * Step 2.  Returns false after an error that concerns a table, such as that it could not be locked.  If
 * it is not clear which one, then from now on one table is compared at a time.
 */
static bool
try_prepare_tables(CompareCut *cut)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool result = true;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		MemoryContextSwitchTo(context);
		prepare_tables(cut);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		if (!is_table_error(cut, error->sqlerrcode))
			ReThrowError(error);
		cut->state->one_by_one = true;
		if (list_length(cut->tables) == 1)
			compare_table_error(linitial(cut->tables), error->sqlerrcode, error->message);
		result = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return result;
}

/* Step 3. */
static void
compute_sums(CompareCut *cut)
{
	CompareState *state = cut->state;
	CompareSession session = {.subscription = state->subscription,.conn = state->conn,
		.snapshot = cut_snapshot(cut->cut),.progress = state->progress,
		.jobs = state->comparison.jobs,.deadline = cut->deadline,.rate = state->rate,
	.watch_argument = cut,.watch = watch};
	TaskBuilder builder;
	CompareTask *task;

	task_builder_init(&builder);
	foreach_ptr(CompareTable, table, cut->tables)
		if (compare_table_open(table) && list_length(builder.units) < MAX_UNITS)
		compare_table_add_units(table, foreach_current_index(table), &builder,
								MAX_UNITS - list_length(builder.units));
	if (builder.units == NIL)
		return;
	task = compare_workers_run(&session, &builder);
	state->rate = session.rate;
	for (int i = 0; i < task->num_units; i++)
	{
		CompareUnit *unit = task_unit(task, i);

		compare_table_collect(list_nth(cut->tables, unit->table), task, unit);
	}
}

/* How many rows of a table have been found to differ. */
static int64 *
count_of(CompareState *state, CompareTable *table)
{
	return state->comparison.node ? &table->result.candidates : &table->result.differences;
}

/* Searches some parts of a table.  Returns false if the table is no longer in the cut. */
static bool
search(CompareCut *cut, CompareTable *table, const int *parts, int count)
{
	CompareState *state = cut->state;
	DifferenceSearch search = {.comparison = state->comparison.id,.relid = table->result.relid,
		.hash = &table->hash,.conn = state->conn,.lsn = cut->lsn,
		.limit = state->comparison.limit - *count_of(state, table),
	.candidates = state->comparison.node != NULL};

	for (int side = 0; side < 2; side++)
		search.conditions[side] = key_ranges_condition_of(table->ranges, side, parts, count);
	if (!difference_search(&search))
	{
		remote_command(state->conn, "roll back on the publisher", "ROLLBACK");
		import_snapshot(cut);
		compare_table_error(table, search.sqlstate, search.message);
		return false;
	}
	*count_of(state, table) += search.found;
	for (int i = 0; i < count; i++)
		compare_table_part_done(table, parts[i]);
	table->limited = search.limited;
	return true;
}

/* Step 4, for one table.  "progress" is set once a part has been searched at this cut. */
static void
search_table(CompareCut *cut, CompareTable *table, bool *progress)
{
	int			count = list_length(table->differing);
	int		   *parts = palloc(Max(count, 1) * sizeof(int));
	int			step = table->ranges->mode == KEY_BUCKETS ? Max(count, 1) : 1;

	foreach_int(part, table->differing)
		parts[foreach_current_index(part)] = part;
	for (int i = 0; i < count && !table->limited; i += step)
	{
		/* A part that differs has at least one more difference. */
		table->limited = *count_of(cut->state, table) >= cut->state->comparison.limit;
		if (table->limited)
			break;
		if (*progress && (GetCurrentTimestamp() >= cut->deadline || watch(cut)))
			break;
		if (!search(cut, table, parts + i, step))
			break;
		*progress = true;
	}
	pfree(parts);
}

/* Step 5: what has changed since the snapshots were taken, is started over. */
static void
check_versions(CompareCut *cut)
{
	CompareState *state = cut->state;
	List	   *local;
	List	   *publisher = table_versions_publisher(state->control, cut->publisher_relids);

	PushActiveSnapshot(GetLatestSnapshot());
	local = table_versions_local(state->comparison.subid, cut->local_relids);
	PopActiveSnapshot();
	foreach_ptr(CompareTable, table, cut->tables)
	{
		if (!table->in_cut)
			continue;
		if (!table_version_equal(cut->local_versions, local, table->result.relid))
			compare_table_start_over(table, "The table was altered, truncated or dropped here during the comparison.");
		else if (!table_version_equal(cut->publisher_versions, publisher,
									  table->hash.table->publisher_relid))
			compare_table_start_over(table, "The table was altered, truncated or dropped on the publisher during the comparison.");
	}
}

/* Step 6. */
static void
store(CompareCut *cut)
{
	CompareState *state = cut->state;

	foreach_ptr(CompareTable, table, cut->tables)
	{
		TableResult *result = &table->result;

		if (table->in_cut)
		{
			result->cuts++;
			result->last_lsn = cut->lsn;
			if (XLogRecPtrIsInvalid(result->first_lsn))
				result->first_lsn = cut->lsn;
			if (table->parts_left == 0 || table->limited)
				compare_table_finish(table, state->comparison.limit);
		}
		if (table->stale)
			comparison_forget_differences(state->comparison.id, result->relid);
		table->stale = false;
		comparison_put_table(state->comparison.id, result);
	}
	comparison_put_cut(state->comparison.id, cut->lsn, cut->duration);
}

/* Steps 2 to 5, as the owner of the subscription. */
static void
compare_tables(CompareCut *cut)
{
	OwnerContext context;
	bool		progress = false;

	owner_context_enter(&context, cut->state->subscription->owner);
	prepare_connection(cut);
	if (try_prepare_tables(cut))
	{
		compute_sums(cut);
		foreach_ptr(CompareTable, table, cut->tables)
			if (table->in_cut && table->differing != NIL)
			search_table(cut, table, &progress);
		check_versions(cut);
	}
	owner_context_leave(&context);
}

static void
run_cut(CompareState *state)
{
	CompareCut	cut = {.state = state};
	int			retries = 0;

	choose_tables(&cut);
	while (!take_snapshots(&cut))
		if (++retries > MAX_RETRIES)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("could not take a snapshot at a cut of subscription \"%s\"",
							state->comparison.subname),
					 errdetail("Apply could not be held long enough."),
					 errhint("Try again when the server is less busy.")));
	compat_injection_point("weft-compare-snapshot");
	compare_tables(&cut);
	remote_command(state->conn, "end the transaction on the publisher", "COMMIT");
	store(&cut);
	PopActiveSnapshot();
	cut_end(cut.cut);
	SPI_commit();
	pg_atomic_write_u64(&state->progress->snapshot_since, 0);
}

static bool
tables_left(CompareState *state)
{
	foreach_ptr(CompareTable, table, state->tables)
		if (compare_table_open(table))
		return true;
	return false;
}

/* Compares all tables of the comparison.  Each cut ends with a commit. */
void
compare_cuts_run(CompareState *state)
{
	MemoryContext memory = AllocSetContextCreate(state->memory, "weft cut", ALLOCSET_DEFAULT_SIZES);

	state->rate.rows_per_second = state->comparison.max_rows_per_second;
	state->rate.start = GetCurrentTimestamp();
	while (tables_left(state))
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(memory);
		run_cut(state);
		MemoryContextSwitchTo(state->memory);
		MemoryContextReset(memory);
	}
	MemoryContextDelete(memory);
}
