/*
 * comparison.c
 *	  What is stored of a comparison: the tables weft.comparison, weft.comparison_table and
 *	  weft.difference.
 *
 * Only the session that runs the comparison writes its rows (compare_progress.c excludes
 * others).  Whoever may delete a comparison may do so while it runs; the comparison then ends
 * with an error.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/pg_lsn.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "verify/comparison.h"

#define MAX_ARGUMENTS 15

/* The arguments of a statement, in the order of its parameters. */
typedef struct Arguments
{
	int			count;
	Oid			types[MAX_ARGUMENTS];
	Datum		values[MAX_ARGUMENTS];
	char		nulls[MAX_ARGUMENTS];
} Arguments;

static void
add(Arguments *arguments, Oid type, Datum value, bool is_null)
{
	Assert(arguments->count < MAX_ARGUMENTS);
	arguments->types[arguments->count] = type;
	arguments->values[arguments->count] = value;
	arguments->nulls[arguments->count] = is_null ? 'n' : ' ';
	arguments->count++;
}

static void
add_bigint(Arguments *arguments, int64 value)
{
	add(arguments, INT8OID, Int64GetDatum(value), false);
}

static void
add_oid(Arguments *arguments, Oid value)
{
	add(arguments, OIDOID, ObjectIdGetDatum(value), false);
}

static void
add_text(Arguments *arguments, const char *value)
{
	add(arguments, TEXTOID, value ? CStringGetTextDatum(value) : (Datum) 0, value == NULL);
}

static void
add_lsn(Arguments *arguments, XLogRecPtr value)
{
	add(arguments, PG_LSNOID, LSNGetDatum(value), XLogRecPtrIsInvalid(value));
}

static void
add_time(Arguments *arguments, TimestampTz value)
{
	add(arguments, TIMESTAMPTZOID, TimestampTzGetDatum(value), value == 0);
}

/* The owner of weft.comparison. */
static Oid
owner_of_results(void)
{
	Oid			relid = get_relname_relid("comparison", get_namespace_oid("weft", false));
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			result;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table \"%s\" does not exist", "weft.comparison"),
				 errhint("Run ALTER EXTENSION weft UPDATE.")));
	result = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Runs a statement as the owner of the tables.  SPI would leave its own memory context behind.  The session's own settings must not keep it
 * from writing: session_replication_role would make the tables ignore it.
 */
static void
run(const char *statement, Arguments *arguments, int expected)
{
	MemoryContext old = CurrentMemoryContext;
	Oid			user;
	int			context;
	int			level = NewGUCNestLevel();
	int			result;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(owner_of_results(), context | SECURITY_LOCAL_USERID_CHANGE);
	RestrictSearchPath();
	(void) set_config_option("session_replication_role", "origin", PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	result = SPI_execute_with_args(statement, arguments->count, arguments->types,
								   arguments->values, arguments->nulls, false, 0);
	if (result != expected)
		elog(ERROR, "could not store results of a comparison: %s", SPI_result_code_string(result));
	AtEOXact_GUC(false, level);
	SetUserIdAndSecContext(user, context);
	MemoryContextSwitchTo(old);
}

/* The same for a statement that must find its row. */
static void
run_on_row(const char *statement, Arguments *arguments, int expected, int64 id)
{
	run(statement, arguments, expected);
	if (SPI_processed == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("comparison %lld does not exist", (long long) id)));
}

static Datum
get_value(int column, bool *is_null)
{
	return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, column, is_null);
}

static Datum
oid_array(List *oids)
{
	Datum	   *values = palloc(Max(list_length(oids), 1) * sizeof(Datum));

	foreach_oid(oid, oids)
		values[foreach_current_index(oid)] = ObjectIdGetDatum(oid);
	return PointerGetDatum(construct_array(values, list_length(oids), REGCLASSOID,
										   sizeof(Oid), true, TYPALIGN_INT));
}

/* Stores a new comparison, and sets its id. */
void
comparison_register(Comparison *comparison)
{
	Arguments	arguments = {0};
	bool		is_null;

	add_oid(&arguments, comparison->subid);
	add(&arguments, NAMEOID, CStringGetDatum(comparison->subname), false);
	add_oid(&arguments, comparison->owner);
	add(&arguments, REGCLASSARRAYOID, oid_array(comparison->requested), comparison->requested == NIL);
	add(&arguments, INT4OID, Int32GetDatum(comparison->jobs), false);
	add(&arguments, INT8OID, Int64GetDatum(comparison->max_rows_per_second),
		comparison->max_rows_per_second == 0);
	add(&arguments, INT4OID, Int32GetDatum(comparison->max_differences), false);
	add_text(&arguments, comparison->node);
	run("INSERT INTO weft.comparison"
		" (subid, subname, owner, requested_tables, jobs, max_rows_per_second, max_differences, node)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8::name) RETURNING comparison",
		&arguments, SPI_OK_INSERT_RETURNING);
	if (SPI_processed != 1)
		elog(ERROR, "comparison was not stored");
	comparison->id = DatumGetInt64(get_value(1, &is_null));
}

/*
 * Reads a comparison that is to be continued, and marks it as running.  What the caller has set
 * of jobs and limits remains.
 */
void
comparison_load(int64 id, Comparison *comparison)
{
	Arguments	arguments = {0};
	Datum		requested;
	bool		is_null;
	bool		all;

	add_bigint(&arguments, id);
	run_on_row("UPDATE weft.comparison SET status = 'running', ended_at = NULL WHERE comparison = $1"
			   " RETURNING subid, owner, requested_tables, node IS NULL", &arguments,
			   SPI_OK_UPDATE_RETURNING, id);
	if (!DatumGetBool(get_value(4, &is_null)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("comparison %lld is one of two nodes, and cannot be continued", (long long) id),
				 errhint("Call weft.compare_node() again.")));
	comparison->id = id;
	comparison->subid = DatumGetObjectId(get_value(1, &is_null));
	comparison->owner = DatumGetObjectId(get_value(2, &is_null));
	requested = get_value(3, &all);
	comparison->requested = NIL;
	if (!all)
	{
		ArrayType  *array = DatumGetArrayTypeP(requested);
		Datum	   *values;
		int			count;

		deconstruct_array(array, REGCLASSOID, sizeof(Oid), true, TYPALIGN_INT, &values, NULL, &count);
		for (int i = 0; i < count; i++)
			comparison->requested = lappend_oid(comparison->requested, DatumGetObjectId(values[i]));
	}
}

/* Stores what is known of a table. */
void
comparison_put_table(int64 id, const TableResult *result)
{
	Arguments	arguments = {0};

	add_bigint(&arguments, id);
	add_text(&arguments, result->name);
	add(&arguments, OIDOID, ObjectIdGetDatum(result->relid), !OidIsValid(result->relid));
	add_text(&arguments, result->status);
	add_text(&arguments, result->reason);
	add_bigint(&arguments, result->publisher_rows);
	add_bigint(&arguments, result->local_rows);
	add_bigint(&arguments, result->differences);
	add(&arguments, BOOLOID, BoolGetDatum(result->complete), false);
	add(&arguments, INT4OID, Int32GetDatum(result->cuts), false);
	add_lsn(&arguments, result->first_lsn);
	add_lsn(&arguments, result->last_lsn);
	add_time(&arguments, result->started_at);
	add_time(&arguments, result->ended_at);
	add_bigint(&arguments, result->candidates);
	run("INSERT INTO weft.comparison_table (comparison, table_name, relation, status,"
		" reason, publisher_rows, local_rows, differences, complete, cuts, first_lsn, last_lsn,"
		" started_at, ended_at, candidates)"
		" VALUES ($1, $2, $3::regclass, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)"
		" ON CONFLICT (comparison, table_name) DO UPDATE SET relation = excluded.relation,"
		" status = excluded.status, reason = excluded.reason, publisher_rows = excluded.publisher_rows,"
		" local_rows = excluded.local_rows, differences = excluded.differences,"
		" complete = excluded.complete, cuts = excluded.cuts, first_lsn = excluded.first_lsn,"
		" last_lsn = excluded.last_lsn, started_at = excluded.started_at, ended_at = excluded.ended_at,"
		" candidates = excluded.candidates",
		&arguments, SPI_OK_INSERT);
}

/* Returns the names of a comparison's tables that are done, in the caller's memory context. */
List *
comparison_done_tables(int64 id)
{
	Arguments	arguments = {0};
	List	   *result = NIL;

	add_bigint(&arguments, id);
	run("SELECT table_name FROM weft.comparison_table WHERE comparison = $1 AND status = 'done'",
		&arguments, SPI_OK_SELECT);
	for (uint64 i = 0; i < SPI_processed; i++)
		result = lappend(result, SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1));
	return result;
}

/*
 * Prepares a comparison that is continued: removes what is known of tables that are not done.
 */
void
comparison_reset(int64 id)
{
	Arguments	arguments = {0};

	add_bigint(&arguments, id);
	run("DELETE FROM weft.difference d WHERE comparison = $1 AND NOT EXISTS"
		" (SELECT FROM weft.comparison_table t WHERE t.comparison = $1"
		" AND t.relation = d.relation AND t.status = 'done')", &arguments, SPI_OK_DELETE);
	run("DELETE FROM weft.comparison_table WHERE comparison = $1 AND status <> 'done'",
		&arguments, SPI_OK_DELETE);
}

/* Removes the differences of a table that is compared from its beginning again. */
void
comparison_forget_differences(int64 id, Oid relid)
{
	Arguments	arguments = {0};

	add_bigint(&arguments, id);
	add_oid(&arguments, relid);
	run("DELETE FROM weft.difference WHERE comparison = $1 AND relation = $2::regclass",
		&arguments, SPI_OK_DELETE);
	run("DELETE FROM weft.comparison_candidate WHERE comparison = $1 AND relation = $2::regclass",
		&arguments, SPI_OK_DELETE);
}

/* Stores a difference. */
void
comparison_put_difference(int64 id, const Difference *difference)
{
	Arguments	arguments = {0};

	add_bigint(&arguments, id);
	add_oid(&arguments, difference->relid);
	add_text(&arguments, difference->key);
	add_text(&arguments, difference->kind);
	add_bigint(&arguments, difference->row_count);
	add_text(&arguments, difference->publisher_row);
	add_text(&arguments, difference->local_row);
	add_text(&arguments, difference->local_origin);
	add_time(&arguments, difference->local_commit_time);
	add_lsn(&arguments, difference->publisher_lsn);
	run("INSERT INTO weft.difference (comparison, difference, relation, key, kind, row_count, columns,"
		" publisher_row, local_row, local_origin, local_commit_time, publisher_lsn)"
		" SELECT $1, (SELECT coalesce(max(d.difference), 0) + 1 FROM weft.difference d"
		" WHERE d.comparison = $1), $2::regclass, $3::jsonb, $4, $5,"
		" CASE WHEN $4 = 'different' THEN ARRAY(SELECT p.key FROM jsonb_each_text($6::jsonb) p"
		" WHERE p.value IS DISTINCT FROM ($7::jsonb ->> p.key) ORDER BY p.key) END,"
		" $6::jsonb, $7::jsonb, $8, $9, $10",
		&arguments, SPI_OK_INSERT);
}

/* Stores a row that may differ. */
void
comparison_put_candidate(int64 id, const Difference *candidate)
{
	Arguments	arguments = {0};

	add_bigint(&arguments, id);
	add_oid(&arguments, candidate->relid);
	add_text(&arguments, candidate->key);
	add_bigint(&arguments, candidate->row_hash);
	add_text(&arguments, candidate->kind);
	add_bigint(&arguments, candidate->row_count);
	add_text(&arguments, candidate->publisher_row);
	add_text(&arguments, candidate->local_row);
	add_lsn(&arguments, candidate->publisher_lsn);
	run("INSERT INTO weft.comparison_candidate (comparison, candidate, relation, key, row_hash, kind,"
		" row_count, publisher_row, local_row, publisher_lsn)"
		" SELECT $1, (SELECT coalesce(max(c.candidate), 0) + 1 FROM weft.comparison_candidate c"
		" WHERE c.comparison = $1), $2::regclass, $3::jsonb, CASE WHEN $3 IS NULL THEN $4 END,"
		" $5, $6, $7::jsonb, $8::jsonb, $9",
		&arguments, SPI_OK_INSERT);
}

/* Returns a list of StoredCandidate, by table, in the caller's memory context. */
List *
comparison_candidates(int64 id)
{
	Arguments	arguments = {0};
	List	   *result = NIL;

	add_bigint(&arguments, id);
	run("SELECT candidate, relation::oid, key::text, row_hash::text, publisher_lsn"
		" FROM weft.comparison_candidate WHERE comparison = $1 ORDER BY relation::oid, candidate",
		&arguments, SPI_OK_SELECT);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		StoredCandidate *candidate = palloc0(sizeof(StoredCandidate));
		HeapTuple	tuple = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		is_null;

		candidate->number = DatumGetInt64(SPI_getbinval(tuple, desc, 1, &is_null));
		candidate->relid = DatumGetObjectId(SPI_getbinval(tuple, desc, 2, &is_null));
		candidate->key = SPI_getvalue(tuple, desc, 3);
		candidate->row_hash = SPI_getvalue(tuple, desc, 4);
		candidate->publisher_lsn = DatumGetLSN(SPI_getbinval(tuple, desc, 5, &is_null));
		result = lappend(result, candidate);
	}
	return result;
}

void
comparison_forget_candidate(int64 id, int64 number)
{
	Arguments	arguments = {0};

	add_bigint(&arguments, id);
	add_bigint(&arguments, number);
	run("DELETE FROM weft.comparison_candidate WHERE comparison = $1 AND candidate = $2",
		&arguments, SPI_OK_DELETE);
}

/* The candidates that are left have been looked at so often. */
void
comparison_count_looks(int64 id, int looks)
{
	Arguments	arguments = {0};

	add_bigint(&arguments, id);
	add(&arguments, INT4OID, Int32GetDatum(looks), false);
	run("UPDATE weft.comparison_candidate SET looks = $2 WHERE comparison = $1",
		&arguments, SPI_OK_UPDATE);
}

/* Counts a cut.  "lsn" is the publisher's position, "duration" how long it took, in ms. */
void
comparison_put_cut(int64 id, XLogRecPtr lsn, double duration)
{
	Arguments	arguments = {0};

	add_bigint(&arguments, id);
	add_lsn(&arguments, lsn);
	add(&arguments, FLOAT8OID, Float8GetDatum(duration), false);
	run_on_row("UPDATE weft.comparison SET cuts = cuts + 1, publisher_lsn = $2,"
			   " longest_cut = greatest(longest_cut, $3) WHERE comparison = $1",
			   &arguments, SPI_OK_UPDATE, id);
}

void
comparison_finish(int64 id)
{
	Arguments	arguments = {0};

	add_bigint(&arguments, id);
	run_on_row("UPDATE weft.comparison SET status = 'finished', ended_at = clock_timestamp()"
			   " WHERE comparison = $1", &arguments, SPI_OK_UPDATE, id);
}
