/*
 * result_rows.c
 *	  The rows that a function of the extension returns.
 */
#include "postgres.h"

#include "funcapi.h"
#include "result_rows.h"
#include "utils/lsyscache.h"

/*
 * Begins a function that returns a set of rows, by tuplestore_putvalues().  The database may
 * still have the function's declaration by another version of the extension, with other columns:
 * an error then, since values would be taken for what they are not.
 */
void
result_rows_begin(FunctionCallInfo fcinfo, int num_columns)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	if (rsinfo->setDesc->natts != num_columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("function \"%s\" is of another version of Weft than the server's library",
						get_func_name(fcinfo->flinfo->fn_oid)),
				 errhint("Execute ALTER EXTENSION weft UPDATE in this database.")));
}
