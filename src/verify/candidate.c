/*
 * candidate.c
 *	  Rows of two members of a group that may differ, and what is known of them.
 *
 * compare_node.c says why a row is a difference after LOOKS looks at which the sides differed, if
 * one side had the same version of it each time.
 *
 * A row's version is its xmin, ctid and table: whoever writes a row, even with the same values, makes
 * another one.  A row that is not there has no version; it could have come and gone
 * between two looks.
 *
 * In a table without a key, a candidate is the set of all rows with the same text.  Its version is
 * made of those of all of them.  No conflicts are detected there, so both sides must have been
 * the same each time.
 */
#include "postgres.h"

#include "access/xact.h"
#include "local_query.h"
#include "remote_query.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "verify/candidate.h"
#include "verify/compare_worker.h"
#include "verify/difference.h"
#include "verify/owner_context.h"
#include "verify/published_table.h"
#include "verify/publisher.h"

/* How many looks a difference takes. */
#define LOOKS 3

/* How many rows are requested at a time. */
#define BATCH 200

/* Columns of the queries. */
enum
{
	COLUMN_IDENTITY,			/* text of the key, or hash of the row */
	COLUMN_COUNT,
	COLUMN_VERSION,				/* DIFFERENCE_VERSION of the row, if there is
								 * a key */
	COLUMN_CONTENT,				/* equal if the rows are */
	COLUMN_ROW,
	NUM_COLUMNS
};

/* Candidates of one table are in the order in which they were found. */
List *
candidates_load(CompareState *state)
{
	List	   *result = NIL;
	CandidateTable *current = NULL;

	foreach_ptr(StoredCandidate, stored, comparison_candidates(state->comparison.id))
	{
		Candidate  *candidate = palloc0(sizeof(Candidate));

		if (current == NULL || current->table->result.relid != stored->relid)
		{
			current = palloc0(sizeof(CandidateTable));
			foreach_ptr(CompareTable, table, state->tables)
				if (table->result.relid == stored->relid)
				current->table = table;
			if (current->table == NULL)
				elog(ERROR, "candidate of an unknown table");
			result = lappend(result, current);
		}
		candidate->stored = stored;
		current->candidates = lappend(current->candidates, candidate);
	}
	return result;
}

int
candidates_left(const CandidateTable *table)
{
	int			result = 0;

	foreach_ptr(Candidate, candidate, table->candidates)
		result += candidate->decided ? 0 : 1;
	return result;
}

/* Texts of the key's columns, in the order of the table's key; NULL if it has other columns. */
static char **
get_key(const PublishedTable *table, const char *json)
{
	Jsonb	   *jsonb = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(json)));
	char	  **result = palloc(list_length(table->key) * sizeof(char *));

	foreach_ptr(PublishedColumn, column, table->key)
	{
		JsonbValue *value = getKeyJsonValueFromContainer(&jsonb->root, column->name,
														 strlen(column->name), NULL);

		if (value == NULL || value->type != jbvString)
			return NULL;
		result[foreach_current_index(column)] = pnstrdup(value->val.string.val, value->val.string.len);
	}
	return result;
}

static char *
key_query(const RowHash *hash, CompareSide side, List *keys)
{
	const char *version = DIFFERENCE_VERSION " COLLATE pg_catalog.\"C\"";
	char	   *value = row_hash_value(hash, side);

	return psprintf("SELECT (%s)::pg_catalog.text, pg_catalog.count(*)::pg_catalog.text,"
					" pg_catalog.string_agg(%s, ',' ORDER BY %s),"
					" pg_catalog.string_agg((%s)::pg_catalog.text, ',' ORDER BY (%s)),"
					" pg_catalog.min((%s)::pg_catalog.text) FROM %s GROUP BY 1",
					row_hash_key_json(hash, side), version, version, value, value,
					row_hash_row_json(hash, side),
					published_table_rows(hash->table, side,
										 row_hash_key_condition(hash, side, keys)));
}

static char *
keyless_query(const RowHash *hash, CompareSide side, const char *hashes)
{
	char	   *value = row_hash_value(hash, side);

	return psprintf("SELECT (%s)::pg_catalog.text, pg_catalog.count(*)::pg_catalog.text,"
					" pg_catalog.sum(pg_catalog.hashtextextended(" DIFFERENCE_VERSION ", 0))::pg_catalog.text,"
					" pg_catalog.count(*)::pg_catalog.text,"
					" pg_catalog.min((%s)::pg_catalog.text) FROM %s GROUP BY 1",
					value, row_hash_row_json(hash, side),
					published_table_rows(hash->table, side,
										 psprintf("(%s) = ANY ('{%s}'::pg_catalog.int8[])",
												  value, hashes)));
}

static char *
make_query(const RowHash *hash, CompareSide side, List *candidates)
{
	StringInfoData hashes;
	List	   *keys = NIL;

	initStringInfo(&hashes);
	foreach_ptr(Candidate, candidate, candidates)
	{
		if (hash->table->key != NIL)
			keys = lappend(keys, get_key(hash->table, candidate->stored->key));
		else
			appendStringInfo(&hashes, "%s%s", hashes.len > 0 ? "," : "", candidate->stored->row_hash);
	}
	return hash->table->key != NIL ? key_query(hash, side, keys) :
		keyless_query(hash, side, hashes.data);
}

static List *
run_query(CompareState *state, const char *query, CompareSide side)
{
	RemoteAnswer answer;

	if (side == SIDE_LOCAL)
		return local_rows(query, NUM_COLUMNS);
	answer = remote_query(state->control, "read rows of the other node", query,
						  WALRCV_OK_TUPLES, NUM_COLUMNS);
	if (answer.problem != NULL)
		ereport(ERROR,
				(errcode(answer.sqlstate != 0 ? answer.sqlstate : ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not read rows of node \"%s\": %s",
						state->comparison.node, answer.problem)));
	return answer.rows;
}

static char **
find_row(List *rows, const StoredCandidate *stored)
{
	const char *identity = stored->key ? stored->key : stored->row_hash;

	foreach_ptr(RemoteValue, row, rows)
		if (strcmp(row[COLUMN_IDENTITY], identity) == 0)
		return row;
	return NULL;
}

/* Notes what a look has seen on one side.  "context" lives as long as the candidate. */
static void
note_version(CandidateSide *side, char **row, bool first, MemoryContext context)
{
	const char *version = row ? row[COLUMN_VERSION] : NULL;
	bool		same = !first && (version == NULL) == (side->version == NULL) &&
		(version == NULL || strcmp(version, side->version) == 0);

	side->same = same ? side->same + 1 : 1;
	if (!same)
		side->version = version ? MemoryContextStrdup(context, version) : NULL;
}

/* Has no change that is under way anything to do with it? */
static bool
is_difference(const Candidate *candidate)
{
	bool		same[2];

	if (candidate->looks < LOOKS)
		return false;
	for (int side = 0; side < 2; side++)
		same[side] = candidate->sides[side].same >= LOOKS;
	if (candidate->stored->key == NULL)
		return same[SIDE_PUBLISHER] && same[SIDE_LOCAL];
	for (int side = 0; side < 2; side++)
		if (same[side] && candidate->sides[side].version != NULL)
			return true;
	return false;
}

static int64
count_rows(char **row)
{
	return row ? pg_strtoint64(row[COLUMN_COUNT]) : 0;
}

static void
put_difference(CompareState *state, const Candidate *candidate, char **publisher, char **local)
{
	Difference	difference = {.relid = candidate->stored->relid,.key = candidate->stored->key,
	.row_count = 1,.publisher_lsn = candidate->stored->publisher_lsn};

	if (difference.key == NULL)
	{
		int64		more = count_rows(publisher) - count_rows(local);

		difference.row_count = more < 0 ? -more : more;
		if (more > 0)
			local = NULL;
		else
			publisher = NULL;
	}
	difference.kind = local == NULL ? "missing here" :
		publisher == NULL ? "missing there" : "different";
	if (publisher != NULL)
		difference.publisher_row = publisher[COLUMN_ROW];
	if (local != NULL)
	{
		difference.local_row = local[COLUMN_ROW];
		if (difference.key != NULL)
			difference_find_writer(local[COLUMN_VERSION], &difference);
	}
	comparison_put_difference(state->comparison.id, &difference);
}

/* Decides on a candidate, if that is possible now. */
static void
judge(CompareState *state, CompareTable *table, Candidate *candidate, char **publisher, char **local)
{
	bool		equal = (publisher == NULL) == (local == NULL) &&
		(publisher == NULL || strcmp(publisher[COLUMN_CONTENT], local[COLUMN_CONTENT]) == 0);
	bool		first = candidate->looks == 0;

	note_version(&candidate->sides[SIDE_PUBLISHER], publisher, first, state->memory);
	note_version(&candidate->sides[SIDE_LOCAL], local, first, state->memory);
	candidate->looks++;
	if (!equal && !is_difference(candidate))
		return;
	candidate->decided = true;
	comparison_forget_candidate(state->comparison.id, candidate->stored->number);
	if (equal)
		return;
	if (table->result.differences >= state->comparison.max_differences)
		table->limited = true;
	else
	{
		table->result.differences++;
		put_difference(state, candidate, publisher, local);
	}
}

static void
look_at_batch(CompareState *state, CompareTable *table, const RowHash *hash, List *candidates)
{
	List	   *rows[2];

	for (int side = 0; side < 2; side++)
		rows[side] = run_query(state, make_query(hash, side, candidates), side);
	foreach_ptr(Candidate, candidate, candidates)
		judge(state, table, candidate, find_row(rows[SIDE_PUBLISHER], candidate->stored),
			  find_row(rows[SIDE_LOCAL], candidate->stored));
}

/* Does the table still have what identifies this candidate? */
static bool
fits(const PublishedTable *published, const Candidate *candidate)
{
	if (published->key == NIL)
		return candidate->stored->row_hash != NULL;
	return candidate->stored->key != NULL && get_key(published, candidate->stored->key) != NULL;
}

static void
look_at_table(CompareState *state, CandidateTable *candidates, PublishedTables *published)
{
	CompareTable *table = candidates->table;
	RowHash		hash = {.convert = published->convert};
	List	   *batch = NIL;
	char	   *signature;

	foreach_ptr(PublishedTable, item, published->tables)
		if (item->relid == table->result.relid)
		hash.table = item;
	if (hash.table == NULL || hash.table->status != PUBLISHED_TABLE_COMPARABLE)
	{
		compare_table_skip(table, "changed", hash.table ? hash.table->reason : "The table was dropped.");
		return;
	}
	signature = compare_table_signature(hash.table, hash.convert);
	if (candidates->signature != NULL && strcmp(candidates->signature, signature) != 0)
	{
		compare_table_skip(table, "changed", "The definition of the table was changed during the comparison.");
		return;
	}
	if (candidates->signature == NULL)
		candidates->signature = MemoryContextStrdup(state->memory, signature);
	foreach_ptr(Candidate, candidate, candidates->candidates)
	{
		if (!candidate->decided && fits(hash.table, candidate))
			batch = lappend(batch, candidate);
		if (list_length(batch) < BATCH && candidate != llast(candidates->candidates))
			continue;
		if (batch != NIL)
			look_at_batch(state, table, &hash, batch);
		batch = NIL;
	}
}

/* The same, in a subtransaction.  An error with one table does not end the comparison. */
static void
try_look_at_table(CompareState *state, CandidateTable *candidates, PublishedTables *published)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int64		differences = candidates->table->result.differences;
	List	   *open = NIL;

	foreach_ptr(Candidate, candidate, candidates->candidates)
		if (!candidate->decided)
		open = lappend(open, candidate);
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		MemoryContextSwitchTo(context);
		look_at_table(state, candidates, published);
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
		candidates->table->result.differences = differences;
		foreach_ptr(Candidate, candidate, open)
			candidate->decided = false;
		compare_table_skip(candidates->table, "failed", error->message);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
}

void
candidates_look(CompareState *state, List *tables)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "weft candidates",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	OwnerContext owner;
	List	   *relids = NIL;
	PublishedTables *published;

	state->subscription = publisher_subscription_by_oid(state->comparison.subid);
	foreach_ptr(CandidateTable, table, tables)
		relids = lappend_oid(relids, table->table->result.relid);
	PushActiveSnapshot(GetTransactionSnapshot());
	owner_context_enter(&owner, state->comparison.owner);
	published = published_tables_get(state->subscription, state->control, relids);
	foreach_ptr(CandidateTable, table, tables)
		if (candidates_left(table) > 0 && strcmp(table->table->result.status, "done") == 0)
		try_look_at_table(state, table, published);
	owner_context_leave(&owner);
	PopActiveSnapshot();
	state->subscription = NULL;
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}
