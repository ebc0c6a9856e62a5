/*
 * rest_check.c
 *	  Compares both sides of a subscription while nobody writes to its tables.
 *
 * Without writers, no cut is needed: two queries see the same state, whenever they run.  The
 * caller has fenced the tables of both sides, and everything has been applied.
 *
 * rest_check_all() compares the count and the sum of the hashes of all rows of each table.
 *
 * rest_check_recent() completes a comparison at cuts (compare_cut.c) that has just found both
 * sides equal under load, and looks at those rows only that may have changed since.  On each
 * side a transaction id N was marked before the first cut of that comparison: the oldest one in
 * progress at that moment, so that each transaction with an older one had ended.  A row is "new" if
 * its xmin is not older than N, else "old".  For each table it checks
 *
 *	 A. that the number of all rows and the sum of the hashes of all keys are the same on both
 *		sides;
 *	 B. that each key of a row that is new on some side has equal rows on both sides.
 *
 * Why nothing escapes.  Assume that both hold, and look at a key k.
 *
 * - If some row with k is new on some side, then B says that the rows are equal.
 * - Otherwise each row with k is old: its transaction had ended before the first cut, and it
 *	 still exists.  All snapshots of the comparison have seen it.
 *	 - If both sides have it, the comparison has found the two equal.
 *	 - If only one side has it, then the other one has lost it since the comparison (DELETE, or
 *	   UPDATE of the key, leave nothing old behind).  Then the keys of both sides are not the
 *	   same, which A finds; another key that only the other side has would make the counts
 *	   equal, but not the sums.
 *
 * Tables without a key have their whole rows as keys, so that A compares everything.
 *
 * Counts and sums of xids alone would not do for B: the two sides' sets of new rows are not the
 * same.  A row whose transaction committed on the publisher just before its mark, and was
 * applied here after the mark here, is old there and new here; while a transaction is in
 * progress, others that commit before the marks are new as well.  Therefore the hashes of the
 * keys and rows that are new are listed on both sides.  What is in both lists is equal; keys
 * that are in one list only are looked for in the whole tables of both sides.
 *
 * Which differences escape: those that leave no trace in xmin and keys, and whose rows were compared before
 * they arose: damaged storage; tools that change tuples in place; and changes of what an old value means,
 * such as renaming a label of an enum on one side.  (Changed definitions of tables are found,
 * see definitions_hash().)  And as in all comparisons, what hashes of 64 bits do not tell apart.
 *
 * Freezing leaves the raw xmin in the row, so an old row may carry an id from before the
 * last wraparound, and seem to be new.  That costs time, but nothing escapes.  A new row never
 * seems to be old, because at most MAX_XIDS ids are assigned in between: age() is below
 * 2^31, and both of its values in a query refer to the same next id.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "remote_query.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "verify/compare_table.h"
#include "verify/hash_probe.h"
#include "verify/owner_context.h"
#include "verify/rest_check.h"
#include "verify/row_hash.h"
#include "verify/row_stream.h"
#include "verify/table_version.h"
#include "wait_event.h"

/* Of new rows, more than this are not listed: the whole table is compared instead. */
#define MAX_LISTED 2000000

/* The same for keys that are in one list only. */
#define MAX_SEARCHED 100000

/* How many transaction ids may be assigned between the mark and the check. */
#define MAX_XIDS (UINT64CONST(1) << 30)

/* Rows here that are read at a time. */
#define BATCH_ROWS 10000

/* What a query of two columns returns on one side. */
typedef struct Pair
{
	int64		first;
	int64		second;
} Pair;

typedef struct PairList
{
	Pair	   *pairs;
	int			count;
	int			size;
} PairList;

/* A check in progress. */
typedef struct RestCheck
{
	Subscription *subscription;
	WalReceiverConn *conn;
	PublishedTables *published;
	const PublishedTable *table;	/* that is being compared */
	RestCheckResult *result;
	StringInfoData differing;	/* for the user */
} RestCheck;

typedef void (*TakeRow) (void *argument, char *first, char *second);

/* Reads all lines of a COPY that the publisher has begun. */
static void
read_copy(WalReceiverConn *conn, TakeRow take, void *argument)
{
	char	   *message;
	int			length;

	while ((length = remote_copy_receive(conn, &message, -1, WEFT_WAIT_SWITCH)) >= 0)
	{
		char	   *line;
		char	   *second;

		if (length == 0)
			continue;
		line = pnstrdup(message, length);
		second = strchr(line, '\t');
		if (second == NULL)
			elog(ERROR, "unexpected row from the publisher: \"%s\"", line);
		*second++ = '\0';
		second[strcspn(second, "\n")] = '\0';
		take(argument, line, second);
		pfree(line);
	}
}

/*
 * Runs a query of two columns, both numbers, on each side at the same time, and passes on the rows.
 * Here it runs as the role as whom apply changes the table.
 */
static void
run_queries(RestCheck *check, char *const *queries, TakeRow take, void *const *arguments)
{
	bool		run_as_owner = check->table->run_as_owner;
	UserContext user;
	RowStream	stream;
	RemoteAnswer answer;
	char	  **row;

	/* The publisher answers before it has read anything. */
	answer = remote_query(check->conn, NULL, psprintf("COPY (%s) TO STDOUT", queries[SIDE_PUBLISHER]),
						  WALRCV_OK_COPY_OUT, 0);
	if (answer.problem != NULL)
		ereport(ERROR,
				(errcode(answer.sqlstate ? answer.sqlstate : ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not read a table of the publisher: %s", answer.problem)));
	owner_context_enter_table(&user, check->table->relid, run_as_owner);
	row_stream_open(&stream, SIDE_LOCAL, NULL, queries[SIDE_LOCAL], 2, BATCH_ROWS);
	while ((row = row_stream_next(&stream)) != NULL)
		take(arguments[SIDE_LOCAL], row[0], row[1]);
	row_stream_close(&stream);
	owner_context_leave_table(&user, run_as_owner);
	read_copy(check->conn, take, arguments[SIDE_PUBLISHER]);
}

static void
take_text(void *argument, char *first, char *second)
{
	char	  **texts = argument;

	texts[0] = pstrdup(first);
	texts[1] = pstrdup(second);
}

/*
 * Runs a query for a count and a sum on each side.  Returns whether both are equal, and the
 * publisher's count.
 */
static bool
sums_are_equal(RestCheck *check, char *const *queries, int64 *rows)
{
	char	   *texts[2][2] = {{NULL}};
	void	   *arguments[2] = {texts[0], texts[1]};

	run_queries(check, queries, take_text, arguments);
	for (int side = 0; side < 2; side++)
		if (texts[side][0] == NULL)
			elog(ERROR, "a query for sums has returned no row");
	*rows = pg_strtoint64(texts[SIDE_PUBLISHER][0]);
	return strcmp(texts[0][0], texts[1][0]) == 0 && strcmp(texts[0][1], texts[1][1]) == 0;
}

static void
take_pair(void *argument, char *first, char *second)
{
	PairList   *list = argument;

	if (list->count >= list->size)
	{
		list->size = Max(list->size * 2, 1024);
		list->pairs = list->pairs ? repalloc_array(list->pairs, Pair, list->size) :
			palloc_array(Pair, list->size);
	}
	list->pairs[list->count++] = (Pair)
	{
		pg_strtoint64(first), pg_strtoint64(second)
	};
}

static int
compare_pairs(const void *a, const void *b)
{
	const Pair *x = a;
	const Pair *y = b;

	if (x->first != y->first)
		return x->first < y->first ? -1 : 1;
	return x->second == y->second ? 0 : x->second < y->second ? -1 : 1;
}

static void
add_key(PairList *keys, int64 key)
{
	char text[	32];

	if (keys->count > 0 && keys->pairs[keys->count - 1].first == key)
		return;
	pg_lltoa(key, text);
	take_pair(keys, text, "0");
}

/* Keys of pairs that are not in both lists, in order, each once. */
static PairList
unmatched_keys(PairList *lists)
{
	PairList	keys = {0};
	int			next[2] = {0, 0};

	for (int side = 0; side < 2; side++)
		if (lists[side].count > 0)
			qsort(lists[side].pairs, lists[side].count, sizeof(Pair), compare_pairs);
	while (next[0] < lists[0].count || next[1] < lists[1].count)
	{
		int			order;

		if (next[0] >= lists[0].count)
			order = 1;
		else if (next[1] >= lists[1].count)
			order = -1;
		else
			order = compare_pairs(&lists[0].pairs[next[0]], &lists[1].pairs[next[1]]);
		if (order != 0)
			add_key(&keys, order < 0 ? lists[0].pairs[next[0]].first : lists[1].pairs[next[1]].first);
		next[0] += order <= 0 ? 1 : 0;
		next[1] += order >= 0 ? 1 : 0;
	}
	return keys;
}

/* Compares the rows with some keys, or all rows if "keys" is NULL. */
static bool
rows_are_equal(RestCheck *check, const RowHash *hash, const PairList *keys, int64 *rows)
{
	char	   *queries[2];

	for (int side = 0; side < 2; side++)
	{
		StringInfoData condition;

		initStringInfo(&condition);
		if (keys != NULL)
		{
			appendStringInfo(&condition, "%s = ANY ('{", row_hash_key(hash, side));
			for (int i = 0; i < keys->count; i++)
				appendStringInfo(&condition, "%s" INT64_FORMAT, i > 0 ? "," : "", keys->pairs[i].first);
			appendStringInfoString(&condition, "}'::pg_catalog.int8[])");
		}
		queries[side] = row_hash_sums(hash, side, keys ? condition.data : NULL);
	}
	return sums_are_equal(check, queries, rows);
}

/* Condition A at the head of the file. */
static bool
keys_are_equal(RestCheck *check, const RowHash *hash)
{
	char	   *queries[2];
	int64		unused;

	for (int side = 0; side < 2; side++)
		queries[side] = psprintf("SELECT pg_catalog.count(*), COALESCE(pg_catalog.sum(%s), 0) FROM %s",
								 row_hash_key(hash, side),
								 published_table_rows(hash->table, side, NULL));
	return sums_are_equal(check, queries, &unused);
}

/* Condition B. */
static bool
new_rows_are_equal(RestCheck *check, const RowHash *hash, const RestCheckMark *mark)
{
	PairList	lists[2] = {{0}};
	void	   *arguments[2] = {&lists[0], &lists[1]};
	char	   *queries[2];
	PairList	keys;
	int64		rows;

	for (int side = 0; side < 2; side++)
		queries[side] = psprintf("%s LIMIT %d",
								 row_hash_list(hash, side,
											   psprintf("pg_catalog.age(t.xmin) <= pg_catalog.age('%u'::pg_catalog.xid)",
														(uint32) mark->oldest_xid[side])),
								 MAX_LISTED + 1);
	run_queries(check, queries, take_pair, arguments);
	if (lists[0].count > MAX_LISTED || lists[1].count > MAX_LISTED)
	{
		bool		equal = rows_are_equal(check, hash, NULL, &rows);

		check->result->rows += rows;
		return equal;
	}
	check->result->rows += Max(lists[0].count, lists[1].count);
	keys = unmatched_keys(lists);
	return keys.count == 0 ||
		rows_are_equal(check, hash, keys.count > MAX_SEARCHED ? NULL : &keys, &rows);
}

/* Reads what there is to be compared, and makes sure that hashes can be. */
static void
begin_check(RestCheck *check, Subscription *subscription, WalReceiverConn *conn)
{
	check->subscription = subscription;
	check->conn = conn;
	initStringInfo(&check->differing);

	/* So that a query does not outlive this process for long. */
	(void) remote_query_row(conn, "set up the connection to the publisher",
							"SELECT pg_catalog.count(pg_catalog.set_config(name, '1s', false))"
							" FROM pg_catalog.pg_settings WHERE name = 'client_connection_check_interval'", 1);
	check->published = published_tables_get(subscription, conn, NIL);
	hash_probe_check(subscription, conn, check->published->convert);
}

/* Is the table one of the subscription?  Fails if it is, but cannot be compared. */
static bool
is_compared(const RestCheck *check, const PublishedTable *table)
{
	if (table->status == PUBLISHED_TABLE_NOT_SUBSCRIBED)
		return false;
	if (table->status != PUBLISHED_TABLE_COMPARABLE)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table %s of subscription \"%s\" cannot be compared: %s",
						published_table_name(table), check->subscription->name,
						published_table_status_name(table->status)),
				 errdetail_internal("%s", table->reason),
				 errhint("With verify => 'counts', only the number of rows is compared.")));
	return true;
}

static void
note_difference(RestCheck *check, const PublishedTable *table, const char *what)
{
	appendStringInfo(&check->differing, "%s%s of table %s differ",
					 check->differing.len > 0 ? "; " : "", what, published_table_name(table));
}

static void
end_check(RestCheck *check)
{
	if (check->differing.len > 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("the tables of subscription \"%s\" are not the same on both sides",
						check->subscription->name),
				 errdetail_internal("%s.", check->differing.data),
				 errhint("Compare them with weft.compare_subscription, which lists the rows.")));
}

/* A hash of the definitions of all tables on both sides, and of the files that they are in. */
static uint64
definitions_hash(RestCheck *check)
{
	List	   *local = NIL;
	List	   *publisher = NIL;
	StringInfoData text;

	initStringInfo(&text);
	foreach_ptr(PublishedTable, table, check->published->tables)
	{
		if (!is_compared(check, table))
			continue;
		local = lappend_oid(local, table->relid);
		publisher = lappend_oid(publisher, table->publisher_relid);
		appendStringInfo(&text, "%s\n", compare_table_signature(table, check->published->convert));
	}
	local = table_versions_local(check->subscription->oid, local);
	publisher = table_versions_publisher(check->conn, publisher);
	foreach_ptr(PublishedTable, table, check->published->tables)
	{
		const char *here = table_version_find(local, table->relid);
		const char *there = table_version_find(publisher, table->publisher_relid);

		appendStringInfo(&text, "%s\n%s\n", here ? here : "", there ? there : "");
	}
	return hash_bytes_extended((const unsigned char *) text.data, text.len, 0);
}

static const char xmin_query[] =
"SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::pg_catalog.text";

static const char xmax_query[] =
"SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.text";

/* Returns a transaction id, with its epoch, of one side. */
static uint64
get_xid(RestCheck *check, CompareSide side, const char *query)
{
	uint64		result;

	if (side == SIDE_PUBLISHER)
		return strtou64(remote_query_row(check->conn, "read its transaction ids", query, 1)[0], NULL, 10);
	PushActiveSnapshot(GetLatestSnapshot());
	if (SPI_execute(query, true, 0) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not read transaction ids");
	result = strtou64(SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1), NULL, 10);
	PopActiveSnapshot();
	return result;
}

void
rest_check_mark(Subscription *subscription, WalReceiverConn *conn, RestCheckMark *mark)
{
	RestCheck	check = {0};
	OwnerContext context;

	PushActiveSnapshot(GetTransactionSnapshot());
	owner_context_enter(&context, subscription->owner);
	begin_check(&check, subscription, conn);
	mark->definitions = definitions_hash(&check);
	for (int side = 0; side < 2; side++)
		mark->oldest_xid[side] = get_xid(&check, side, xmin_query);
	owner_context_leave(&context);
	PopActiveSnapshot();
}

/* Fails unless the mark can be relied on. */
static void
check_mark(RestCheck *check, const RestCheckMark *mark)
{
	if (definitions_hash(check) != mark->definitions)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a table of subscription \"%s\" was altered, truncated or rewritten since the comparison began",
						check->subscription->name),
				 errhint("Call the procedure again.")));
	for (int side = 0; side < 2; side++)
		if (get_xid(check, side, xmax_query) - mark->oldest_xid[side] > MAX_XIDS)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("too many transactions have begun since the comparison of subscription \"%s\" began",
							check->subscription->name),
					 errhint("Make sure that no transaction stays open, and call the procedure again.")));
}

void
rest_check_recent(Subscription *subscription, WalReceiverConn *conn, const RestCheckMark *mark,
				  RestCheckResult *result)
{
	RestCheck	check = {.result = result};
	OwnerContext context;

	PushActiveSnapshot(GetTransactionSnapshot());
	owner_context_enter(&context, subscription->owner);
	begin_check(&check, subscription, conn);
	check_mark(&check, mark);
	foreach_ptr(PublishedTable, table, check.published->tables)
	{
		RowHash		hash = {.table = table,.convert = check.published->convert};

		if (!is_compared(&check, table))
			continue;
		check.table = table;
		if (!keys_are_equal(&check, &hash))
			note_difference(&check, table, "the number or the keys of the rows");
		else if (!new_rows_are_equal(&check, &hash, mark))
			note_difference(&check, table, "recent rows");
		result->tables++;
	}
	owner_context_leave(&context);
	PopActiveSnapshot();
	end_check(&check);
}

void
rest_check_all(Subscription *subscription, WalReceiverConn *conn, RestCheckResult *result)
{
	RestCheck	check = {.result = result};
	OwnerContext context;

	PushActiveSnapshot(GetTransactionSnapshot());
	owner_context_enter(&context, subscription->owner);
	begin_check(&check, subscription, conn);
	foreach_ptr(PublishedTable, table, check.published->tables)
	{
		RowHash		hash = {.table = table,.convert = check.published->convert};
		int64		rows;

		if (!is_compared(&check, table))
			continue;
		check.table = table;
		table->filter[SIDE_PUBLISHER] = table->filter[SIDE_LOCAL] = NULL;
		if (!rows_are_equal(&check, &hash, NULL, &rows))
			note_difference(&check, table, "rows");
		result->tables++;
		result->rows += rows;
	}
	owner_context_leave(&context);
	PopActiveSnapshot();
	end_check(&check);
}
