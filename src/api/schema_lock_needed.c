/*
 * schema_lock_needed.c
 *	  weft.ddl_needs_lock().
 */
#include "postgres.h"

#include "ddl/needs_lock.h"
#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(weft_ddl_needs_lock);

/*
 * weft.ddl_needs_lock(statement text)
 *
 * Does a schema change need a lock on its tables in a node group?
 */
Datum
weft_ddl_needs_lock(PG_FUNCTION_ARGS)
{
	List	   *trees = pg_parse_query(text_to_cstring(PG_GETARG_TEXT_PP(0)));

	if (list_length(trees) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the text must be one statement")));
	PG_RETURN_BOOL(ddl_needs_lock(linitial_node(RawStmt, trees)->stmt));
}
