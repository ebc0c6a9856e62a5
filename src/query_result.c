/*
 * query_result.c
 *	  Answers of other servers.
 */
#include "postgres.h"

#include "executor/tuptable.h"
#include "query_result.h"
#include "utils/builtins.h"

/*
 * Returns the values of the first row of a query's result, all of whose columns are
 * of type text, each NULL if it is null; or NULL if there is no row.
 */
char	  **
query_result_row(WalRcvExecResult *result, int columns)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(result->tupledesc, &TTSOpsMinimalTuple);
	char	  **values = NULL;

	if (tuplestore_gettupleslot(result->tuplestore, true, false, slot))
	{
		values = palloc0(columns * sizeof(char *));
		for (int i = 0; i < columns; i++)
		{
			bool		isnull;
			Datum		value = slot_getattr(slot, i + 1, &isnull);

			if (!isnull)
				values[i] = TextDatumGetCString(value);
		}
	}
	ExecDropSingleTupleTableSlot(slot);
	return values;
}
