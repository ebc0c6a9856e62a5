/*
 * key_range.c
 *	  Divides a table into parts that are the same rows on both sides.
 *
 * The bounds of ranges come from a sample of the table's pages here.  Whether they divide it evenly
 * matters for speed only: the ranges cover all keys.
 *
 * The sample also tells whether ranges are worth while.  Reading all ranges one by one reads each
 * page once for each range that has a row on it: about once if the rows are stored in the order
 * of their keys, and once for each row if they are scattered.  Scattered rows are read faster in one
 * pass, in buckets.
 */
#include "postgres.h"

#include <math.h>

#include "access/table.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "local_query.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "verify/key_range.h"

/* Pages in the sample for each part; more would make the parts more even. */
#define PAGES_PER_PART 2

/* Smaller samples would be too coarse. */
#define LEAST_PAGES 300

/* A table of so few pages stays in the cache, so it does not matter how often a page is read. */
#define SMALL_TABLE 2000

/* How often ranges may read a page, on average. */
#define MOST_READS 4.0

/* If so many times as many rows should be here, some keys may be entirely unknown. */
#define MOST_MISSING 4

/* No comparison needs more parts; a range of a huge table has more rows instead. */
#define MOST_PARTS 65536

/* Do both sides, and all machines, order the values of the column in the same way? */
static bool
same_order(const RowHash *hash, const PublishedColumn *column)
{
	Oid			here = column->type;
	Oid			there = column->publisher_type;

	switch (here)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
			return there == INT2OID || there == INT4OID || there == INT8OID;
		case BOOLOID:
		case BYTEAOID:
		case DATEOID:
		case FLOAT4OID:
		case FLOAT8OID:
		case LSNOID:
		case MACADDROID:
		case NUMERICOID:
		case OIDOID:
		case TIMEOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
		case UUIDOID:
			return there == here;
		case BPCHAROID:
		case NAMEOID:
		case TEXTOID:
		case VARCHAROID:
			return there == here && !hash->convert &&
				column->binary_order && column->publisher_binary_order;
		default:
			return false;
	}
}

static bool
key_has_order(const RowHash *hash)
{
	ListCell   *cell;

	if (hash->table->key == NIL || !hash->table->key_indexed)
		return false;
	foreach(cell, hash->table->key)
	{
		PublishedColumn *column = lfirst(cell);

		/* A row whose key is null is in no range. */
		if (!column->not_null || !same_order(hash, column))
			return false;
	}
	return true;
}

/*
 * Returns the number of pages of the table here, or 0 if a sample cannot be taken because it
 * is not stored in a heap.
 */
static BlockNumber
count_pages(const PublishedTable *table)
{
	BlockNumber pages = 0;
	List	   *relids = list_make1_oid(table->relid);
	bool		heap = true;
	ListCell   *cell;

	if (table->relkind == RELKIND_PARTITIONED_TABLE)
		relids = find_all_inheritors(table->relid, NoLock, NULL);
	foreach(cell, relids)
	{
		Relation	part = try_table_open(lfirst_oid(cell), AccessShareLock);

		if (part == NULL)
			continue;
		if (part->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
			;
		else if (part->rd_rel->relam == HEAP_TABLE_AM_OID)
			pages += RelationGetNumberOfBlocks(part);
		else
			heap = false;
		table_close(part, AccessShareLock);
	}
	return heap ? pages : 0;
}

/*
 * A query for the bounds of "parts" parts, in their order.  Each row is the number of rows in
 * the sample, how many parts have rows on one of its pages on average, and the key.
 */
static char *
sample_query(const PublishedTable *table, int parts, double percentage)
{
	StringInfoData names;
	StringInfoData aliases;
	StringInfoData texts;
	ListCell   *cell;

	initStringInfo(&names);
	initStringInfo(&aliases);
	initStringInfo(&texts);
	foreach(cell, table->key)
	{
		int			i = foreach_current_index(cell);
		const char *name = quote_identifier(((PublishedColumn *) lfirst(cell))->name);

		appendStringInfo(&names, "%s%s", i > 0 ? ", " : "", name);
		appendStringInfo(&aliases, "%s AS k%d, ", name, i);
		appendStringInfo(&texts, ", pg_catalog.concat(k%d)", i);
	}
	return psprintf("WITH sample AS MATERIALIZED (SELECT %s"
					"pg_catalog.row_number() OVER (ORDER BY %s) - 1 AS n,"
					" pg_catalog.count(*) OVER () AS c,"
					" ((t.ctid::pg_catalog.text::pg_catalog.point)[0])::pg_catalog.int8 AS page,"
					" t.tableoid AS leaf"
					" FROM %s%s t TABLESAMPLE SYSTEM (%.9f) REPEATABLE (0)%s%s%s),"
					" part AS MATERIALIZED (SELECT s.*, n * %d / c AS number FROM sample s),"
					" reads AS MATERIALIZED (SELECT pg_catalog.count(DISTINCT (leaf, page, number))"
					"::pg_catalog.float8 / pg_catalog.count(DISTINCT (leaf, page)) AS ratio"
					" FROM part)"
					" SELECT c, ratio%s FROM part, reads"
					" WHERE n > 0 AND (n - 1) * %d / c < number ORDER BY n",
					aliases.data, names.data,
					table->relkind == RELKIND_RELATION ? "ONLY " : "",
					published_table_name(table), percentage,
					table->filter[SIDE_LOCAL] ? " WHERE (" : "",
					table->filter[SIDE_LOCAL] ? table->filter[SIDE_LOCAL] : "",
					table->filter[SIDE_LOCAL] ? ")" : "",
					parts, texts.data, parts);
}

/*
 * Makes ranges of about equally many rows.  Returns false if ranges would be a bad choice.
 */
static bool
plan_ranges(KeyRanges *ranges, int parts)
{
	const PublishedTable *table = ranges->hash->table;
	int			columns = list_length(table->key);
	BlockNumber pages = count_pages(table);
	double		percentage;
	List	   *rows;
	char	  **first;
	ListCell   *cell;

	if (pages == 0)
		return false;
	percentage = Min(100, 100.0 * Max((double) parts * PAGES_PER_PART, LEAST_PAGES) / pages);
	rows = local_rows(sample_query(table, parts, percentage), 2 + columns);
	if (rows == NIL)
		return false;

	/* If rows are missing here, their keys are not in the sample. */
	first = linitial(rows);
	if (strtod(first[0], NULL) * 100 / percentage * MOST_MISSING < table->estimated_rows)
		return false;
	if (pages > SMALL_TABLE && strtod(first[1], NULL) > MOST_READS)
		return false;

	ranges->mode = KEY_RANGES;
	ranges->count = list_length(rows) + 1;
	ranges->bounds = palloc(list_length(rows) * sizeof(char **));
	foreach(cell, rows)
		ranges->bounds[foreach_current_index(cell)] = (char **) lfirst(cell) + 2;
	return true;
}

KeyRanges *
key_ranges_plan(const RowHash *hash, int64 rows)
{
	KeyRanges  *ranges = palloc0(sizeof(KeyRanges));
	int			parts = (int) Min(ceil(hash->table->estimated_rows / Max(rows, 1)), MOST_PARTS);

	ranges->hash = hash;
	ranges->mode = KEY_RANGES;
	ranges->count = 1;
	if (parts <= 1 || (key_has_order(hash) && plan_ranges(ranges, parts)))
		return ranges;

	ranges->mode = KEY_BUCKETS;
	ranges->count = pg_nextpower2_32(parts);
	return ranges;
}

/* "(columns) operator (bound)" */
static void
append_comparison(StringInfo condition, const KeyRanges *ranges, const char *operator,
				  char **bound)
{
	StringInfoData literals;
	StringInfoData names;
	ListCell   *cell;

	initStringInfo(&literals);
	initStringInfo(&names);
	foreach(cell, ranges->hash->table->key)
	{
		PublishedColumn *column = lfirst(cell);
		int			i = foreach_current_index(cell);
		const char *comma = i > 0 ? ", " : "";

		appendStringInfo(&names, "%s%s", comma, quote_identifier(column->name));

		/* A bound need not fit a smaller integer. */
		appendStringInfo(&literals, "%s%s%s", comma, quote_literal_cstr(bound[i]),
						 column->type != column->publisher_type ? "::pg_catalog.int8" : "");
	}
	appendStringInfo(condition, "(%s) %s (%s)", names.data, operator, literals.data);
}

static void
append_range(StringInfo condition, const KeyRanges *ranges, int part)
{
	if (part > 0)
		append_comparison(condition, ranges, ">=", ranges->bounds[part - 1]);
	if (part > 0 && part < ranges->count - 1)
		appendStringInfoString(condition, " AND ");
	if (part < ranges->count - 1)
		append_comparison(condition, ranges, "<", ranges->bounds[part]);
}

char *
key_ranges_condition_of(const KeyRanges *ranges, CompareSide side, const int *parts, int count)
{
	StringInfoData condition;

	if (ranges->count == 1)
		return NULL;
	if (ranges->mode == KEY_BUCKETS)
		return row_hash_bucket_condition(ranges->hash, side, ranges->count, parts, count);
	initStringInfo(&condition);
	for (int i = 0; i < count; i++)
	{
		appendStringInfoString(&condition, i > 0 ? " OR (" : "(");
		append_range(&condition, ranges, parts[i]);
		appendStringInfoChar(&condition, ')');
	}
	return condition.data;
}

char *
key_ranges_condition(const KeyRanges *ranges, CompareSide side, int part)
{
	return key_ranges_condition_of(ranges, side, &part, 1);
}

char *
key_ranges_group(const KeyRanges *ranges, CompareSide side)
{
	Assert(ranges->mode == KEY_BUCKETS);
	return row_hash_bucket(ranges->hash, side, ranges->count);
}
