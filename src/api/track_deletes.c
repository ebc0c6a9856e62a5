/*
 * track_deletes.c
 *	  weft.track_deletes().
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "api/conflict_tables.h"
#include "catalog/pg_index.h"
#include "conflict/unique_index.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "guc.h"
#include "replication/logicalrelation.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(weft_track_deletes);

/* Runs a statement.  Each node tracks on its own: the triggers are no schema change to publish. */
static void
run(const char *statement)
{
	int			level = NewGUCNestLevel();

	guc_publish_no_schema_changes();
	SPI_connect();
	if (SPI_execute(statement, false, 0) < 0)
		elog(ERROR, "could not execute: %s", statement);
	SPI_finish();
	AtEOXact_GUC(false, level);
}

/*
 * Returns " OF " and a list of the columns whose UPDATE is to be remembered: those of the
 * key, and those on which unique values depend.  If the table has a BEFORE trigger, then
 * the statement does not tell which columns change, and the result is empty.
 */
static char *
tracked_columns(Relation rel, Oid index)
{
	StringInfoData result;
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form = (Form_pg_index) GETSTRUCT(tuple);
	Bitmapset  *columns = conflict_unique_columns(rel);
	int			column = -1;

	initStringInfo(&result);
	for (int i = 0; i < form->indnkeyatts; i++)
		columns = bms_add_member(columns, form->indkey.values[i] - 1);
	ReleaseSysCache(tuple);
	if (rel->trigdesc && rel->trigdesc->trig_update_before_row)
		return result.data;
	while ((column = bms_next_member(columns, column)) >= 0)
		appendStringInfo(&result, "%s%s", result.len > 0 ? ", " : " OF ",
						 quote_identifier(get_attname(RelationGetRelid(rel), column + 1, false)));
	return result.data;
}

/*
 * weft.track_deletes(relation regclass, enabled boolean)
 *
 * Makes a table remember the keys of rows that sessions on this node delete, and the unique
 * values that they give up; or stops that.  Fails if the caller does not own the table, or
 * if it has no primary key or replica identity index.  Can be repeated.
 */
Datum
weft_track_deletes(PG_FUNCTION_ARGS)
{
	Relation	rel = conflict_tables_open(PG_GETARG_OID(0));
	Oid			index = GetRelationIdentityOrPK(rel);
	const char *name =
		quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
								   RelationGetRelationName(rel));

	if (PG_GETARG_BOOL(1) && !OidIsValid(index))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has no primary key or replica identity index",
						RelationGetRelationName(rel))));
	if (PG_GETARG_BOOL(1))
	{
		run(psprintf("CREATE OR REPLACE TRIGGER weft_record_delete AFTER DELETE ON %s"
					 " FOR EACH ROW EXECUTE FUNCTION weft.record_delete()", name));
		run(psprintf("CREATE OR REPLACE TRIGGER weft_record_key_change AFTER UPDATE%s ON %s"
					 " FOR EACH ROW EXECUTE FUNCTION weft.record_delete()",
					 tracked_columns(rel, index), name));
	}
	else
	{
		run(psprintf("DROP TRIGGER IF EXISTS weft_record_delete ON %s", name));
		run(psprintf("DROP TRIGGER IF EXISTS weft_record_key_change ON %s", name));
	}
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}
