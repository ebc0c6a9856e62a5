/*
 * publisher_rows.c
 *	  Rows of any size from the publisher, as text.
 *
 * The server's client library holds a whole result in memory.  Therefore rows are read
 * through a cursor, only as many at a time as fit, judging by those before.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "remote_query.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "verify/publisher_rows.h"

/* How many rows are read at first, when nothing is known of their size, and at most. */
#define FIRST_ROWS 1
#define MAX_ROWS 1000

/* How much is read at a time, as far as that can be known. */
#define BYTES_AT_A_TIME (8 * 1024 * 1024)

typedef struct Progress
{
	int			columns;
	PublisherRowsTake take;
	void	   *arg;
	uint64		rows;
	Size		bytes;
	bool		more;			/* are more rows wanted? */
} Progress;

/* Passes the rows of a result on. */
static uint64
take_rows(Progress *progress, WalRcvExecResult *result)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(result->tupledesc, &TTSOpsMinimalTuple);
	uint64		count = 0;

	while (tuplestore_gettupleslot(result->tuplestore, true, false, slot))
	{
		char	  **row = palloc0(Max(progress->columns, 1) * sizeof(char *));
		Size		size = 0;

		count++;
		for (int i = 0; progress->more && i < progress->columns; i++)
		{
			bool		isnull;
			Datum		value = slot_getattr(slot, i + 1, &isnull);

			if (isnull)
				continue;
			row[i] = TextDatumGetCString(value);
			(void) pg_verifymbstr(row[i], strlen(row[i]), false);
			size += strlen(row[i]) + 1;
		}
		progress->rows++;
		progress->bytes += size;
		progress->more = progress->more && progress->take(progress->arg, row, size);
		for (int i = 0; i < progress->columns; i++)
			if (row[i] != NULL)
				pfree(row[i]);
		pfree(row);
	}
	ExecDropSingleTupleTableSlot(slot);
	return count;
}

static int
rows_that_fit(const Progress *progress)
{
	if (progress->rows == 0)
		return FIRST_ROWS;
	return Max(Min(BYTES_AT_A_TIME / Max(progress->bytes / progress->rows, 1), MAX_ROWS), 1);
}

/*
 * Reads the next rows; returns false if there are no more.  An error that the publisher reports
 * keeps its SQLSTATE: it may be about one row, whose text is longer than a message can be, or has
 * characters that this database cannot have.
 */
static bool
fetch(WalReceiverConn *conn, const char *table, Progress *progress)
{
	int			wanted = rows_that_fit(progress);
	Oid		   *types = palloc(Max(progress->columns, 1) * sizeof(Oid));
	WalRcvExecResult *result;
	uint64		count;

	for (int i = 0; i < progress->columns; i++)
		types[i] = TEXTOID;
	result = walrcv_exec(conn, psprintf("FETCH %d FROM weft_rows", wanted),
						 progress->columns, types);
	if (result->status != WALRCV_OK_TUPLES)
		ereport(ERROR,
				(errcode(result->sqlstate ? result->sqlstate : ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not read rows of table %s from the publisher: %s", table,
						result->err ? result->err : "unexpected answer")));
	count = take_rows(progress, result);
	walrcv_clear_result(result);
	pfree(types);
	return count == wanted;
}

/*
 * Runs a query in the transaction that the connection is in, and passes its rows to
 * take().  Returns whether that has got all rows.  "table" is its quoted name, for errors.
 */
bool
publisher_rows_read(WalReceiverConn *conn, const char *table, const char *query, int columns,
					PublisherRowsTake take, void *arg)
{
	Progress	progress = {columns, take, arg, 0, 0, true};
	char	   *purpose = psprintf("read rows of table %s from the publisher", table);

	remote_command(conn, purpose,
				   psprintf("DECLARE weft_rows NO SCROLL CURSOR FOR %s", query));
	while (fetch(conn, table, &progress) && progress.more)
		CHECK_FOR_INTERRUPTS();
	remote_command(conn, purpose, "CLOSE weft_rows");
	return progress.more;
}
