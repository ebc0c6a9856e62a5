/*
 * side.c
 *	  SQL on either side of a switch-over.
 *
 * Here it runs as the caller, in the caller's transaction; there as the role of the session
 * (link.c), each time in a transaction of its own.  Settings are pinned on both sides; the
 * search_path is empty.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "switch/link.h"
#include "switch/side.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/snapmgr.h"

static void
execute_here(const char *command)
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

static List *
rows_here(const char *query, int columns)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *rows = NIL;

	execute_here(query);
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

/* Runs a command that returns nothing. */
void
side_run(SwitchSide side, const char *command)
{
	if (side == SIDE_THERE)
		link_run(command);
	else
	{
		execute_here(command);
		SPI_finish();
	}
}

/*
 * Runs a block of PL/pgSQL.  Names in it are the users': none of them can end the block, as it
 * could with dollar quotes.
 */
void
side_run_block(SwitchSide side, const char *body)
{
	side_run(side, psprintf("DO %s", quote_literal_cstr(body)));
}

/* Runs a query; returns its rows as arrays of text values, each NULL if it is null. */
List *
side_rows(SwitchSide side, const char *query, int columns)
{
	return side == SIDE_THERE ? link_rows(query, columns) : rows_here(query, columns);
}

/* Returns the one column of the first row, or NULL. */
char *
side_value(SwitchSide side, const char *query)
{
	List	   *rows = side_rows(side, query, 1);

	return rows == NIL ? NULL : ((char **) linitial(rows))[0];
}

/* The same for a query that creates or advances a slot, and may be run several times. */
char *
side_slot_value(SwitchSide side, const char *query)
{
	return side == SIDE_THERE ? link_slot_value(query) : side_value(side, query);
}

/* Returns a value as an LSN; NULL is InvalidXLogRecPtr. */
XLogRecPtr
side_lsn(const char *value)
{
	if (value == NULL)
		return InvalidXLogRecPtr;
	return DatumGetLSN(DirectFunctionCall1(pg_lsn_in, CStringGetDatum(value)));
}

/*
 * Runs a command here with the rights of the extension's owner, for Weft's own tables.  It
 * must contain nothing but these and literals.
 */
void
side_run_as_extension(const char *command)
{
	Oid			user;
	int			context;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
						   context | SECURITY_LOCAL_USERID_CHANGE);
	side_run(SIDE_HERE, command);
	SetUserIdAndSecContext(user, context);
}
