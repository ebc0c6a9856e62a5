/*
 * rename_applied.c
 *	  What is known, under its name, of a subscription that gets another name: its schema changes, its replication origin.
 *
 * A server that becomes a node of its own from a copy of another one renames that one's
 * subscriptions (sql/15-physical-copy.sql).
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "fmgr.h"
#include "store.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

PG_FUNCTION_INFO_V1(weft_rename_applied);

/* Replaces a name in column "subname" of a table of Weft's. */
static void
rename_in(const char *table, Name old_name, Name new_name)
{
	Oid			relid = get_relname_relid(table, get_namespace_oid("weft", false));
	Relation	rel = table_open(relid, RowExclusiveLock);
	TupleDesc	desc = RelationGetDescr(rel);
	AttrNumber	column = get_attnum(relid, "subname");
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	Datum	   *values = palloc(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		heap_deform_tuple(tuple, desc, values, nulls);
		if (strcmp(NameStr(*DatumGetName(values[column - 1])), NameStr(*old_name)) != 0)
			continue;
		values[column - 1] = NameGetDatum(new_name);
		store_row(relid, values, nulls);
		store_remove(rel, tuple, snapshot);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
}

/* weft.rename_applied(old_name name, new_name name) */
Datum
weft_rename_applied(PG_FUNCTION_ARGS)
{
	rename_in("ddl_applied", PG_GETARG_NAME(0), PG_GETARG_NAME(1));
	rename_in("ddl_concurrent", PG_GETARG_NAME(0), PG_GETARG_NAME(1));
	rename_in("known_origin", PG_GETARG_NAME(0), PG_GETARG_NAME(1));
	PG_RETURN_VOID();
}
