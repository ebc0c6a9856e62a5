/*
 * node_functions.c
 *	  What the SQL functions of node groups need of C.
 *
 * They query other members, create a subscription without writing its connection string
 * into a command, and see what other sessions commit.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "group/remote.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "shmem.h"
#include "tcop/dest.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/snapmgr.h"

PG_FUNCTION_INFO_V1(weft_node_query);
PG_FUNCTION_INFO_V1(weft_node_send);
PG_FUNCTION_INFO_V1(weft_node_query_all);
PG_FUNCTION_INFO_V1(weft_create_node_subscription);
PG_FUNCTION_INFO_V1(weft_join_progress);

/*
 * weft.node_query(dsn text, node text, query text) returns text
 *
 * Runs a query on another member, in a transaction of its own, and returns its one value.
 * If "is_command" is set, runs a command that returns nothing.
 */
Datum
weft_node_query(PG_FUNCTION_ARGS)
{
	char	   *dsn = text_to_cstring(PG_GETARG_TEXT_PP(0));
	char	   *node = text_to_cstring(PG_GETARG_TEXT_PP(1));
	char	   *query = text_to_cstring(PG_GETARG_TEXT_PP(2));
	bool		is_command = PG_GETARG_BOOL(3);
	Remote	   *remote;
	char	   *value = NULL;

	shmem_require();
	remote = remote_connect(dsn, node, false);
	PG_TRY();
	{
		if (is_command)
			remote_run(remote, query);
		else
			value = remote_value(remote, query);
	}
	PG_FINALLY();
	{
		remote_close(remote);
	}
	PG_END_TRY();
	if (value == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(value));
}

/*
 * weft.node_send(dsn text, node text, copy text, line text, query text)
 *
 * On another member, in one transaction: runs a COPY FROM STDIN of one line, and then a
 * query.  The line may contain secrets, which must not be seen in a command.
 */
Datum
weft_node_send(PG_FUNCTION_ARGS)
{
	char	   *dsn = text_to_cstring(PG_GETARG_TEXT_PP(0));
	char	   *node = text_to_cstring(PG_GETARG_TEXT_PP(1));
	char	   *copy = text_to_cstring(PG_GETARG_TEXT_PP(2));
	char	   *line = text_to_cstring(PG_GETARG_TEXT_PP(3));
	char	   *query = text_to_cstring(PG_GETARG_TEXT_PP(4));
	Remote	   *remote;

	shmem_require();
	remote = remote_connect(dsn, node, false);
	PG_TRY();
	{
		remote_run(remote, "BEGIN");
		remote_copy_in(remote, copy, line);
		(void) remote_value(remote, query);
		remote_run(remote, "COMMIT");
	}
	PG_FINALLY();
	{
		remote_close(remote);
	}
	PG_END_TRY();
	PG_RETURN_VOID();
}

static char **
strings_of_array(ArrayType *array, int *count)
{
	Datum	   *values;
	bool	   *nulls;
	char	  **result;

	deconstruct_array_builtin(array, TEXTOID, &values, &nulls, count);
	result = palloc(*count * sizeof(char *));
	for (int i = 0; i < *count; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("array must not contain nulls")));
		result[i] = TextDatumGetCString(values[i]);
	}
	return result;
}

/*
 * weft.node_query_all(dsns text[], nodes text[], query text)
 *
 * Runs a query on all these members, or, if it fails on one of them, on none: no member
 * commits before the query has succeeded on all.
 */
Datum
weft_node_query_all(PG_FUNCTION_ARGS)
{
	int			count;
	int			name_count;
	char	  **dsns = strings_of_array(PG_GETARG_ARRAYTYPE_P(0), &count);
	char	  **nodes = strings_of_array(PG_GETARG_ARRAYTYPE_P(1), &name_count);
	char	   *query = text_to_cstring(PG_GETARG_TEXT_PP(2));
	Remote	  **remotes = palloc0(count * sizeof(Remote *));

	shmem_require();
	if (count != name_count)
		elog(ERROR, "arrays of different length");
	PG_TRY();
	{
		for (int i = 0; i < count; i++)
			remotes[i] = remote_connect(dsns[i], nodes[i], false);
		for (int i = 0; i < count; i++)
		{
			remote_run(remotes[i], "BEGIN");
			(void) remote_value(remotes[i], query);
		}
		for (int i = 0; i < count; i++)
			remote_run(remotes[i], "COMMIT");
	}
	PG_FINALLY();
	{
		for (int i = 0; i < count; i++)
			if (remotes[i] != NULL)
				remote_close(remotes[i]);
	}
	PG_END_TRY();
	PG_RETURN_VOID();
}

static DefElem *
bool_option(char *name, bool value)
{
	return makeDefElem(name, (Node *) makeBoolean(value), -1);
}

static DefElem *
string_option(char *name, char *value)
{
	return makeDefElem(name, (Node *) makeString(value), -1);
}

static void
keep_warning_quiet(const char *setting)
{
	(void) set_config_option(setting, "error", PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

/*
 * weft.create_node_subscription(subscription name, dsn text, publication name,
 *								 num_writers integer)
 *
 * CREATE SUBSCRIPTION for a slot of the same name that exists already.  The
 * number of writers may be null.  The publisher is not asked for its tables, so the subscription
 * is disabled, and the server warns of that.  Version 0.1 of the extension has a fifth argument: whether
 * the subscription is enabled.  Then, the publisher is asked.
 *
 * Large transactions are not streamed, so that the writers, which detect conflicts, apply
 * them.
 */
Datum
weft_create_node_subscription(PG_FUNCTION_ARGS)
{
	CreateSubscriptionStmt *statement = makeNode(CreateSubscriptionStmt);
	PlannedStmt *planned = makeNode(PlannedStmt);
	char	   *name;
	int			nest_level;
	bool		connect = PG_NARGS() > 4;	/* version 0.1 of the extension */

	shmem_require();
	for (int i = 0; i < PG_NARGS(); i++)
		if (PG_ARGISNULL(i) && i != 3)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("argument must not be null")));
	name = pstrdup(NameStr(*PG_GETARG_NAME(0)));
	statement->subname = name;
	statement->conninfo = text_to_cstring(PG_GETARG_TEXT_PP(1));
	statement->publication = list_make1(makeString(pstrdup(NameStr(*PG_GETARG_NAME(2)))));
	statement->options = list_make5(string_option("slot_name", name),
									bool_option("create_slot", false),
									bool_option("copy_data", false),
									bool_option("connect", connect),
									string_option("origin", "none"));
	statement->options = lappend(statement->options,
								 bool_option("enabled", connect && PG_GETARG_BOOL(4)));
	statement->options = lappend(statement->options, string_option("streaming", "off"));
	statement->options = lappend(statement->options, bool_option("detect_conflicts", true));
	if (!PG_ARGISNULL(3))
		statement->options = lappend(statement->options,
									 makeDefElem("num_writers",
												 (Node *) makeInteger(PG_GETARG_INT32(3)), -1));

	planned->commandType = CMD_UTILITY;
	planned->utilityStmt = (Node *) statement;
	planned->stmt_location = -1;
	nest_level = NewGUCNestLevel();
	keep_warning_quiet("client_min_messages");
	keep_warning_quiet("log_min_messages");
	ProcessUtility(planned, "CREATE SUBSCRIPTION", false, PROCESS_UTILITY_QUERY,
				   NULL, NULL, None_Receiver, NULL);
	AtEOXact_GUC(false, nest_level);
	CommandCounterIncrement();
	PG_RETURN_VOID();
}

/*
 * weft.join_progress() returns jsonb
 *
 * Uses a new snapshot.  Otherwise a session that waits in a transaction that keeps its
 * snapshot would see the same forever.
 */
Datum
weft_join_progress(PG_FUNCTION_ARGS)
{
	const char *query = "SELECT pg_catalog.jsonb_build_object("
		"'entry', (SELECT pg_catalog.to_jsonb(j) FROM weft.join_entry j),"
		" 'group', (SELECT node_group_name FROM weft.node_group_entry))";
	MemoryContext context = CurrentMemoryContext;
	SPIPlanPtr	plan;
	MemoryContext old;
	Datum		value;
	Datum		result;
	bool		isnull;

	SPI_connect();
	plan = SPI_prepare(query, 0, NULL);
	if (plan == NULL ||
		SPI_execute_snapshot(plan, NULL, NULL, GetLatestSnapshot(), InvalidSnapshot,
							 true, false, 1) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not look how far the join is");
	value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	old = MemoryContextSwitchTo(context);
	result = PointerGetDatum(PG_DETOAST_DATUM_COPY(value));
	MemoryContextSwitchTo(old);
	SPI_finish();
	PG_RETURN_DATUM(result);
}
