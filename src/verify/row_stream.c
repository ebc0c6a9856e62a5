/*
 * row_stream.c
 *	  The rows of a query on one side, a few at a time.
 *
 * Both sides use cursors, so that the memory here does not depend on the size of the result.
 * A connection has one stream at a time.
 */
#include "postgres.h"

#include "executor/spi.h"
#include "miscadmin.h"
#include "remote_query.h"
#include "utils/memutils.h"
#include "verify/row_stream.h"

#define CURSOR "weft_row_stream"

/* Runs something on the publisher.  An error there becomes the same error here. */
static RemoteAnswer
ask(RowStream *stream, const char *query, WalRcvExecStatus expected, int columns)
{
	RemoteAnswer answer = remote_query(stream->conn, NULL, query, expected, columns);

	if (answer.problem != NULL)
		ereport(ERROR,
				(errcode(answer.sqlstate ? answer.sqlstate : ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not read a table of the publisher: %s", answer.problem)));
	return answer;
}

/*
 * Begins to read.  The publisher's connection must be in a transaction; here, there must be an
 * active snapshot, and an SPI connection, which remains in use until the stream is closed.
 */
void
row_stream_open(RowStream *stream, CompareSide side, WalReceiverConn *conn, const char *query,
				int columns, int batch)
{
	memset(stream, 0, sizeof(RowStream));
	stream->side = side;
	stream->conn = conn;
	stream->columns = columns;
	stream->batch = batch;
	stream->context = AllocSetContextCreate(CurrentMemoryContext, "weft row stream",
											ALLOCSET_DEFAULT_SIZES);
	if (side == SIDE_PUBLISHER)
		(void) ask(stream, psprintf("DECLARE " CURSOR " NO SCROLL CURSOR FOR %s", query),
				   WALRCV_OK_COMMAND, 0);
	else
	{
		MemoryContext old = CurrentMemoryContext;

		stream->portal = SPI_cursor_open_with_args(NULL, query, 0, NULL, NULL, NULL, true,
												   CURSOR_OPT_NO_SCROLL);
		MemoryContextSwitchTo(old);
	}
}

static List *
fetch_locally(RowStream *stream)
{
	List	   *rows = NIL;

	SPI_cursor_fetch(stream->portal, true, stream->batch);
	MemoryContextSwitchTo(stream->context);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		char	  **values = palloc(stream->columns * sizeof(char *));

		for (int column = 0; column < stream->columns; column++)
			values[column] = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, column + 1);
		rows = lappend(rows, values);
	}
	SPI_freetuptable(SPI_tuptable);
	return rows;
}

static void
fetch(RowStream *stream)
{
	MemoryContext old = CurrentMemoryContext;

	CHECK_FOR_INTERRUPTS();
	MemoryContextReset(stream->context);
	MemoryContextSwitchTo(stream->context);
	if (stream->side == SIDE_PUBLISHER)
		stream->rows = ask(stream, psprintf("FETCH %d FROM " CURSOR, stream->batch),
						   WALRCV_OK_TUPLES, stream->columns).rows;
	else
		stream->rows = fetch_locally(stream);
	MemoryContextSwitchTo(old);
	stream->next = 0;
	stream->at_end = stream->rows == NIL;
}

/* Returns the next row, which remains valid until the next call, or NULL after the last one. */
char	  **
row_stream_next(RowStream *stream)
{
	if (!stream->at_end && stream->next >= list_length(stream->rows))
		fetch(stream);
	return stream->at_end ? NULL : list_nth(stream->rows, stream->next++);
}

void
row_stream_close(RowStream *stream)
{
	if (stream->side == SIDE_PUBLISHER)
		(void) ask(stream, "CLOSE " CURSOR, WALRCV_OK_COMMAND, 0);
	else
		SPI_cursor_close(stream->portal);
	MemoryContextDelete(stream->context);
}
