/*
 * table_probe.c
 *	  Shows what is published and how it is compared, and compares a table that is at rest.
 *
 * This is for TAP tests.  There is no cut, so nobody may write meanwhile.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "local_query.h"
#include "nodes/bitmapset.h"
#include "pinned_settings.h"
#include "remote_query.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "verify/hash_probe.h"
#include "verify/key_range.h"
#include "verify/published_table.h"
#include "verify/publisher.h"
#include "verify/row_filter.h"
#include "verify/row_hash.h"

PG_FUNCTION_INFO_V1(weft_test_tables);
PG_FUNCTION_INFO_V1(weft_test_compare);
PG_FUNCTION_INFO_V1(weft_test_row_filter);

/* A row as lists of rows have it. */
typedef struct HashedRow
{
	int64		key;
	int64		row;
} HashedRow;

typedef struct Probe
{
	WalReceiverConn *conn;
	RowHash		hash;
	KeyRanges  *ranges;
	ReturnSetInfo *result;
} Probe;

static int
pin(void)
{
	int			level = NewGUCNestLevel();

	pinned_settings_set_local();
	(void) set_config_option("row_security", "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	return level;
}

static void
put(ReturnSetInfo *result, int columns, char **texts)
{
	Datum		values[12];
	bool		nulls[12];

	for (int i = 0; i < columns; i++)
	{
		nulls[i] = texts[i] == NULL;
		values[i] = nulls[i] ? (Datum) 0 : CStringGetTextDatum(texts[i]);
	}
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

#define PUT(result, ...) \
	put(result, lengthof(((char *[]) {__VA_ARGS__})), (char *[]) {__VA_ARGS__})

static char *
names(List *columns)
{
	StringInfoData list;
	ListCell   *cell;

	initStringInfo(&list);
	foreach(cell, columns)
		appendStringInfo(&list, "%s%s", list.len > 0 ? "," : "",
						 ((PublishedColumn *) lfirst(cell))->name);
	return list.data;
}

/*
 * weft_test_tables(subscription name, tables regclass[]) returns SETOF (name, status, reason,
 *	columns, missing, key, here, there)
 */
Datum
weft_test_tables(PG_FUNCTION_ARGS)
{
	Subscription *subscription = publisher_subscription(NameStr(*PG_GETARG_NAME(0)));
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *relids = NIL;
	WalReceiverConn *conn;
	ListCell   *cell;
	Datum	   *elements;
	int			count;

	InitMaterializedSRF(fcinfo, 0);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), REGCLASSOID, sizeof(Oid), true, TYPALIGN_INT,
					  &elements, NULL, &count);
	for (int i = 0; i < count; i++)
		relids = lappend_oid(relids, DatumGetObjectId(elements[i]));
	conn = publisher_connect(subscription);
	foreach(cell, published_tables_get(subscription, conn, relids)->tables)
	{
		PublishedTable *table = lfirst(cell);
		ListCell   *missing;
		StringInfoData list;
		bool		comparable = table->status == PUBLISHED_TABLE_COMPARABLE;

		initStringInfo(&list);
		foreach(missing, table->missing_columns)
			appendStringInfo(&list, "%s%s", list.len > 0 ? "," : "", (char *) lfirst(missing));
		PUT(result,
			published_table_name(table),
			pstrdup(published_table_status_name(table->status)),
			table->reason, comparable ? names(table->columns) : NULL, list.data,
			comparable ? names(table->key) : NULL,
			comparable ? published_table_rows(table, SIDE_LOCAL, NULL) : NULL,
			comparable ? published_table_rows(table, SIDE_PUBLISHER, NULL) : NULL);
	}
	walrcv_disconnect(conn);
	return (Datum) 0;
}

static List *
ask(Probe *probe, CompareSide side, const char *query, int columns)
{
	if (side == SIDE_LOCAL)
		return local_rows(query, columns);
	return remote_query(probe->conn, "ask the publisher", query, WALRCV_OK_TUPLES, columns).rows;
}

static int
compare_rows(const void *a, const void *b)
{
	const HashedRow *x = a;
	const HashedRow *y = b;

	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return x->row == y->row ? 0 : x->row < y->row ? -1 : 1;
}

static HashedRow *
list_rows(Probe *probe, CompareSide side, const char *condition, int *count)
{
	List	   *rows = ask(probe, side, row_hash_list(&probe->hash, side, condition), 2);
	HashedRow  *result = palloc((list_length(rows) + 1) * sizeof(HashedRow));
	ListCell   *cell;

	*count = 0;
	foreach(cell, rows)
	{
		char	  **values = lfirst(cell);

		result[*count].key = strtoi64(values[0], NULL, 10);
		result[(*count)++].row = strtoi64(values[1], NULL, 10);
	}
	qsort(result, *count, sizeof(HashedRow), compare_rows);
	return result;
}

/* Fetches rows by their key again, by the texts of the key; returns how many there are. */
static int
count_by_key(Probe *probe, CompareSide side, const char *key)
{
	StringInfoData query;
	ListCell   *cell;
	List	   *keys;

	if (key == NULL)
		return -1;
	initStringInfo(&query);
	foreach(cell, probe->hash.table->key)
		appendStringInfo(&query, "%s %s::jsonb ->> %s", query.len > 0 ? "," : "SELECT",
						 quote_literal_cstr(key),
						 quote_literal_cstr(((PublishedColumn *) lfirst(cell))->name));
	keys = local_rows(query.data, list_length(probe->hash.table->key));
	return list_length(ask(probe, side, row_hash_rows_by_key(&probe->hash, side, keys), 5));
}

/* Shows the rows with one of these hashes that have one of these row hashes. */
static void
show_rows(Probe *probe, CompareSide side, const char *condition, HashedRow *rows, int count)
{
	int64	   *keys = palloc((count + 1) * sizeof(int64));
	ListCell   *cell;

	for (int i = 0; i < count; i++)
		keys[i] = rows[i].key;
	foreach(cell, ask(probe, side, row_hash_rows(&probe->hash, side, condition, keys, count), 5))
	{
		char	  **values = lfirst(cell);

		for (int i = 0; i < count; i++)
			if (rows[i].key == strtoi64(values[0], NULL, 10) &&
				rows[i].row == strtoi64(values[1], NULL, 10))
			{
				PUT(probe->result,
					side == SIDE_LOCAL ? "here" : "there", values[2], values[3],
					values[4], psprintf("%d", count_by_key(probe, side, values[2])));
				break;
			}
	}
}

static void
compare_part(Probe *probe, int part)
{
	char	   *conditions[2];
	HashedRow  *rows[2];
	HashedRow  *differing[2];
	int			counts[2];
	int			num_differing[2] = {0, 0};
	int			i = 0;
	int			j = 0;

	for (CompareSide side = SIDE_PUBLISHER; side <= SIDE_LOCAL; side++)
	{
		conditions[side] = key_ranges_condition(probe->ranges, side, part);
		rows[side] = list_rows(probe, side, conditions[side], &counts[side]);
		differing[side] = palloc((counts[side] + 1) * sizeof(HashedRow));
	}
	while (i < counts[0] || j < counts[1])
	{
		int			order = i >= counts[0] ? 1 : j >= counts[1] ? -1 :
			compare_rows(&rows[0][i], &rows[1][j]);

		if (order < 0)
			differing[0][num_differing[0]++] = rows[0][i];
		else if (order > 0)
			differing[1][num_differing[1]++] = rows[1][j];
		if (order <= 0)
			i++;
		if (order >= 0)
			j++;
	}
	for (CompareSide side = SIDE_PUBLISHER; side <= SIDE_LOCAL; side++)
		show_rows(probe, side, conditions[side], differing[side], num_differing[side]);
}

/* Sums of all parts of one side, as texts "count sum". */
static char **
get_sums(Probe *probe, CompareSide side)
{
	char	  **sums = palloc0(probe->ranges->count * sizeof(char *));
	ListCell   *cell;

	for (int i = 0; i < probe->ranges->count; i++)
	{
		char	  **row;

		sums[i] = "0 0";
		if (probe->ranges->mode == KEY_BUCKETS)
			continue;
		row = linitial(ask(probe, side,
						   row_hash_sums(&probe->hash, side,
										 key_ranges_condition(probe->ranges, side, i)), 2));
		sums[i] = psprintf("%s %s", row[0], row[1]);
	}
	if (probe->ranges->mode == KEY_BUCKETS)
		foreach(cell, ask(probe, side,
						  row_hash_group_sums(&probe->hash, side,
											  key_ranges_group(probe->ranges, side), NULL), 3))
	{
		char	  **row = lfirst(cell);

		sums[atoi(row[0])] = psprintf("%s %s", row[1], row[2]);
	}
	return sums;
}

/*
 * weft_test_compare(subscription name, "table" regclass, rows bigint)
 *	returns SETOF (side, key, row, whole, found)
 *
 * First a row that says into how many parts the table was divided, or why it cannot be compared;
 * then the rows that only one side has, and how many rows are found by the key's text.
 */
Datum
weft_test_compare(PG_FUNCTION_ARGS)
{
	Subscription *subscription = publisher_subscription(NameStr(*PG_GETARG_NAME(0)));
	Probe		probe = {.result = (ReturnSetInfo *) fcinfo->resultinfo};
	PublishedTables *tables;
	int			level = pin();
	int			parts = 0;

	InitMaterializedSRF(fcinfo, 0);
	probe.conn = publisher_connect(subscription);
	tables = published_tables_get(subscription, probe.conn, list_make1_oid(PG_GETARG_OID(1)));
	hash_probe_check(subscription, probe.conn, tables->convert);
	probe.hash.table = linitial(tables->tables);
	probe.hash.convert = tables->convert;
	if (probe.hash.table->status != PUBLISHED_TABLE_COMPARABLE)
		PUT(probe.result,
			pstrdup(published_table_status_name(probe.hash.table->status)),
			probe.hash.table->reason, NULL, NULL, NULL);
	else
	{
		char	  **there;
		char	  **here;

		probe.ranges = key_ranges_plan(&probe.hash, PG_GETARG_INT64(2));
		there = get_sums(&probe, SIDE_PUBLISHER);
		here = get_sums(&probe, SIDE_LOCAL);
		PUT(probe.result,
			probe.ranges->mode == KEY_RANGES ? "ranges" : "buckets",
			psprintf("%d", probe.ranges->count), there[0], here[0], NULL);
		for (parts = 0; parts < probe.ranges->count; parts++)
			if (strcmp(there[parts], here[parts]) != 0)
				compare_part(&probe, parts);
	}
	walrcv_disconnect(probe.conn);
	AtEOXact_GUC(true, level);
	return (Datum) 0;
}

/*
 * weft_test_row_filter("table" regclass, filter text, OUT filter text, OUT problem text,
 *	OUT columns int)
 */
Datum
weft_test_row_filter(PG_FUNCTION_ARGS)
{
	Bitmapset  *columns = NULL;
	char	   *problem = NULL;
	char	   *filter = row_filter_local(PG_GETARG_OID(0), text_to_cstring(PG_GETARG_TEXT_PP(1)),
										  &columns, &problem);
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {filter == NULL, problem == NULL, false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "not called for a row");
	values[0] = filter ? CStringGetTextDatum(filter) : (Datum) 0;
	values[1] = problem ? CStringGetTextDatum(problem) : (Datum) 0;
	values[2] = Int32GetDatum(bms_num_members(columns));
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
