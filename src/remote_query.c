/*
 * remote_query.c
 *	  Queries, commands and data of COPY on other servers.
 *
 * Everything that Weft asks of a publisher, or of another member of a group, goes through
 * remote_query(), except what arrives as a COPY.  All columns are of type text.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "remote_query.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"

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

/* Returns a value as an LSN; NULL is InvalidXLogRecPtr. */
XLogRecPtr
remote_lsn(const char *value)
{
	if (value == NULL)
		return InvalidXLogRecPtr;
	return DatumGetLSN(DirectFunctionCall1(pg_lsn_in, CStringGetDatum(value)));
}

/* Runs a command that returns nothing, or fails. */
void
remote_command(WalReceiverConn *conn, const char *purpose, const char *command)
{
	(void) remote_query(conn, purpose, command, WALRCV_OK_COMMAND, 0);
}

/*
 * Returns the length of the next message of a COPY TO STDOUT that the other server has begun,
 * and sets *message, which is valid until the next call; -1 at its end.  Waits for a message, for
 * "timeout" milliseconds (-1: for ever) or until the latch is set; returns zero if there is
 * none then.
 */
int
remote_copy_receive(WalReceiverConn *conn, char **message, long timeout, WeftWaitEvent event)
{
	pgsocket	socket = PGINVALID_SOCKET;
	int			length = walrcv_receive(conn, message, &socket);

	CHECK_FOR_INTERRUPTS();
	if (length != 0)
		return length;
	(void) WaitLatchOrSocket(MyLatch,
							 WL_LATCH_SET | WL_SOCKET_READABLE | WL_EXIT_ON_PM_DEATH |
							 (timeout >= 0 ? WL_TIMEOUT : 0),
							 socket, timeout, wait_event_id(event));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	return 0;
}
