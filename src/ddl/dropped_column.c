/*
 * dropped_column.c
 *	  Columns and tables that schema changes of a node group have dropped.
 *
 * weft.dropped_column remembers them, so that rows of other members which still carry them can be
 * told from rows of a schema that is not here yet (apply/schema_wait.c).  Only what was
 * dropped without a group lock is in it: with one, there are no such rows.
 *
 * Only this module inserts, below the level of SQL, in the transaction of the schema change.  A
 * column that is added again is not removed: the table is asked only about what is missing.  But a row may arrive before
 * the schema change that adds the column again, so the time matters (apply/schema_wait.c).
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

/* Records objects that are being dropped. */
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

		if (dropped_column_time(object->schema, object->table, object->column) >=
			GetCurrentTransactionStartTimestamp())
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

/*
 * Returns when a column, or a table if "column" is empty, was dropped here for the last time, or zero.  It may exist
 * again.
 */
TimestampTz
dropped_column_time(const char *schema, const char *table, const char *column)
{
	Oid			relid = dropped_table();
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;
	TimestampTz result = 0;

	if (!OidIsValid(relid))
		return 0;
	rel = table_open(relid, AccessShareLock);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		TimestampTz at = DatumGetTimestampTz(heap_getattr(tuple, DROPPED_AT + 1,
														  RelationGetDescr(rel), &isnull));

		if (at > result && is_name(rel, tuple, DROPPED_SCHEMA, schema) &&
			is_name(rel, tuple, DROPPED_TABLE, table) &&
			is_name(rel, tuple, DROPPED_COLUMN, column))
			result = at;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/* Was a column, or a table if "column" is empty, dropped here? */
bool
dropped_column_find(const char *schema, const char *table, const char *column)
{
	return dropped_column_time(schema, table, column) != 0;
}
