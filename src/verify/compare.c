/*
 * compare.c
 *	  weft.compare_subscription(): compares a subscription's tables with the publisher's.
 *
 * The procedure registers the comparison in a transaction of its own.  Then each cut is one
 * transaction (compare_cut.c), which stores what it has found, until no table is left.  The
 * snapshots on both sides live as long as that transaction.
 *
 * If the session ends at any point, what earlier cuts have stored remains, and the comparison is
 * seen to be interrupted, because its entry in shared memory is gone
 * (compare_progress.c).  It can be continued: tables that are done are not compared again, all
 * others from their beginning.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "shmem.h"
#include "subscription_settings.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "verify/compare.h"
#include "verify/hash_probe.h"
#include "verify/owner_context.h"
#include "verify/publisher.h"

PG_FUNCTION_INFO_V1(weft_compare_subscription);

#define MAX_JOBS 64
#define MAX_MAX_DIFFERENCES 1000000

/* At most so many tables are named in messages. */
#define MAX_NAMED 100

/* Fails unless the procedure of that name may end the transaction. */
void
compare_require_own_transaction(FunctionCallInfo fcinfo, const char *procedure)
{
	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", procedure),
				 errdetail("It takes each snapshot in a transaction of its own."),
				 errhint("Run CALL by itself: not between BEGIN and COMMIT, nor in a function.")));
}

static int64
get_number(const char *name, int64 value, int64 maximum)
{
	if (value < 1 || value > maximum)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" must be between 1 and %lld", name, (long long) maximum)));
	return value;
}

static List *
get_tables(ArrayType *array)
{
	List	   *result = NIL;
	Datum	   *values;
	bool	   *nulls;
	int			count;

	deconstruct_array(array, REGCLASSOID, sizeof(Oid), true, TYPALIGN_INT, &values, &nulls, &count);
	for (int i = 0; i < count; i++)
		if (!nulls[i])
			result = list_append_unique_oid(result, DatumGetObjectId(values[i]));
	if (result == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" must not be empty", "tables"),
				 errhint("Omit it to compare all tables of the subscription.")));
	return result;
}

/*
 * Reads the arguments that comparisons have in common: the second to the fifth.  "first" is the name of
 * the first one, which must not be null, either.
 */
void
compare_get_arguments(FunctionCallInfo fcinfo, const char *first, Comparison *comparison)
{
	if (PG_ARGISNULL(0) || PG_ARGISNULL(2) || PG_ARGISNULL(4))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("\"%s\", \"jobs\" and \"max_differences\" must not be null", first)));
	if (!PG_ARGISNULL(1))
		comparison->requested = get_tables(PG_GETARG_ARRAYTYPE_P(1));
	comparison->jobs = get_number("jobs", PG_GETARG_INT32(2), MAX_JOBS);
	if (!PG_ARGISNULL(3))
		comparison->max_rows_per_second =
			get_number("max_rows_per_second", PG_GETARG_INT64(3), PG_INT64_MAX);
	comparison->max_differences =
		get_number("max_differences", PG_GETARG_INT32(4), MAX_MAX_DIFFERENCES);
	comparison->limit = comparison->max_differences;
}

/* The comparison to be continued, or zero. */
static int64
get_resumed(FunctionCallInfo fcinfo)
{
	if (!PG_ARGISNULL(5) && !PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"tables\" and \"resume\" cannot be used together"),
				 errdetail("A comparison is continued with the tables that it was started with.")));
	return PG_ARGISNULL(5) ? 0 : PG_GETARG_INT64(5);
}

/* Reads the comparison that is to be continued, and checks that it may be. */
static void
load(CompareState *state, int64 id)
{
	Comparison *comparison = &state->comparison;
	Oid			subid = comparison->subid;
	Oid			owner = comparison->owner;

	state->progress = compare_progress_claim(id);
	comparison_load(id, comparison);
	if (comparison->subid != subid)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("comparison %lld is not one of subscription \"%s\"",
						(long long) id, comparison->subname)));
	if (comparison->owner != owner)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the owner of subscription \"%s\" has changed since comparison %lld was started",
						comparison->subname, (long long) id),
				 errdetail("The former owner could read its results."),
				 errhint("Start another comparison.")));
}

/* Lists the tables; those that were done in an earlier run are left out. */
static void
list_tables(CompareState *state, PublishedTables *published, List *done)
{
	double		estimated = 0;

	foreach_ptr(PublishedTable, item, published->tables)
	{
		CompareTable *table;
		bool		is_done = false;

		foreach_ptr(char, name, done)
			is_done = is_done || strcmp(name, published_table_name(item)) == 0;
		if (is_done)
			continue;
		table = compare_table_create(item);
		state->tables = lappend(state->tables, table);
		if (compare_table_open(table))
			estimated += item->estimated_rows;
	}
	pg_atomic_write_u64(&state->progress->rows_estimated, (uint64) estimated);
}

/*
 * The first transaction: checks that both servers compute the same hashes, finds out what can be
 * compared, and stores the comparison with its tables.
 */
void
compare_start(CompareState *state, int64 resume)
{
	Comparison *comparison = &state->comparison;
	Subscription *subscription = state->subscription;
	OwnerContext context;
	PublishedTables *published;
	List	   *done = NIL;

	if (resume != 0)
	{
		load(state, resume);
		comparison_reset(resume);
		done = comparison_done_tables(resume);
	}
	state->control = publisher_connect(subscription);
	PushActiveSnapshot(GetTransactionSnapshot());
	owner_context_enter(&context, subscription->owner);
	published = published_tables_get(subscription, state->control, comparison->requested);
	hash_probe_check(subscription, state->control, published->convert);
	owner_context_leave(&context);
	if (resume == 0)
	{
		comparison_register(comparison);
		state->progress = compare_progress_claim(comparison->id);
	}
	list_tables(state, published, done);
	foreach_ptr(CompareTable, table, state->tables)
		comparison_put_table(comparison->id, &table->result);
	PopActiveSnapshot();
	SPI_commit();
}

/* Adds a line about a table that was not compared, or has differences. */
static void
describe(StringInfo text, const TableResult *result)
{
	if (strcmp(result->status, "done") != 0)
		appendStringInfo(text, "Table %s was not compared (%s): %s",
						 result->name, result->status, result->reason);
	else
		appendStringInfo(text, "Table %s: %s" INT64_FORMAT " differences in " INT64_FORMAT " rows.",
						 result->name, result->complete ? "" : "at least ",
						 result->differences, result->publisher_rows);
	if (result->candidates > 0)
		appendStringInfo(text, " " INT64_FORMAT " rows were changing each time.", result->candidates);
}

/* Tells the user what was compared, what was not, and what was found. */
void
compare_report(CompareState *state)
{
	int			done = 0;
	int			named = 0;
	int64		differences = 0;
	StringInfoData text;

	initStringInfo(&text);
	foreach_ptr(CompareTable, table, state->tables)
	{
		bool		is_done = strcmp(table->result.status, "done") == 0;

		done += is_done ? 1 : 0;
		differences += table->result.differences;
		if (is_done && table->result.complete && table->result.differences == 0)
			continue;
		if (++named > MAX_NAMED)
			continue;
		if (text.len > 0)
			appendStringInfoChar(&text, '\n');
		describe(&text, &table->result);
	}
	if (named > MAX_NAMED)
		appendStringInfo(&text, "\nMore are in weft.comparison_table.");
	ereport(NOTICE,
			(errmsg(state->comparison.node ?
					"comparison %lld with node \"%s\": %d of %d tables were compared, %lld differences were found" :
					"comparison %lld of subscription \"%s\": %d of %d tables were compared, %lld differences were found",
					(long long) state->comparison.id,
					state->comparison.node ? state->comparison.node : state->comparison.subname,
					done, list_length(state->tables), (long long) differences),
			 text.len > 0 ? errdetail_internal("%s", text.data) : 0,
			 differences > 0 ? errhint("The rows are in weft.difference.") : 0));
}

/*
 * Compares everything, and tells the user.  Needs a transaction and an SPI connection that may commit, with
 * "subscription", "memory", and what is wanted of the comparison; compare_clean_up() must follow,
 * after an error as well.  "resume" is the number of a comparison to be continued, or zero.
 */
void
compare_run(CompareState *state, int64 resume)
{
	if (subscription_settings_get(state->comparison.subid).detect_conflicts)
		ereport(WARNING,
				(errmsg("subscription \"%s\" detects conflicts, so rows may differ without being wrong",
						state->comparison.subname),
				 errdetail("Each side may have changes of this or other servers that the other side does not have yet."),
				 errhint("In a node group, call weft.compare_node().")));
	compare_start(state, resume);
	compare_cuts_run(state);
	PushActiveSnapshot(GetTransactionSnapshot());
	comparison_finish(state->comparison.id);
	PopActiveSnapshot();
	SPI_commit();
	compare_report(state);
}

/* Closes connections; call it after errors, too. */
void
compare_clean_up(CompareState *state)
{
	if (state->conn != NULL)
		walrcv_disconnect(state->conn);
	if (state->control != NULL)
		walrcv_disconnect(state->control);
	if (state->progress != NULL)
		compare_progress_release(state->progress);
}

/* The procedures' result. */
Datum
compare_make_result(FunctionCallInfo fcinfo, int64 id)
{
	TupleDesc	desc;
	Datum		value = Int64GetDatum(id);
	bool		is_null = false;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	desc = BlessTupleDesc(desc);
	return HeapTupleGetDatum(heap_form_tuple(desc, &value, &is_null));
}

/*
 * weft.compare_subscription(subscription name, tables regclass[], jobs int,
 * max_rows_per_second bigint, max_differences int, resume bigint, INOUT comparison bigint)
 *
 * sql/10-verify.sql describes the arguments.  Fails if the caller does not own the subscription,
 * if it is disabled, if the publisher cannot be reached, and if the two servers do
 * not compute the same hashes.  An error with one table does not end it.
 */
Datum
weft_compare_subscription(PG_FUNCTION_ARGS)
{
	CompareState *state = palloc0(sizeof(CompareState));
	int64		resume;

	shmem_require();
	compare_require_own_transaction(fcinfo, "weft.compare_subscription()");
	compare_get_arguments(fcinfo, "subscription", &state->comparison);
	resume = get_resumed(fcinfo);
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	state->memory = CurrentMemoryContext;
	state->subscription = publisher_subscription(NameStr(*PG_GETARG_NAME(0)));
	state->comparison.subid = state->subscription->oid;
	state->comparison.subname = state->subscription->name;
	state->comparison.owner = state->subscription->owner;
	PG_TRY();
	{
		compare_run(state, resume);
	}
	PG_FINALLY();
	{
		compare_clean_up(state);
	}
	PG_END_TRY();
	SPI_finish();
	return compare_make_result(fcinfo, state->comparison.id);
}
