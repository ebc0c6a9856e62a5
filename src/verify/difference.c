/*
 * difference.c
 *	  Finds the rows that differ in parts of a table whose sums differ.
 *
 * It takes two steps, in the same snapshots as the sums:
 *
 *	 1. Both sides list the hashes of keys and rows, in their order.  Merging the two lists
 *		gives the hashes of the keys that differ, up to a limit.
 *	 2. Both sides send the rows with these keys, in the order of the hashes.  Rows of
 *		one hash are told apart by the text of the key.
 *
 * Memory: BATCH rows of hashes, and ROW_BATCH whole rows, for each side, besides the hashes of
 * differing keys (8 bytes times the limit), and up to MAX_GROUP rows with the same key.  Sorting is the
 * servers' work, within their work_mem.
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "access/xact.h"
#include "compat.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "replication/origin.h"
#include "row_time.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "verify/compare_worker.h"
#include "verify/difference.h"
#include "verify/owner_context.h"
#include "verify/row_stream.h"

/* How many hashes are fetched at a time, and how many rows. */
#define BATCH 5000
#define ROW_BATCH 10

/* For how many keys rows are requested at a time. */
#define KEYS_PER_QUERY 1000

/* No more rows with one key are told apart on a side. */
#define MAX_GROUP 1000

/* Columns of the second step's queries. */
enum
{
	COLUMN_KEY_HASH,
	COLUMN_ROW_HASH,
	COLUMN_KEY,
	COLUMN_ROW,
	COLUMN_VERSION,
	NUM_COLUMNS
};

/* A row with a key that differs. */
typedef struct FoundRow
{
	int64		row_hash;
	char	   *key;			/* jsonb as text; NULL if the table has no key */
	char	   *row;
	char	   *version;		/* DIFFERENCE_VERSION; only here */
	bool		matched;
} FoundRow;

/* The rows of one side with the same hash of the key. */
typedef struct RowGroup
{
	List	   *rows;			/* of FoundRow; just one if the table has no
								 * key */
	int64		count;
} RowGroup;

static bool
limit_reached(DifferenceSearch *search, int found)
{
	if (found < search->limit)
		return false;
	search->limited = true;
	return true;
}

static int
compare_hashes(char **publisher, char **local)
{
	for (int i = 0; i < 2; i++)
	{
		int64		left = pg_strtoint64(publisher[i]);
		int64		right = pg_strtoint64(local[i]);

		if (left != right)
			return left < right ? -1 : 1;
	}
	return 0;
}

static char *
list_query(DifferenceSearch *search, CompareSide side)
{
	return psprintf("SELECT * FROM (%s) q ORDER BY 1, 2",
					row_hash_list(search->hash, side, search->conditions[side]));
}

/* The first step.  Returns the number of keys that differ. */
static int
find_keys(DifferenceSearch *search, int64 *keys)
{
	RowStream	publisher;
	RowStream	local;
	char	  **left;
	char	  **right;
	int			count = 0;

	row_stream_open(&publisher, SIDE_PUBLISHER, search->conn,
					list_query(search, SIDE_PUBLISHER), 2, BATCH);
	row_stream_open(&local, SIDE_LOCAL, NULL, list_query(search, SIDE_LOCAL), 2, BATCH);
	left = row_stream_next(&publisher);
	right = row_stream_next(&local);
	while (left != NULL || right != NULL)
	{
		int			order = left == NULL ? 1 : right == NULL ? -1 : compare_hashes(left, right);
		int64		key = pg_strtoint64(order <= 0 ? left[0] : right[0]);

		if (order != 0 && (count == 0 || keys[count - 1] != key))
		{
			if (limit_reached(search, count))
				break;
			keys[count++] = key;
		}
		if (order <= 0)
			left = row_stream_next(&publisher);
		if (order >= 0)
			right = row_stream_next(&local);
	}
	row_stream_close(&publisher);
	row_stream_close(&local);
	return count;
}

static char *
rows_query(DifferenceSearch *search, CompareSide side, const int64 *keys, int count)
{
	const char *part = search->conditions[side];
	char	   *hash = row_hash_key(search->hash, side);
	bool		with_version = side == SIDE_LOCAL && track_commit_timestamp;
	StringInfoData condition;

	initStringInfo(&condition);
	if (part != NULL)
		appendStringInfo(&condition, "(%s) AND ", part);
	appendStringInfo(&condition, "(%s) = ANY ('{", hash);
	for (int i = 0; i < count; i++)
		appendStringInfo(&condition, "%s" INT64_FORMAT, i > 0 ? "," : "", keys[i]);
	appendStringInfoString(&condition, "}'::pg_catalog.int8[])");
	return psprintf("SELECT %s, %s, (%s)::pg_catalog.text, (%s)::pg_catalog.text, %s FROM %s ORDER BY 1, 2",
					hash, row_hash_value(search->hash, side),
					row_hash_key_json(search->hash, side), row_hash_row_json(search->hash, side),
					with_version ? DIFFERENCE_VERSION : "NULL::pg_catalog.text",
					published_table_rows(search->hash->table, side, condition.data));
}

/* Reads the rows with this key.  "row" is the first one; returns the first one behind them. */
static char **
read_group(DifferenceSearch *search, RowStream *stream, char **row, int64 key, RowGroup *group)
{
	bool		keyless = search->hash->table->key == NIL;

	group->rows = NIL;
	group->count = 0;
	while (row != NULL && pg_strtoint64(row[COLUMN_KEY_HASH]) == key)
	{
		group->count++;
		if (group->rows == NIL || (!keyless && list_length(group->rows) < MAX_GROUP))
		{
			FoundRow   *found = palloc0(sizeof(FoundRow));

			found->row_hash = pg_strtoint64(row[COLUMN_ROW_HASH]);
			found->key = row[COLUMN_KEY] ? pstrdup(row[COLUMN_KEY]) : NULL;
			found->row = pstrdup(row[COLUMN_ROW]);
			if (row[COLUMN_VERSION])
				found->version = pstrdup(row[COLUMN_VERSION]);
			group->rows = lappend(group->rows, found);
		}
		row = row_stream_next(stream);
	}
	if (!keyless && group->count > list_length(group->rows))
		search->limited = true;
	return row;
}

/*
 * Who wrote the local row, and when, if that is still known?  "version" is what DIFFERENCE_VERSION
 * has returned, or NULL.
 */
void
difference_find_writer(const char *version, Difference *difference)
{
	TransactionId xmin;
	BlockNumber block;
	unsigned int offset;
	Oid			relid;
	ItemPointerData place;
	RepOriginId origin;
	char	   *name = NULL;

	if (version == NULL || !track_commit_timestamp ||
		sscanf(version, "%u (%u,%u) %u", &xmin, &block, &offset, &relid) != 4 ||
		!TransactionIdIsValid(xmin) ||
		!TransactionIdGetCommitTsData(xmin, &difference->local_commit_time, &origin))
		return;
	ItemPointerSet(&place, block, offset);
	if (origin != InvalidRepOriginId)
		(void) row_time_find_at(relid, &place, xmin, &difference->local_commit_time);
	if (origin == InvalidRepOriginId)
		difference->local_origin = "";
	else if (origin != DoNotReplicateId && replorigin_by_oid(origin, true, &name))
		difference->local_origin = name;
}

/* Stores a difference.  One of the rows may be NULL. */
static void
put(DifferenceSearch *search, const FoundRow *publisher, const FoundRow *local, int64 count)
{
	const FoundRow *any = publisher ? publisher : local;
	Difference	difference = {.relid = search->relid,.row_count = count,.key = any->key,
	.publisher_lsn = search->lsn,.row_hash = any->row_hash};

	if (limit_reached(search, search->found))
		return;
	difference.kind = local == NULL ? "missing here" :
		publisher == NULL ? "missing there" : "different";
	if (publisher != NULL)
		difference.publisher_row = publisher->row;
	if (local != NULL)
	{
		difference.local_row = local->row;
		difference_find_writer(local->version, &difference);
	}
	if (search->candidates)
		comparison_put_candidate(search->comparison, &difference);
	else
		comparison_put_difference(search->comparison, &difference);
	search->found++;
}

/* Pairs the rows that have the same key, and the same hash if "equal". */
static void
pair(DifferenceSearch *search, RowGroup *publisher, RowGroup *local, bool equal)
{
	foreach_ptr(FoundRow, left, publisher->rows)
	{
		foreach_ptr(FoundRow, right, local->rows)
		{
			if (left->matched || right->matched || strcmp(left->key, right->key) != 0 ||
				(equal && left->row_hash != right->row_hash))
				continue;
			left->matched = right->matched = true;
			if (!equal)
				put(search, left, right, 1);
		}
	}
}

static void
put_group(DifferenceSearch *search, RowGroup *publisher, RowGroup *local)
{
	if (search->hash->table->key == NIL)
	{
		if (publisher->count > local->count)
			put(search, linitial(publisher->rows), NULL, publisher->count - local->count);
		else if (publisher->count < local->count)
			put(search, NULL, linitial(local->rows), local->count - publisher->count);
		return;
	}
	pair(search, publisher, local, true);
	pair(search, publisher, local, false);
	foreach_ptr(FoundRow, row, publisher->rows)
		if (!row->matched)
		put(search, row, NULL, 1);
	foreach_ptr(FoundRow, row, local->rows)
		if (!row->matched)
		put(search, NULL, row, 1);
}

/* The second step, for some of the keys, which are in order. */
static void
put_rows(DifferenceSearch *search, const int64 *keys, int count)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "weft difference",
												  ALLOCSET_DEFAULT_SIZES);
	RowStream	publisher;
	RowStream	local;
	char	  **left;
	char	  **right;

	row_stream_open(&publisher, SIDE_PUBLISHER, search->conn,
					rows_query(search, SIDE_PUBLISHER, keys, count), NUM_COLUMNS, ROW_BATCH);
	row_stream_open(&local, SIDE_LOCAL, NULL,
					rows_query(search, SIDE_LOCAL, keys, count), NUM_COLUMNS, ROW_BATCH);
	left = row_stream_next(&publisher);
	right = row_stream_next(&local);
	for (int i = 0; i < count; i++)
	{
		MemoryContext old = MemoryContextSwitchTo(context);
		RowGroup	groups[2];

		left = read_group(search, &publisher, left, keys[i], &groups[SIDE_PUBLISHER]);
		right = read_group(search, &local, right, keys[i], &groups[SIDE_LOCAL]);
		put_group(search, &groups[SIDE_PUBLISHER], &groups[SIDE_LOCAL]);
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	row_stream_close(&publisher);
	row_stream_close(&local);
	MemoryContextDelete(context);
}

static void
search_parts(DifferenceSearch *search)
{
	bool		run_as_owner = search->hash->table->run_as_owner;
	UserContext user;
	int64	   *keys = palloc_extended((Size) search->limit * sizeof(int64), MCXT_ALLOC_HUGE);
	int			count;

	owner_context_enter_table(&user, search->relid, run_as_owner);
	count = find_keys(search, keys);
	for (int i = 0; i < count; i += KEYS_PER_QUERY)
		put_rows(search, keys + i, Min(count - i, KEYS_PER_QUERY));
	owner_context_leave_table(&user, run_as_owner);
	pfree(keys);
}

/*
 * Finds and stores the differences in some parts of a table.  There must be an active snapshot,
 * that of the cut, and an SPI connection.  Call it as the subscription's owner, with the pinned settings in force.
 *
 * Returns false after an error that concerns the table; nothing is stored then, and the
 * publisher's connection must be rolled back.
 */
bool
difference_search(DifferenceSearch *search)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	MemoryContext work = AllocSetContextCreate(context, "weft difference search",
											   ALLOCSET_DEFAULT_SIZES);
	volatile bool result = true;

	search->found = 0;
	search->limited = false;
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		SPI_connect();
		MemoryContextSwitchTo(work);
		search_parts(search);
		SPI_finish();
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		if (!compare_is_table_error(error->sqlerrcode))
			PG_RE_THROW();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		search->sqlstate = error->sqlerrcode;
		search->message = error->message;
		result = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	MemoryContextDelete(work);
	return result;
}
