/*
 * compare_table.c
 *	  How far a comparison has come with one table.
 *
 * A table is divided into parts (key_range.c) at the first cut with it.  A part is done once its
 * sums were equal at some cut, or its differences have been stored at some cut.  If the table or what is
 * published of it changes meanwhile, it is started over: an earlier part could have been
 * compared by other columns than a later one.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "verify/compare_table.h"
#include "verify/owner_context.h"

/*
 * Rows of a part: few enough that a part takes about a second, and that little is read
 * again to find a difference; many enough that the query itself costs little.
 */
#define MIN_PART_ROWS 50000

/* More parts than this would take too much memory. */
#define MAX_PARTS 4096

/* A part need not be smaller than this to keep to a limit of rows per second. */
#define MIN_LIMITED_ROWS 1000

/* A table that changes more often than this is left out. */
#define MAX_ATTEMPTS 5

static const char dropped[] = "The table was dropped here during the comparison.";

/* Creates the state of a table; skips one that cannot be compared. */
CompareTable *
compare_table_create(const PublishedTable *published)
{
	CompareTable *table = palloc0(sizeof(CompareTable));

	table->result.name = pstrdup(published_table_name(published));
	table->result.relid = published->relid;
	table->result.status = "waiting";
	table->context = AllocSetContextCreate(CurrentMemoryContext, "weft compared table",
										   ALLOCSET_SMALL_SIZES);
	if (published->status != PUBLISHED_TABLE_COMPARABLE)
		compare_table_skip(table, "skipped", published->reason);
	else if (strcmp(published->schema, "weft") == 0)
		compare_table_skip(table, "skipped", "The table belongs to the extension weft.");
	return table;
}

/* Is there anything left to be compared? */
bool
compare_table_open(const CompareTable *table)
{
	return strcmp(table->result.status, "waiting") == 0 ||
		strcmp(table->result.status, "running") == 0;
}

static void
forget(CompareTable *table)
{
	MemoryContextReset(table->context);
	table->signature = NULL;
	table->ranges = NULL;
	table->parts = NULL;
	table->parts_left = 0;
	table->differing = NIL;
	table->in_cut = false;
}

/* The table is not compared, or no longer.  What was counted of it remains. */
void
compare_table_skip(CompareTable *table, const char *status, const char *reason)
{
	table->result.status = status;
	table->result.reason = MemoryContextStrdup(GetMemoryChunkContext(table), reason ? reason : "");
	table->result.ended_at = GetCurrentTimestamp();
	table->result.complete = false;
	forget(table);
}

/* The table has changed.  The caller removes its differences, if "stale". */
void
compare_table_start_over(CompareTable *table, const char *reason)
{
	table->stale = true;
	table->result.publisher_rows = 0;
	table->result.local_rows = 0;
	table->result.differences = 0;
	table->result.candidates = 0;
	table->result.first_lsn = InvalidXLogRecPtr;
	table->result.last_lsn = InvalidXLogRecPtr;
	if (++table->attempts >= MAX_ATTEMPTS)
		compare_table_skip(table, "changed", reason);
	else
		forget(table);
}

/*
 * A query for the table has failed.  A query that does not fit the table, or gets no lock,
 * may have met a change of the table.
 */
void
compare_table_error(CompareTable *table, int sqlstate, const char *message)
{
	if (sqlstate == ERRCODE_UNDEFINED_TABLE || sqlstate == ERRCODE_UNDEFINED_COLUMN ||
		sqlstate == ERRCODE_LOCK_NOT_AVAILABLE || sqlstate == ERRCODE_T_R_DEADLOCK_DETECTED ||
		sqlstate == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE ||
		sqlstate == ERRCODE_CONNECTION_FAILURE || sqlstate == ERRCODE_PROTOCOL_VIOLATION)
		compare_table_start_over(table, message);
	else
		compare_table_skip(table, "failed", message);
}

/*
 * Everything of the definition that the meaning of the parts, and that of hashes, depends on: a
 * text, in the current memory context.
 */
char *
compare_table_signature(const PublishedTable *published, bool convert)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, "%u %u %d %d", published->relid, published->publisher_relid,
					 convert, published->key_indexed);
	foreach_ptr(PublishedColumn, column, published->columns)
		appendStringInfo(&text, ", %s %d %u %d %u %d %d", column->name, column->attnum, column->type,
						 column->typmod, column->publisher_type, column->publisher_typmod,
						 column->not_null);
	foreach_ptr(PublishedColumn, column, published->key)
		appendStringInfo(&text, "; %s", column->name);
	for (int side = 0; side < 2; side++)
		appendStringInfo(&text, " | %s", published->filter[side] ? published->filter[side] : "");
	return text.data;
}

static int64
part_rows(const PublishedTable *published, int64 max_rows_per_second)
{
	int64		rows = Max(MIN_PART_ROWS, (int64) (published->estimated_rows / MAX_PARTS));

	if (max_rows_per_second > 0)
		rows = Min(rows, Max(max_rows_per_second, MIN_LIMITED_ROWS));
	return rows;
}

static void
divide(CompareTable *table, const char *signature, int64 max_rows_per_second)
{
	bool		run_as_owner = table->hash.table->run_as_owner;
	UserContext user;
	MemoryContext old;

	owner_context_enter_table(&user, table->result.relid, run_as_owner);
	old = MemoryContextSwitchTo(table->context);
	table->signature = pstrdup(signature);
	table->ranges = key_ranges_plan(&table->hash,
									part_rows(table->hash.table, max_rows_per_second));
	table->parts = palloc0(table->ranges->count * sizeof(ComparePart));
	table->parts_left = table->ranges->count;
	MemoryContextSwitchTo(old);
	owner_context_leave_table(&user, run_as_owner);
}

/*
 * Prepares the table for a cut, or skips it.  "published" is what the publisher's snapshot says
 * of it, or NULL; it must remain valid as long as the cut.  There must be an active
 * snapshot, and the caller acts as the subscription's owner.
 */
void
compare_table_prepare(CompareTable *table, PublishedTable *published, bool convert,
					  int64 max_rows_per_second)
{
	char	   *signature;

	table->in_cut = false;
	table->differing = NIL;
	table->limited = false;
	if (published == NULL || published->status != PUBLISHED_TABLE_COMPARABLE)
	{
		compare_table_skip(table, "changed",
						   published ? published->reason : dropped);
		return;
	}
	signature = compare_table_signature(published, convert);
	if (table->signature != NULL && strcmp(table->signature, signature) != 0)
		compare_table_start_over(table, "The definition of the table was changed during the comparison.");
	if (!compare_table_open(table))
		return;
	table->hash.table = published;
	table->hash.convert = convert;
	if (table->ranges == NULL)
		divide(table, signature, max_rows_per_second);
	if (table->result.started_at == 0)
		table->result.started_at = GetCurrentTimestamp();
	table->result.status = "running";
}

static void
add_buckets(CompareTable *table, int index, TaskBuilder *builder)
{
	char	   *queries[2];

	for (int side = 0; side < 2; side++)
		queries[side] = row_hash_group_sums(&table->hash, side,
											key_ranges_group(table->ranges, side), NULL);
	task_builder_add(builder, table->hash.table, index, 0, table->ranges->count, true,
					 queries[SIDE_PUBLISHER], queries[SIDE_LOCAL]);
}

/* Adds the table's parts that are not done, if ranges of keys up to "max_units" of them. */
void
compare_table_add_units(CompareTable *table, int index, TaskBuilder *builder, int max_units)
{
	table->in_cut = true;
	if (table->ranges->mode == KEY_BUCKETS)
	{
		add_buckets(table, index, builder);
		return;
	}
	for (int part = 0; part < table->ranges->count && max_units > 0; part++)
	{
		char	   *queries[2];

		if (table->parts[part].done)
			continue;
		for (int side = 0; side < 2; side++)
			queries[side] = row_hash_sums(&table->hash, side,
										  key_ranges_condition(table->ranges, side, part));
		task_builder_add(builder, table->hash.table, index, part, 1, false,
						 queries[SIDE_PUBLISHER], queries[SIDE_LOCAL]);
		max_units--;
	}
}

/* A part has been compared. */
void
compare_table_part_done(CompareTable *table, int part)
{
	ComparePart *found = &table->parts[part];

	Assert(!found->done);
	found->done = true;
	table->parts_left--;
	table->result.publisher_rows += found->rows[SIDE_PUBLISHER];
	table->result.local_rows += found->rows[SIDE_LOCAL];
}

/*
 * Takes over the outcome of one of the table's units.  Parts that differ are listed.  After
 * an error, the table is no longer in the cut.
 */
void
compare_table_collect(CompareTable *table, CompareTask *task, const CompareUnit *unit)
{
	PartSum    *publisher = task_sums(task, unit, SIDE_PUBLISHER);
	PartSum    *local = task_sums(task, unit, SIDE_LOCAL);

	if (!table->in_cut)
		return;
	for (int side = 0; side < 2; side++)
		if (unit->outcomes[side].sqlstate != 0)
		{
			compare_table_error(table, unit->outcomes[side].sqlstate, unit->outcomes[side].message);
			return;
		}
	if (!unit->outcomes[SIDE_PUBLISHER].done || !unit->outcomes[SIDE_LOCAL].done)
		return;
	for (int i = 0; i < unit->num_parts; i++)
	{
		int			part = unit->first_part + i;

		if (table->parts[part].done)
			continue;
		table->parts[part].rows[SIDE_PUBLISHER] = publisher[i].count;
		table->parts[part].rows[SIDE_LOCAL] = local[i].count;
		if (publisher[i].count == local[i].count && strcmp(publisher[i].sum, local[i].sum) == 0)
			compare_table_part_done(table, part);
		else
		{
			MemoryContext old = MemoryContextSwitchTo(table->context);

			table->differing = lappend_int(table->differing, part);
			MemoryContextSwitchTo(old);
		}
	}
}

/* The table is done, because all parts are, or because it has too many differences. */
void
compare_table_finish(CompareTable *table, int limit)
{
	table->result.status = "done";
	table->result.ended_at = GetCurrentTimestamp();
	table->result.complete = !table->limited;
	if (table->limited)
		table->result.reason =
			MemoryContextStrdup(GetMemoryChunkContext(table),
								psprintf("There are more differences than max_differences (%d).",
										 limit));
	forget(table);
}
