/*
 * local_query.c
 *	  Queries and commands in this database, as text.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "executor/spi.h"
#include "local_query.h"
#include "miscadmin.h"
#include "publication_settings.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/*
 * Starts a transaction in which this node may write, and sees what others have written meanwhile, whatever
 * the defaults of this database are.  Its commit is flushed, but does not wait for synchronous standbys: one of
 * them may be a subscription to this server that waits for this process.
 */
void
local_start_writing(void)
{
	StartTransactionCommand();
	XactReadOnly = false;
	XactIsoLevel = XACT_READ_COMMITTED;
	(void) set_config_option("synchronous_commit", "local", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
}

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

static char *
first_value(List *rows)
{
	return rows == NIL ? NULL : ((LocalValue *) linitial(rows))[0];
}

/* Returns the first column of the first row, or NULL. */
char *
local_value(const char *query)
{
	return first_value(local_rows(query, 1));
}

/*
 * Runs a query as the role that owns Weft's tables, for what the current role may not do.  The query must
 * not contain any text that is not quoted, nor call what others have defined.
 */
List *
local_rows_of_weft(const char *query, int columns)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(publication_settings_queue()));
	Oid			user;
	int			context;
	List	   *result;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "table \"%s\" is missing", "weft.ddl_queue");
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(((Form_pg_class) GETSTRUCT(tuple))->relowner,
						   context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
	ReleaseSysCache(tuple);
	result = local_rows(query, columns);
	SetUserIdAndSecContext(user, context);
	return result;
}

/* The same; returns the first column of the first row, or NULL. */
char *
local_value_of_weft(const char *query)
{
	return first_value(local_rows_of_weft(query, 1));
}
