/*
 * concurrent_row.c
 *	  The rows of weft.ddl_concurrent: schema changes that are executed outside of the stream.
 *
 * Only this module changes them, below the level of SQL: a row names the role as which its statement is
 * executed.  The head of concurrent.c says who may change which row, and when.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "compat.h"
#include "ddl/concurrent_row.h"
#include "store.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

/* Columns of weft.ddl_concurrent. */
enum
{
	COLUMN_SUBID,
	COLUMN_SUBNAME,
	COLUMN_ID,
	COLUMN_LSN,
	COLUMN_STORED_AT,
	COLUMN_STATE,
	COLUMN_ATTEMPTS,
	COLUMN_RETRY_AT,
	COLUMN_LAST_ERROR,
	COLUMN_MADE,
	COLUMN_MESSAGE,
	NUM_COLUMNS
};

/* The table, or InvalidOid if this database has no extension. */
Oid
concurrent_table(void)
{
	Oid			extension = get_extension_oid("weft", true);
	Oid			relid;

	if (!OidIsValid(extension))
		return InvalidOid;
	relid = get_relname_relid("ddl_concurrent", get_namespace_oid("weft", true));
	if (!OidIsValid(relid) || getExtensionOfObject(RelationRelationId, relid) != extension)
		return InvalidOid;
	return relid;
}

static const char *
state_of(const ConcurrentRow *row)
{
	if (row->failed)
		return "failed";
	return row->attempts > 0 ? "started" : "waiting";
}

/* Logical decoding ignores the table, as far as it can. */
void
concurrent_insert(const ConcurrentRow *row)
{
	Relation	rel = table_open(concurrent_table(), RowExclusiveLock);
	Datum		values[NUM_COLUMNS];
	bool		nulls[NUM_COLUMNS] = {0};
	HeapTuple	tuple;
	NameData	name;

	namestrcpy(&name, row->subname);
	values[COLUMN_SUBID] = ObjectIdGetDatum(row->subid);
	values[COLUMN_SUBNAME] = NameGetDatum(&name);
	values[COLUMN_ID] = Int64GetDatum(row->id);
	values[COLUMN_LSN] = LSNGetDatum(row->lsn);
	values[COLUMN_STORED_AT] = TimestampTzGetDatum(row->stored_at);
	values[COLUMN_STATE] = CStringGetTextDatum(state_of(row));
	values[COLUMN_ATTEMPTS] = Int32GetDatum(row->attempts);
	values[COLUMN_RETRY_AT] = TimestampTzGetDatum(row->retry_at);
	nulls[COLUMN_LAST_ERROR] = row->last_error == NULL;
	values[COLUMN_LAST_ERROR] = row->last_error ? CStringGetTextDatum(row->last_error) : (Datum) 0;
	values[COLUMN_MADE] = ObjectIdGetDatum(row->made);
	values[COLUMN_MESSAGE] = CStringGetTextDatum(row->json);
	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	PushActiveSnapshot(GetTransactionSnapshot());
	heap_insert(rel, tuple, GetCurrentCommandId(true), HEAP_INSERT_NO_LOGICAL, NULL);
	PopActiveSnapshot();
	heap_freetuple(tuple);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/*
 * Removes a row; returns false if it has been removed already, which DROP SUBSCRIPTION does
 * without any lock.
 */
bool
concurrent_remove(const ConcurrentRow *row)
{
	Relation	rel = table_open(concurrent_table(), RowExclusiveLock);
	ItemPointerData place = row->place;
	TM_FailureData failure;
	TM_Result	result;

	PushActiveSnapshot(GetTransactionSnapshot());
	result = compat_table_tuple_delete(rel, &place, GetCurrentCommandId(true), GetActiveSnapshot(),
									   true, &failure);
	PopActiveSnapshot();
	table_close(rel, NoLock);
	CommandCounterIncrement();
	return result == TM_Ok;
}

/* Changes a row, unless it has been removed. */
void
concurrent_replace(const ConcurrentRow *row)
{
	if (concurrent_remove(row))
		concurrent_insert(row);
}

static ConcurrentRow *
read_row(HeapTuple tuple, TupleDesc desc)
{
	ConcurrentRow *row = palloc0(sizeof(ConcurrentRow));
	Datum		values[NUM_COLUMNS];
	bool		nulls[NUM_COLUMNS];

	heap_deform_tuple(tuple, desc, values, nulls);
	row->place = tuple->t_self;
	row->subid = DatumGetObjectId(values[COLUMN_SUBID]);
	row->subname = pstrdup(NameStr(*DatumGetName(values[COLUMN_SUBNAME])));
	row->id = DatumGetInt64(values[COLUMN_ID]);
	row->lsn = DatumGetLSN(values[COLUMN_LSN]);
	row->stored_at = DatumGetTimestampTz(values[COLUMN_STORED_AT]);
	row->failed = strcmp(TextDatumGetCString(values[COLUMN_STATE]), "failed") == 0;
	row->attempts = DatumGetInt32(values[COLUMN_ATTEMPTS]);
	row->retry_at = DatumGetTimestampTz(values[COLUMN_RETRY_AT]);
	if (!nulls[COLUMN_LAST_ERROR])
		row->last_error = TextDatumGetCString(values[COLUMN_LAST_ERROR]);
	row->made = DatumGetObjectId(values[COLUMN_MADE]);
	row->json = TextDatumGetCString(values[COLUMN_MESSAGE]);
	return row;
}

/* Returns whether a row was stored before another one, as a number for sorting. */
int
concurrent_compare(const ConcurrentRow *one, const ConcurrentRow *other)
{
	if (one->stored_at != other->stored_at)
		return one->stored_at < other->stored_at ? -1 : 1;
	if (one->subid != other->subid)
		return one->subid < other->subid ? -1 : 1;
	return one->id < other->id ? -1 : one->id > other->id;
}

static int
compare(const ListCell *a, const ListCell *b)
{
	return concurrent_compare(lfirst(a), lfirst(b));
}

/*
 * Returns the rows of a subscription, or all of them, as they are now, in the order in which they
 * were stored.
 */
List *
concurrent_rows(Oid subid)
{
	Oid			relid = concurrent_table();
	List	   *result = NIL;
	Relation	rel;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	if (!OidIsValid(relid))
		return NIL;
	rel = table_open(relid, AccessShareLock);
	ScanKeyInit(&key, COLUMN_SUBID + 1, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(subid));
	scan = systable_beginscan(rel, InvalidOid, false, NULL, OidIsValid(subid) ? 1 : 0, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		result = lappend(result, read_row(tuple, RelationGetDescr(rel)));
	systable_endscan(scan);
	table_close(rel, NoLock);
	list_sort(result, compare);
	return result;
}

/* Returns a row, or NULL if there is none that is waiting, or has failed. */
ConcurrentRow *
concurrent_get(Oid subid, int64 id, bool failed)
{
	foreach_ptr(ConcurrentRow, row, concurrent_rows(subid))
		if (row->id == id && row->failed == failed)
		return row;
	return NULL;
}

DdlMessage *
concurrent_message(const ConcurrentRow *row)
{
	return ddl_message_read(row->json, strlen(row->json));
}

/*
 * Removes the statements of a subscription that is being dropped.  Waits for nobody: a worker that is about
 * to remove one finds it removed, and so does everybody else.
 */
void
concurrent_forget(Oid subid)
{
	Oid			relid = concurrent_table();
	Snapshot	snapshot;
	Relation	rel;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	if (!OidIsValid(relid))
		return;
	rel = table_open(relid, RowExclusiveLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyInit(&key, COLUMN_SUBID + 1, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(subid));
	scan = systable_beginscan(rel, InvalidOid, false, snapshot, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		store_remove(rel, tuple, snapshot);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
}

/*
 * Called when a leader starts.  A subscription gets another OID, and keeps its name, when pg_upgrade transfers
 * it: its statements are its own again.  OIDs are not used twice then.  A subscription that was dropped
 * while Weft was not loaded has left its statements behind: removes them.
 */
void
concurrent_find_owners(void)
{
	foreach_ptr(ConcurrentRow, row, concurrent_rows(InvalidOid))
	{
		if (SearchSysCacheExists1(SUBSCRIPTIONOID, ObjectIdGetDatum(row->subid)))
			continue;
		row->subid = get_subscription_oid(row->subname, true);
		if (OidIsValid(row->subid))
			concurrent_replace(row);
		else
			(void) concurrent_remove(row);
	}
}
