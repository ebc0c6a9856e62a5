/*
 * remote_query.c
 *	  Queries and commands on other servers.
 *
 * Everything that Weft asks of a publisher, or of another member of a group, goes through
 * remote_query().  All columns are of type text.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "mb/pg_wchar.h"
#include "remote_query.h"
#include "utils/builtins.h"

/*
 * Returns the rows of a result.  The other server may send text that is not valid in
 * this database's encoding, and only Weft checks it.
 */
static List *
read_rows(WalRcvExecResult *result, int columns)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(result->tupledesc, &TTSOpsMinimalTuple);
	List	   *rows = NIL;

	while (tuplestore_gettupleslot(result->tuplestore, true, false, slot))
	{
		RemoteValue *values = palloc0(columns * sizeof(RemoteValue));

		for (int i = 0; i < columns; i++)
		{
			bool		isnull;
			Datum		value = slot_getattr(slot, i + 1, &isnull);

			if (isnull)
				continue;
			values[i] = TextDatumGetCString(value);
			(void) pg_verifymbstr(values[i], strlen(values[i]), false);
		}
		rows = lappend(rows, values);
	}
	ExecDropSingleTupleTableSlot(slot);
	return rows;
}

/*
 * Sends a query or command, and waits for the answer, which should have the status
 * "expected" and the given number of columns.
 *
 * If the answer is another one, this is an error, "could not PURPOSE: …"; but if
 * "purpose" is NULL, the caller gets the problem in the answer.  The purpose names the
 * subscription, node or table.
 */
RemoteAnswer
remote_query(WalReceiverConn *conn, const char *purpose, const char *query,
			 WalRcvExecStatus expected, int columns)
{
	Oid			types[REMOTE_MAX_COLUMNS];
	RemoteAnswer answer = {0};
	WalRcvExecResult *result;

	Assert(columns <= REMOTE_MAX_COLUMNS);
	for (int i = 0; i < columns; i++)
		types[i] = TEXTOID;
	result = walrcv_exec(conn, query, columns, types);
	answer.status = result->status;
	if (result->status != expected)
	{
		answer.problem = result->err ? pstrdup(result->err) : "unexpected answer";
		answer.sqlstate = result->sqlstate;
		if (purpose != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("could not %s: %s", purpose, answer.problem)));
	}
	else if (expected == WALRCV_OK_TUPLES)
		answer.rows = read_rows(result, columns);
	walrcv_clear_result(result);
	return answer;
}

/*
 * Runs a query that returns at least one row; returns the first.  If there is none, or
 * another problem, this is an error, or, if "purpose" is NULL, the result is NULL.
 */
RemoteValue *
remote_query_row(WalReceiverConn *conn, const char *purpose, const char *query, int columns)
{
	RemoteAnswer answer = remote_query(conn, purpose, query, WALRCV_OK_TUPLES, columns);

	if (answer.rows == NIL && purpose != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not %s: %s", purpose, "no row")));
	return answer.rows == NIL ? NULL : linitial(answer.rows);
}

/* Runs a command that returns nothing, or fails. */
void
remote_command(WalReceiverConn *conn, const char *purpose, const char *command)
{
	(void) remote_query(conn, purpose, command, WALRCV_OK_COMMAND, 0);
}
