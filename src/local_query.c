/*
 * local_query.c
 *	  Queries and commands in this database, as text.
 */
#include "postgres.h"

#include "executor/spi.h"
#include "local_query.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

static void
execute(const char *command)
{
	int			result;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	PushActiveSnapshot(GetTransactionSnapshot());
	result = SPI_execute(command, false, 0);
	PopActiveSnapshot();
	if (result < 0)
		elog(ERROR, "SPI_execute failed: %s", SPI_result_code_string(result));
}

/* Runs a command, or a query whose result is not needed. */
void
local_run(const char *command)
{
	execute(command);
	SPI_finish();
}

/*
 * Runs a query; returns its rows as a list of arrays of text values, each NULL if
 * it is null.
 */
List *
local_rows(const char *query, int columns)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *rows = NIL;

	execute(query);
	if (SPI_tuptable == NULL || SPI_tuptable->tupdesc->natts != columns)
		elog(ERROR, "unexpected result of: %s", query);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		MemoryContext old = MemoryContextSwitchTo(context);
		char	  **row = palloc0(columns * sizeof(char *));

		for (int j = 0; j < columns; j++)
		{
			char	   *value = SPI_getvalue(SPI_tuptable->vals[i],
											 SPI_tuptable->tupdesc, j + 1);

			if (value)
				row[j] = MemoryContextStrdup(context, value);
		}
		rows = lappend(rows, row);
		MemoryContextSwitchTo(old);
	}
	SPI_finish();
	return rows;
}

/* Returns the first column of the first row, or NULL. */
char *
local_value(const char *query)
{
	List	   *rows = local_rows(query, 1);

	return rows == NIL ? NULL : ((char **) linitial(rows))[0];
}
