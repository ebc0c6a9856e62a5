/*
 * repair_item.c
 *	  Differences that are repaired: how they are read from weft.difference, and what becomes
 *	  of them there.
 *
 * What becomes of a difference is stored in the transaction that writes its row.  Therefore
 * the two agree after any crash.
 *
 * The worker that repairs is a replica to triggers, and weft.difference ignores what
 * replicas write.  Therefore its statements run with another session_replication_role, and
 * as the tables' owner.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/pg_lsn.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "verify/repair_item.h"

#define MAX_ARGUMENTS 6

/* The arguments of a statement, in the order of its parameters. */
typedef struct Arguments
{
	int			count;
	Oid			types[MAX_ARGUMENTS];
	Datum		values[MAX_ARGUMENTS];
	char		nulls[MAX_ARGUMENTS];
} Arguments;

static void
add(Arguments *arguments, Oid type, Datum value, bool is_null)
{
	Assert(arguments->count < MAX_ARGUMENTS);
	arguments->types[arguments->count] = type;
	arguments->values[arguments->count] = value;
	arguments->nulls[arguments->count++] = is_null ? 'n' : ' ';
}

static void
add_bigint(Arguments *arguments, int64 value)
{
	add(arguments, INT8OID, Int64GetDatum(value), false);
}

static void
add_bigints(Arguments *arguments, const int64 *values, int count)
{
	Datum	   *elements = palloc(Max(count, 1) * sizeof(Datum));

	for (int i = 0; i < count; i++)
		elements[i] = Int64GetDatum(values[i]);
	add(arguments, INT8ARRAYOID,
		PointerGetDatum(construct_array(elements, count, INT8OID, sizeof(int64),
										FLOAT8PASSBYVAL, TYPALIGN_DOUBLE)), false);
}

static void
add_text(Arguments *arguments, const char *value)
{
	add(arguments, TEXTOID, value ? CStringGetTextDatum(value) : (Datum) 0, value == NULL);
}

static Oid
owner_of_results(void)
{
	Oid			relid = get_relname_relid("difference", get_namespace_oid("weft", false));
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			result;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table \"%s\" does not exist", "weft.difference"),
				 errhint("Run ALTER EXTENSION weft UPDATE.")));
	result = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return result;
}

/* Runs a statement as the owner of the tables, within an SPI connection. */
static void
run(const char *statement, Arguments *arguments, int expected)
{
	int			level = NewGUCNestLevel();
	bool		pushed = !ActiveSnapshotSet();
	Oid			user;
	int			context;

	/* A statement that is no user's takes its own, but must be within one. */
	if (pushed)
		PushActiveSnapshot(GetTransactionSnapshot());

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(owner_of_results(), context | SECURITY_LOCAL_USERID_CHANGE);
	RestrictSearchPath();
	(void) set_config_option("session_replication_role", "origin", PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	if (SPI_execute_with_args(statement, arguments->count, arguments->types, arguments->values,
							  arguments->nulls, false, 0) != expected)
		elog(ERROR, "could not read or store differences");
	AtEOXact_GUC(false, level);
	SetUserIdAndSecContext(user, context);
	if (pushed)
		PopActiveSnapshot();
}

static Datum
get(uint64 row, int column, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, isnull);
}

static char *
copy_name(MemoryContext context, int column)
{
	bool		isnull;
	Datum		name = get(0, column, &isnull);

	return isnull ? NULL : MemoryContextStrdup(context, NameStr(*DatumGetName(name)));
}

/*
 * Returns, in the current memory context, what has been compared.  Fails if there is no such
 * comparison, or the current user may not know of it.
 */
RepairSource
repair_items_source(int64 comparison)
{
	MemoryContext caller = CurrentMemoryContext;
	Arguments	arguments = {0};
	RepairSource result;
	bool		isnull;

	SPI_connect();
	add_bigint(&arguments, comparison);
	add(&arguments, OIDOID, ObjectIdGetDatum(GetUserId()), false);
	run("SELECT subid, subname, owner, node, CASE WHEN node IS NOT NULL THEN weft.local_node() END"
		" FROM weft.comparison WHERE comparison = $1 AND pg_has_role($2, owner, 'USAGE')",
		&arguments, SPI_OK_SELECT);
	if (SPI_processed != 1)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("comparison %lld does not exist", (long long) comparison)));
	result.subid = DatumGetObjectId(get(0, 1, &isnull));
	result.subname = copy_name(caller, 2);
	result.owner = DatumGetObjectId(get(0, 3, &isnull));
	result.node = copy_name(caller, 4);
	result.local_node = copy_name(caller, 5);
	SPI_finish();
	return result;
}

/*
 * Returns the tables (RepairTable) with their differences that have not been repaired, in the
 * current memory context.  Of a table, rows that are not there come first, then those that
 * are on both sides, then those that are missing here: so that unique values are released before they are
 * needed.
 */
List *
repair_items_tables(int64 comparison)
{
	MemoryContext caller = CurrentMemoryContext;
	Arguments	arguments = {0};
	List	   *result = NIL;

	SPI_connect();
	add_bigint(&arguments, comparison);
	run("SELECT relation::oid, array_agg(difference ORDER BY"
		" CASE kind WHEN 'missing there' THEN 1 WHEN 'different' THEN 2 ELSE 3 END, difference)"
		" FROM weft.difference"
		" WHERE comparison = $1 AND (repair_result IS NULL OR repair_result IN ('failed', 'kept'))"
		" GROUP BY relation ORDER BY min(difference)", &arguments, SPI_OK_SELECT);
	MemoryContextSwitchTo(caller);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		RepairTable *table = palloc(sizeof(RepairTable));
		bool		isnull;
		Datum	   *elements;

		table->relid = DatumGetObjectId(get(i, 1, &isnull));
		deconstruct_array(DatumGetArrayTypeP(get(i, 2, &isnull)), INT8OID, sizeof(int64),
						  FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &elements, NULL, &table->count);
		table->differences = palloc(table->count * sizeof(int64));
		for (int j = 0; j < table->count; j++)
			table->differences[j] = DatumGetInt64(elements[j]);
		result = lappend(result, table);
	}
	SPI_finish();
	return result;
}

/*
 * Returns the query that reads differences of a table: for each column that identifies a row,
 * its text, and whether it is known.  In a table without a key that is the whole row, whose
 * long values have been cut, which makes them objects.
 */
static char *
identity_query(RowTable *table)
{
	StringInfoData query;
	bool		keyless = table->published->key == NIL;

	initStringInfo(&query);
	appendStringInfoString(&query, "SELECT d.difference");
	for (int i = 0; i < table->count; i++)
	{
		char	   *name = quote_literal_cstr(table->columns[i]->name);

		if (!keyless && !table->in_key[i])
			appendStringInfoString(&query, ", NULL::text, true");
		else
			appendStringInfo(&query, ", i.row ->> %s, jsonb_typeof(i.row -> %s) IN (%s)",
							 name, name, keyless ? "'string', 'null'" : "'string'");
	}
	appendStringInfo(&query, " FROM weft.difference d, LATERAL (SELECT %s AS row) i"
					 " WHERE d.comparison = $1 AND d.difference = ANY ($2)"
					 " ORDER BY array_position($2, d.difference)",
					 keyless ? "CASE WHEN d.key IS NULL THEN coalesce(d.publisher_row, d.local_row) END"
					 : "d.key");
	return query.data;
}

static RepairItem *
read_item(RowTable *table, uint64 row)
{
	RepairItem *result = palloc0(sizeof(RepairItem));
	bool		known = true;
	bool		isnull;

	result->difference = DatumGetInt64(get(row, 1, &isnull));
	result->identity = palloc0(Max(table->count, 1) * sizeof(char *));
	for (int i = 0; i < table->count; i++)
	{
		Datum		value = get(row, 2 * i + 2, &isnull);

		if (!isnull)
			result->identity[i] = TextDatumGetCString(value);
		known = DatumGetBool(get(row, 2 * i + 3, &isnull)) && !isnull && known;
	}
	if (!known)
	{
		result->identity = NULL;
		result->outcome = REPAIR_FAILED;
		result->reason = table->published->key == NIL ?
			"a value that identifies the row is too long" :
			"the table's key is not the one that was compared";
	}
	return result;
}

/*
 * Returns differences of a table (RepairItem) in this order, in the current memory context.
 * Some may have failed already.
 */
List *
repair_items_read(int64 comparison, RowTable *table, const int64 *differences, int count)
{
	MemoryContext caller = CurrentMemoryContext;
	Arguments	arguments = {0};
	List	   *result = NIL;

	SPI_connect();
	add_bigint(&arguments, comparison);
	add_bigints(&arguments, differences, count);
	run(identity_query(table), &arguments, SPI_OK_SELECT);
	MemoryContextSwitchTo(caller);
	for (uint64 i = 0; i < SPI_processed; i++)
		result = lappend(result, read_item(table, i));
	SPI_finish();
	return result;
}

/* Returns the query that reads the local rows of differences as they were recorded. */
static char *
recorded_query(RowTable *table)
{
	StringInfoData query;

	initStringInfo(&query);
	appendStringInfoString(&query, "SELECT d.difference, d.local_row IS NOT NULL,"
						   " NOT EXISTS (SELECT FROM jsonb_each(d.local_row) c"
						   " WHERE jsonb_typeof(c.value) NOT IN ('string', 'null')),"
						   " d.local_commit_time");
	for (int i = 0; i < table->count; i++)
		appendStringInfo(&query, ", d.local_row ->> %s", quote_literal_cstr(table->columns[i]->name));
	appendStringInfoString(&query, " FROM weft.difference d"
						   " WHERE d.comparison = $1 AND d.difference = ANY ($2)");
	return query.data;
}

/* Sets what an item says of the recorded local row, in the memory context of the caller. */
static void
set_recorded(RowTable *table, RepairItem *item, uint64 row)
{
	bool		isnull;
	Datum		time = get(row, 4, &isnull);

	item->recorded_time = isnull ? 0 : DatumGetTimestampTz(time);
	item->recorded_whole = DatumGetBool(get(row, 3, &isnull));
	item->recorded = NULL;
	if (!DatumGetBool(get(row, 2, &isnull)))
		return;
	item->recorded = palloc0(Max(table->count, 1) * sizeof(char *));
	for (int i = 0; i < table->count; i++)
	{
		Datum		value = get(row, i + 5, &isnull);

		if (!isnull)
			item->recorded[i] = TextDatumGetCString(value);
	}
}

/* Reads the local rows of items as the comparison has recorded them. */
void
repair_items_read_recorded(int64 comparison, RowTable *table, List *items)
{
	MemoryContext caller = CurrentMemoryContext;
	Arguments	arguments = {0};
	int64	   *differences = palloc(Max(list_length(items), 1) * sizeof(int64));

	foreach_ptr(RepairItem, item, items)
		differences[foreach_current_index(item)] = item->difference;
	SPI_connect();
	add_bigint(&arguments, comparison);
	add_bigints(&arguments, differences, list_length(items));
	run(recorded_query(table), &arguments, SPI_OK_SELECT);
	MemoryContextSwitchTo(caller);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		isnull;
		int64		difference = DatumGetInt64(get(i, 1, &isnull));

		foreach_ptr(RepairItem, item, items)
			if (item->difference == difference)
			set_recorded(table, item, i);
	}
	SPI_finish();
}

/* Was a row with this key deleted here since the comparison began? */
bool
repair_items_deleted_since(int64 comparison, Oid relid, const pg_uuid_t *key)
{
	Arguments	arguments = {0};
	bool		result;
	bool		isnull;

	SPI_connect();
	add_bigint(&arguments, comparison);
	add(&arguments, OIDOID, ObjectIdGetDatum(relid), false);
	add(&arguments, UUIDOID, UUIDPGetDatum(key), false);
	run("SELECT EXISTS (SELECT FROM weft.tombstone t JOIN weft.comparison c ON t.recorded_at >= c.started_at"
		" WHERE c.comparison = $1 AND t.relation = $2 AND t.key = $3)", &arguments, SPI_OK_SELECT);
	result = DatumGetBool(get(0, 1, &isnull));
	SPI_finish();
	return result;
}

/* Stores what has become of some differences; "lsn" may be invalid. */
static void
store(int64 comparison, const int64 *differences, int count, const char *outcome,
	  const char *reason, XLogRecPtr lsn)
{
	Arguments	arguments = {0};

	add_bigint(&arguments, comparison);
	add_bigints(&arguments, differences, count);
	add_text(&arguments, outcome);
	add_text(&arguments, reason);
	add(&arguments, PG_LSNOID, LSNGetDatum(lsn), XLogRecPtrIsInvalid(lsn));
	run("UPDATE weft.difference SET repair_result = $3, repair_reason = $4,"
		" repair_lsn = $5, repaired_at = clock_timestamp()"
		" WHERE comparison = $1 AND difference = ANY ($2)", &arguments, SPI_OK_UPDATE);
}

/*
 * Stores what has become of each item; "lsn" is the publisher's position at the cut.  An item
 * that is pending stays as it is.
 */
void
repair_items_store(int64 comparison, List *items, XLogRecPtr lsn)
{
	int64	   *differences = palloc(Max(list_length(items), 1) * sizeof(int64));

	SPI_connect();
	for (RepairOutcome outcome = REPAIR_DONE; outcome <= REPAIR_VANISHED; outcome++)
	{
		int			count = 0;

		foreach_ptr(RepairItem, item, items)
			if (item->outcome == outcome)
			differences[count++] = item->difference;
		if (count > 0)
			store(comparison, differences, count,
				  outcome == REPAIR_DONE ? "repaired" : "vanished", NULL, lsn);
	}
	foreach_ptr(RepairItem, item, items)
	{
		if (item->outcome == REPAIR_BLOCKED || item->outcome == REPAIR_FAILED)
			store(comparison, &item->difference, 1, "failed", item->reason, lsn);
		else if (item->outcome == REPAIR_KEPT)
			store(comparison, &item->difference, 1, "kept", item->reason, lsn);
		else if (item->outcome == REPAIR_PLANNED)
			store(comparison, &item->difference, 1, NULL, item->reason, lsn);
	}
	SPI_finish();
	pfree(differences);
}

/* Stores that these could not be repaired. */
void
repair_items_fail(int64 comparison, const int64 *differences, int count, const char *reason)
{
	SPI_connect();
	store(comparison, differences, count, "failed", reason, InvalidXLogRecPtr);
	SPI_finish();
}

RepairSummary
repair_items_summary(int64 comparison)
{
	Arguments	arguments = {0};
	RepairSummary result;
	bool		isnull;

	SPI_connect();
	add_bigint(&arguments, comparison);
	run("SELECT count(*) FILTER (WHERE repair_result = 'repaired'),"
		" count(*) FILTER (WHERE repair_result = 'vanished'),"
		" count(*) FILTER (WHERE repair_result = 'failed'),"
		" count(*) FILTER (WHERE repair_result IS NULL),"
		" count(*) FILTER (WHERE repair_result = 'kept')"
		" FROM weft.difference WHERE comparison = $1", &arguments, SPI_OK_SELECT);
	result.repaired = DatumGetInt64(get(0, 1, &isnull));
	result.vanished = DatumGetInt64(get(0, 2, &isnull));
	result.failed = DatumGetInt64(get(0, 3, &isnull));
	result.pending = DatumGetInt64(get(0, 4, &isnull));
	result.kept = DatumGetInt64(get(0, 5, &isnull));
	SPI_finish();
	return result;
}
