/*
 * plan_query.c
 *	  Checks of a switch-over that consist of queries.
 *
 * What comes from the publisher is passed to the query here as parameters, and is never
 * part of its text.  Findings of queries there are the publisher's text altogether.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "remote_query.h"
#include "switch/plan_finding.h"
#include "switch/plan_query.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

/* What a query that reports returns. */
#define FINDING_COLUMNS 4

/* Parameters of a query here, before the columns of "there". */
#define FIRST_PARAMETERS 3

static const char there_tables[] =
", published AS ("
" SELECT DISTINCT c.oid AS relid, n.nspname, c.relname, c.relkind"
" FROM pg_publication_tables t JOIN publication USING (pubname)"
" JOIN pg_namespace n ON n.nspname = t.schemaname"
" JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename) ";

static const char here_tables[] =
"subscription AS ("
" SELECT subname AS name, pg_get_userbyid($2) AS caller, $3 AS reverse, s.* FROM"
" (SELECT oid, subname, subenabled, subtwophasestate, subskiplsn, subslotname, subowner,"
"  subpublications FROM pg_subscription) s WHERE s.oid = $1)"
", replicated AS ("
" SELECT c.oid AS relid, n.nspname, c.relname, c.relkind, r.srsubstate"
" FROM pg_subscription_rel r JOIN pg_class c ON c.oid = r.srrelid"
" JOIN pg_namespace n ON n.oid = c.relnamespace WHERE r.srsubid = $1 AND c.relkind <> 'S') ";

/* Returns a query for the publisher, with what precedes each of them. */
static char *
query_there(PlanRun *run, const char *query)
{
	Subscription *subscription = run->subscription;
	StringInfoData text;
	ListCell   *lc;
	const char *separator = "";

	initStringInfo(&text);
	appendStringInfo(&text, "WITH subscription(name, caller, reverse, slot) AS (SELECT %s, %s, %s, %s)"
					 ", publication(pubname) AS (VALUES ",
					 quote_literal_cstr(subscription->name),
					 quote_literal_cstr(GetUserNameFromId(run->caller, false)),
					 run->reverse ? "true" : "false",
					 subscription->slotname ? quote_literal_cstr(subscription->slotname) : "NULL");
	foreach(lc, subscription->publications)
	{
		appendStringInfo(&text, "%s(%s::name)", separator, quote_literal_cstr(strVal(lfirst(lc))));
		separator = ", ";
	}
	appendStringInfo(&text, ")%s%s", there_tables, query);
	return text.data;
}

static int
count_columns(const char *names)
{
	int			count = 1;

	for (; *names; names++)
		if (*names == ',')
			count++;
	return count;
}

/* Makes an array of one column of a result. */
static Datum
column_array(List *rows, int column)
{
	int			count = list_length(rows);
	Datum	   *values = palloc(Max(count, 1) * sizeof(Datum));
	bool	   *nulls = palloc(Max(count, 1) * sizeof(bool));
	int			lower = 1;

	for (int i = 0; i < count; i++)
	{
		RemoteValue value = ((RemoteValue *) list_nth(rows, i))[column];

		nulls[i] = value == NULL;
		values[i] = value ? CStringGetTextDatum(value) : (Datum) 0;
	}
	return PointerGetDatum(construct_md_array(values, nulls, 1, &count, &lower,
											  TEXTOID, -1, false, TYPALIGN_INT));
}

static void
add_row(PlanRun *run, const char *check, char **row)
{
	PlanSeverity severity = row[1] && strcmp(row[1], "error") == 0 ? PLAN_ERROR : PLAN_WARNING;

	run->findings = plan_finding_add(run->findings, check, severity, row[0], row[2], row[3]);
}

/* Replaces control characters, line ends among them. */
static char *
one_line(char *text)
{
	for (char *p = text; p && *p; p++)
		if ((unsigned char) *p < ' ' || *p == 0x7f)
			*p = ' ';
	return text;
}

/* Adds what a query there has found. */
static void
add_row_there(PlanRun *run, const PlanCheck *check, RemoteValue *row)
{
	char	   *finding[FINDING_COLUMNS];

	for (int i = 0; i < FINDING_COLUMNS; i++)
		finding[i] = row[i] ? one_line(pstrdup(row[i])) : NULL;
	if (check->remedy)
		finding[3] = pstrdup(check->remedy);
	else if (finding[3])
		finding[3] = psprintf(PLAN_FROM_PUBLISHER "%s", finding[3]);
	add_row(run, check->name, finding);
}

/* Runs the query here; "rows" are those that the publisher has returned. */
static void
run_here(PlanRun *run, const PlanCheck *check, List *rows)
{
	MemoryContext context = CurrentMemoryContext;
	StringInfoData text;
	Oid			types[FIRST_PARAMETERS + REMOTE_MAX_COLUMNS] = {OIDOID, OIDOID, BOOLOID};
	Datum		values[FIRST_PARAMETERS + REMOTE_MAX_COLUMNS];
	int			columns = check->columns ? count_columns(check->columns) : 0;

	values[0] = ObjectIdGetDatum(run->subscription->oid);
	values[1] = ObjectIdGetDatum(run->caller);
	values[2] = BoolGetDatum(run->reverse);
	initStringInfo(&text);
	appendStringInfo(&text, "WITH %s", here_tables);
	if (columns > 0)
		appendStringInfo(&text, ", there(%s) AS (SELECT * FROM unnest(", check->columns);
	for (int i = 0; i < columns; i++)
	{
		appendStringInfo(&text, "%s$%d", i > 0 ? ", " : "", FIRST_PARAMETERS + i + 1);
		types[FIRST_PARAMETERS + i] = TEXTARRAYOID;
		values[FIRST_PARAMETERS + i] = column_array(rows, i);
	}
	appendStringInfo(&text, "%s%s", columns > 0 ? ")) " : "", check->here);

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	PushActiveSnapshot(GetTransactionSnapshot());
	if (SPI_execute_with_args(text.data, FIRST_PARAMETERS + columns, types, values, NULL,
							  true, 0) != SPI_OK_SELECT ||
		SPI_tuptable->tupdesc->natts != FINDING_COLUMNS)
		elog(ERROR, "unexpected result of check \"%s\"", check->name);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		MemoryContext old = MemoryContextSwitchTo(context);
		char	   *row[FINDING_COLUMNS];

		for (int j = 0; j < FINDING_COLUMNS; j++)
		{
			char	   *value = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, j + 1);

			row[j] = value ? MemoryContextStrdup(context, value) : NULL;
		}
		add_row(run, check->name, row);
		MemoryContextSwitchTo(old);
	}
	PopActiveSnapshot();
	SPI_finish();
}

/* The same; an error becomes a finding, and does not keep the other checks from running. */
static void
try_here(PlanRun *run, const PlanCheck *check, List *rows)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	List	   *before = list_copy(run->findings);

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		run_here(run, check, rows);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		run->findings = plan_finding_add(before, check->name, PLAN_ERROR, NULL,
										 psprintf("the check failed here: %s", error->message), NULL);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
}

static void
run_check(PlanRun *run, const PlanCheck *check)
{
	int			before = list_length(run->findings);
	List	   *rows = NIL;

	if (check->there)
	{
		RemoteAnswer answer = remote_query(run->conn, NULL, query_there(run, check->there),
										   WALRCV_OK_TUPLES,
										   check->here ? count_columns(check->columns) : FINDING_COLUMNS);
		ListCell   *lc;

		if (answer.problem)
		{
			run->findings = plan_finding_add(run->findings, check->name, PLAN_ERROR, NULL,
											 psprintf("the check failed on the publisher: %s", answer.problem),
											 NULL);
			return;
		}
		rows = answer.rows;
		if (check->here == NULL)
			foreach(lc, rows)
				add_row_there(run, check, lfirst(lc));
	}
	if (check->here)
		try_here(run, check, rows);
	if (list_length(run->findings) == before)
		run->findings = plan_finding_add(run->findings, check->name, PLAN_OK, NULL, NULL, NULL);
}

/*
 * Runs checks, as the current user and with its search_path, which should be pg_catalog.  Each
 * adds at least one finding.
 */
void
plan_query_run(PlanRun *run, const PlanCheck *checks, int count)
{
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (run->reverse || !checks[i].for_reverse)
			run_check(run, &checks[i]);
	}
}
