/*
 * dropped_column.c
 *	  Columns and tables that schema changes of a node group have dropped.
 *
 * weft.dropped_column remembers them, so that rows of other members which still carry them can be
 * told from rows of a schema that is not here yet (apply/schema_wait.c).  Only what was
 * dropped without a group lock is in it: with one, there are no such rows.
 *
 * Only this module inserts, below the level of SQL, in the transaction of the schema change.  A
 * column that is added again need not be removed: the table is asked only about what is missing.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "ddl/dropped_column.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* The columns of weft.dropped_column. */
enum
{
	DROPPED_SCHEMA,
	DROPPED_TABLE,
	DROPPED_COLUMN,
	DROPPED_AT,
	NUM_DROPPED
};

static Oid
dropped_table(void)
{
	return get_relname_relid("dropped_column", get_namespace_oid("weft", true));
}

/* Records objects that are being dropped; those that are known already are not recorded again. */
void
dropped_column_record(const List *objects)
{
	Oid			relid = objects == NIL ? InvalidOid : dropped_table();
	Relation	rel;

	if (!OidIsValid(relid))
		return;
	rel = table_open(relid, RowExclusiveLock);
	PushActiveSnapshot(GetTransactionSnapshot());
	foreach_ptr(DroppedColumn, object, objects)
	{
		Datum		values[NUM_DROPPED];
		bool		nulls[NUM_DROPPED] = {0};
		HeapTuple	tuple;
		NameData	names[3];

		if (dropped_column_find(object->schema, object->table, object->column))
			continue;
		namestrcpy(&names[0], object->schema);
		namestrcpy(&names[1], object->table);
		namestrcpy(&names[2], object->column);
		values[DROPPED_SCHEMA] = NameGetDatum(&names[0]);
		values[DROPPED_TABLE] = NameGetDatum(&names[1]);
		values[DROPPED_COLUMN] = NameGetDatum(&names[2]);
		values[DROPPED_AT] = TimestampTzGetDatum(GetCurrentTimestamp());
		tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
		heap_insert(rel, tuple, GetCurrentCommandId(true), HEAP_INSERT_NO_LOGICAL, NULL);
		heap_freetuple(tuple);
	}
	PopActiveSnapshot();
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

static bool
is_name(Relation rel, HeapTuple tuple, int column, const char *name)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, column + 1, RelationGetDescr(rel), &isnull);

	return strcmp(NameStr(*DatumGetName(value)), name) == 0;
}

/* Was a column, or a table if "column" is empty, dropped here?  It may exist again. */
bool
dropped_column_find(const char *schema, const char *table, const char *column)
{
	Oid			relid = dropped_table();
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		result = false;

	if (!OidIsValid(relid))
		return false;
	rel = table_open(relid, AccessShareLock);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (!result && HeapTupleIsValid(tuple = systable_getnext(scan)))
		result = is_name(rel, tuple, DROPPED_SCHEMA, schema) &&
			is_name(rel, tuple, DROPPED_TABLE, table) &&
			is_name(rel, tuple, DROPPED_COLUMN, column);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}
