/*
 * query_result.c
 *	  Answers of other servers.
 */
#include "postgres.h"

#include "executor/tuptable.h"
#include "mb/pg_wchar.h"
#include "query_result.h"
#include "utils/builtins.h"

/*
 * Returns the rows of a query's result, each an array of values, all of whose columns
 * are of type text; a value is NULL if it is null.  Nobody but us sees to it that what
 * another server sends is in this database's encoding.
 */
List *
query_result_rows(WalRcvExecResult *result, int columns)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(result->tupledesc, &TTSOpsMinimalTuple);
	List	   *rows = NIL;

	while (tuplestore_gettupleslot(result->tuplestore, true, false, slot))
	{
		char	  **values = palloc0(columns * sizeof(char *));

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

/* Returns the first of them, or NULL if there is no row. */
char	  **
query_result_row(WalRcvExecResult *result, int columns)
{
	List	   *rows = query_result_rows(result, columns);

	return rows != NIL ? linitial(rows) : NULL;
}
