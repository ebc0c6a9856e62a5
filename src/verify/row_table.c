/*
 * row_table.c
 *	  A local table whose rows are compared with the publisher's and repaired.
 *
 * A row is found by its key, or, in a table without one, by all of its values.  The index of
 * the key finds candidates, by the equality operator of the columns' types.  Whether
 * values are the same is decided by their text alone: what the types' output functions
 * write under the settings of pinned_settings.c.  No cast to text is used, because a
 * cast may be anybody's function.
 *
 * A text can have up to 1 GB.  Therefore the texts of local rows are made one at a time, compared
 * with what is wanted, and forgotten.
 *
 * A local row that is found is locked until the transaction ends, and the values are those
 * of the version that is locked.  Therefore nothing that the caller has compared changes
 * before it commits.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "local_table.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"
#include "verify/row_hash.h"
#include "verify/row_table.h"

/* Fails unless a column is still what it was when the table was looked up. */
static void
check_column(Relation rel, const PublishedColumn *column)
{
	Form_pg_attribute attribute = column->attnum <= RelationGetNumberOfAttributes(rel) ?
		TupleDescAttr(RelationGetDescr(rel), column->attnum - 1) : NULL;

	if (attribute == NULL || attribute->attisdropped ||
		attribute->atttypid != column->type ||
		strcmp(NameStr(attribute->attname), column->name) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has been altered", RelationGetRelationName(rel))));
}

/* Opens and locks a table that can be compared. */
RowTable *
row_table_open(const PublishedTable *published, bool run_as_owner)
{
	RowTable   *result = palloc0(sizeof(RowTable));
	Relation	rel = try_table_open(published->relid, RowExclusiveLock);
	int			i = 0;

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table \"%s\" does not exist", published_table_name(published))));
	result->published = published;
	result->rel = rel;
	result->run_as_owner = run_as_owner;
	result->count = list_length(published->columns);
	result->columns = palloc(Max(result->count, 1) * sizeof(PublishedColumn *));
	result->in_key = palloc0(Max(result->count, 1) * sizeof(bool));
	foreach_ptr(PublishedColumn, column, published->columns)
	{
		check_column(rel, column);
		result->columns[i] = column;
		foreach_ptr(PublishedColumn, other, published->key)
			if (strcmp(column->name, other->name) == 0)
			result->in_key[i] = true;
		i++;
	}
	return result;
}

/* Closes the table; the lock is kept. */
void
row_table_close(RowTable *table)
{
	table_close(table->rel, NoLock);
}

/*
 * Becomes the user as whom apply changes the table: its owner, or, with run_as_owner, the
 * subscription's, who must be the current user.  Returns whether the caller has to call
 * RestoreUserContext.  Fails if that user may not read the table, or row-level
 * security applies.
 */
bool
row_table_begin(RowTable *table, UserContext *context)
{
	if (!table->run_as_owner)
		SwitchToUntrustedUser(table->rel->rd_rel->relowner, context);
	local_table_check_rights(table->rel, ACL_SELECT);
	return !table->run_as_owner;
}

static bool
same_text(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* Does a column belong to what identifies a row?  Without a key, all of them do. */
static bool
identifies(RowTable *table, int column)
{
	return table->in_key[column] || table->published->key == NIL;
}

/* Have two rows the same key?  In a table without one, they must be equal. */
bool
row_table_same_key(RowTable *table, RowValues a, RowValues b)
{
	for (int i = 0; i < table->count; i++)
		if (identifies(table, i) && !same_text(a[i], b[i]))
			return false;
	return true;
}

/* Appends the operator that tells whether two values of a type are equal. */
static void
append_operator(StringInfo query, Oid type)
{
	Oid			operator = lookup_type_cache(type, TYPECACHE_EQ_OPR)->eq_opr;
	HeapTuple	tuple = SearchSysCache1(OPEROID, ObjectIdGetDatum(operator));
	Form_pg_operator form;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("could not identify an equality operator for type %s",
						format_type_be(type))));
	form = (Form_pg_operator) GETSTRUCT(tuple);
	appendStringInfo(query, " OPERATOR(%s.%s) ",
					 quote_identifier(get_namespace_name(form->oprnamespace)),
					 NameStr(form->oprname));
	ReleaseSysCache(tuple);
}

/* Appends the condition that a column has a text, which is a parameter or literal. */
static void
append_text_condition(StringInfo query, const PublishedColumn *column, const char *text)
{
	const char *name = quote_identifier(column->name);

	if (text == NULL)
		appendStringInfo(query, "t.%s IS NULL", name);
	else
		appendStringInfo(query,
						 "(t.%s IS NOT NULL AND pg_catalog.format('%%s', t.%s)"
						 " OPERATOR(pg_catalog.=) %s COLLATE pg_catalog.\"C\")",
						 name, name, text);
}

/* The parameters of a local query. */
typedef struct Parameters
{
	int			count;
	Oid		   *types;
	Datum	   *values;
} Parameters;

/* Appends the condition that a column of the key has a value. */
static void
append_key_condition(StringInfo query, Parameters *parameters,
					 const PublishedColumn *column, char *text)
{
	Oid			type = getBaseType(column->type);
	Oid			function;
	Oid			param;

	/* The other server's value need not fit into this server's column. */
	getTypeInputInfo(type, &function, &param);
	parameters->types[parameters->count] = type;
	parameters->values[parameters->count++] = OidInputFunctionCall(function, text, param, -1);
	appendStringInfo(query, "t.%s", quote_identifier(column->name));
	append_operator(query, type);
	appendStringInfo(query, "$%d", parameters->count);
}

static void
append_conditions(StringInfo query, RowTable *table, RowValues row, Parameters *parameters)
{
	const char *conjunction = "";

	for (int i = 0; i < table->count; i++)
	{
		const PublishedColumn *column = table->columns[i];

		if (table->published->key != NIL && !table->in_key[i])
			continue;
		appendStringInfoString(query, conjunction);
		conjunction = " AND ";
		if (row[i] == NULL)
			append_text_condition(query, column, NULL);
		else if (table->in_key[i])
			append_key_condition(query, parameters, column, row[i]);
		else
		{
			parameters->types[parameters->count] = TEXTOID;
			parameters->values[parameters->count++] = CStringGetTextDatum(row[i]);
			append_text_condition(query, column, psprintf("$%d", parameters->count));
		}
	}
}

/* Returns the query that finds and locks local rows. */
static char *
local_query(RowTable *table, RowValues row, Parameters *parameters)
{
	StringInfoData query;
	const char *filter = table->published->filter[SIDE_LOCAL];

	initStringInfo(&query);
	appendStringInfo(&query, "SELECT t.tableoid, t.ctid, (%s) IS TRUE",
					 filter ? filter : "true");
	for (int i = 0; i < table->count; i++)
		appendStringInfo(&query, ", t.%s", quote_identifier(table->columns[i]->name));
	appendStringInfo(&query, " FROM %s%s t WHERE ",
					 table->rel->rd_rel->relkind == RELKIND_RELATION ? "ONLY " : "",
					 quote_qualified_identifier(get_namespace_name(RelationGetNamespace(table->rel)),
												RelationGetRelationName(table->rel)));
	append_conditions(&query, table, row, parameters);
	appendStringInfoString(&query, " FOR UPDATE OF t");
	return query.data;
}

/* Returns the text of a column of a result; NULL if it is null. */
static char *
column_text(HeapTuple tuple, TupleDesc desc, int number)
{
	bool		isnull;
	Datum		value = SPI_getbinval(tuple, desc, number, &isnull);
	Oid			function;
	bool		is_varlena;

	if (isnull)
		return NULL;
	getTypeOutputInfo(SPI_gettypeid(desc, number), &function, &is_varlena);
	return OidOutputFunctionCall(function, value);
}

/*
 * Compares the columns of a row that has been found with "wanted", which may be NULL.  Returns
 * false if it has not the key after all.
 */
static bool
compare_found(RowTable *table, FoundRow *found, HeapTuple tuple, TupleDesc desc, RowValues key,
			  RowValues wanted)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "weft text of a value",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	bool		result = true;

	found->equal = wanted != NULL;
	for (int i = 0; result && i < table->count; i++)
	{
		char	   *text;

		if (wanted == NULL && !identifies(table, i))
			continue;
		text = column_text(tuple, desc, i + 4);

		result = !identifies(table, i) || same_text(text, key[i]);
		if (wanted != NULL)
		{
			found->same[i] = same_text(text, wanted[i]);
			found->equal = found->equal && found->same[i];
		}
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return result;
}

/* Returns NULL if the row has not the key. */
static FoundRow *
read_found(RowTable *table, HeapTuple tuple, TupleDesc desc, RowValues key, RowValues wanted)
{
	FoundRow   *result = palloc0(sizeof(FoundRow));
	bool		isnull;

	result->relid = DatumGetObjectId(SPI_getbinval(tuple, desc, 1, &isnull));
	ItemPointerCopy((ItemPointer) DatumGetPointer(SPI_getbinval(tuple, desc, 2, &isnull)),
					&result->place);
	result->published = DatumGetBool(SPI_getbinval(tuple, desc, 3, &isnull));
	if (wanted != NULL)
		result->same = palloc(Max(table->count, 1) * sizeof(bool));
	return compare_found(table, result, tuple, desc, key, wanted) ? result : NULL;
}

/*
 * Finds and locks the local rows (FoundRow) that have the key of "key", or, in a table
 * without a key, all of its values; compares them with "wanted", unless that is NULL.  Called as
 * the user of row_table_begin().
 */
List *
row_table_find(RowTable *table, RowValues key, RowValues wanted)
{
	MemoryContext caller = CurrentMemoryContext;
	Parameters	parameters = {
		0,
		palloc(Max(table->count, 1) * sizeof(Oid)),
		palloc(Max(table->count, 1) * sizeof(Datum))
	};
	char	   *query = local_query(table, key, &parameters);
	List	   *result = NIL;

	SPI_connect();
	if (SPI_execute_with_args(query, parameters.count, parameters.types, parameters.values,
							  NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not look for a row");
	MemoryContextSwitchTo(caller);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		FoundRow   *found = read_found(table, SPI_tuptable->vals[i], SPI_tuptable->tupdesc,
									   key, wanted);

		if (found != NULL)
			result = lappend(result, found);
	}
	SPI_finish();
	return result;
}

/* Returns the condition that selects rows with these keys on the publisher. */
static char *
publisher_key_condition(RowTable *table, bool convert, List *rows)
{
	RowHash		hash = {.table = table->published,.convert = convert};
	List	   *keys = NIL;

	foreach_ptr(RowValue, row, rows)
	{
		char	  **key = palloc(list_length(table->published->key) * sizeof(char *));
		int			n = 0;

		foreach_ptr(PublishedColumn, column, table->published->key)
		{
			for (int i = 0; i < table->count; i++)
				if (strcmp(table->columns[i]->name, column->name) == 0)
					key[n] = row[i];
			n++;
		}
		keys = lappend(keys, key);
	}
	return row_hash_key_condition(&hash, SIDE_PUBLISHER, keys);
}

/* Returns the condition that selects rows equal to one of these on the publisher. */
static char *
publisher_row_condition(RowTable *table, List *rows)
{
	StringInfoData condition;

	initStringInfo(&condition);
	foreach_ptr(RowValue, row, rows)
	{
		appendStringInfoString(&condition, condition.len == 0 ? "(" : ") OR (");
		for (int i = 0; i < table->count; i++)
		{
			if (i > 0)
				appendStringInfoString(&condition, " AND ");
			append_text_condition(&condition, table->columns[i],
								  row[i] ? quote_literal_cstr(row[i]) : NULL);
		}
	}
	appendStringInfoChar(&condition, ')');
	return condition.data;
}

/*
 * Returns the query for the publisher's rows with the keys of these rows (RowValues), or that
 * are equal to them if the table has no key.  Its columns are those of the table, whose values are to
 * be read as text; "convert" is as in PublishedTables.  With "versions", one more column is
 * the row's version (member_version.h).
 */
char *
row_table_publisher_query(RowTable *table, bool convert, bool versions, List *rows)
{
	StringInfoData query;
	char	   *condition = table->published->key != NIL ?
		publisher_key_condition(table, convert, rows) : publisher_row_condition(table, rows);

	initStringInfo(&query);
	for (int i = 0; i < table->count; i++)
		appendStringInfo(&query, "%s t.%s", i == 0 ? "SELECT" : ",",
						 quote_identifier(table->columns[i]->name));
	if (versions)
		appendStringInfoString(&query, ", weft.member_row_version(t.tableoid, t.ctid)");
	appendStringInfo(&query, " FROM %s",
					 published_table_rows(table->published, SIDE_PUBLISHER, condition));
	return query.data;
}
