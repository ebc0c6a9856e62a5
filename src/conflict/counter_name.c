/*
 * counter_name.c
 *	  Counters stay counters when their columns are renamed.
 *
 * weft.delta_column names them (delta.c).  Whoever renames such a column, a session or a writer that applies a schema
 * change, renames it there, too, in the same transaction.  Otherwise concurrent changes would be lost from then on, on all
 * members of a node group, and without a word.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_inherits.h"
#include "conflict/counter_name.h"
#include "conflict/settings.h"
#include "local_query.h"
#include "nodes/parsenodes.h"
#include "publication_settings.h"
#include "tcop/utility.h"
#include "utils/builtins.h"

static ProcessUtility_hook_type previous_process_utility = NULL;

/* Returns the table of a column that is about to be renamed, with its children; NIL if there is none. */
static List *
find_tables(const RenameStmt *rename)
{
	Oid			relid;

	if (rename->renameType != OBJECT_COLUMN || rename->relation == NULL ||
		!IsTransactionState() || !OidIsValid(publication_settings_queue()))
		return NIL;
	relid = RangeVarGetRelid(rename->relation, NoLock, true);
	return OidIsValid(relid) ? find_all_inheritors(relid, NoLock, NULL) : NIL;
}

/* The user's operators must not be found: this runs as the owner of the table. */
static void
follow(List *tables, const RenameStmt *rename)
{
	foreach_oid(relid, tables)
		if (conflict_has_delta_columns(relid))
		(void) local_rows_of_weft(psprintf("UPDATE weft.delta_column SET column_name = %s"
										   " WHERE relation::pg_catalog.oid OPERATOR(pg_catalog.=) %u::pg_catalog.oid"
										   " AND column_name OPERATOR(pg_catalog.=) %s::pg_catalog.name"
										   " RETURNING column_name",
										   quote_literal_cstr(rename->newname), relid,
										   quote_literal_cstr(rename->subname)), 1);
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	RenameStmt *rename = IsA(pstmt->utilityStmt, RenameStmt) ?
		copyObject((RenameStmt *) pstmt->utilityStmt) : NULL;
	List	   *tables = rename ? find_tables(rename) : NIL;

	if (previous_process_utility)
		previous_process_utility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	if (tables != NIL)
		follow(tables, rename);
}

/* Called once, while the postmaster loads the library. */
void
counter_name_install(void)
{
	previous_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
