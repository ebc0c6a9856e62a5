/*
 * row_hash.c
 *	  SQL text of what is compared: hashes, keys and rows.
 *
 * A row's hash is a chain: the hash of each column is the seed of the next column's.  Therefore values that
 * change places, within a row or between rows, change the hash.  That is several times as fast as
 * hashing the text of whole rows, and no value of a row is ever put together with
 * another one, so a row can be larger than a text.
 *
 * Two hash functions of one chain have to agree on which values are equal: exactly those with the same
 * text.  Few types can be hashed without making a text of their values: integers (without folding
 * 64 bits into 32, as the server's function does), OIDs, booleans, UUIDs and
 * text itself, if the type is the same on both sides.  All others are hashed as
 * their text.  concat() makes it, with the type's output function; a cast to text may be something
 * else, even a function of a user.  A null value changes the seed, so that it is not
 * taken for an empty text or a zero.
 *
 * Sums of the hashes are compared.  Their type is numeric, so they do not overflow.
 *
 * A bytea of more than LARGE_BYTEA is hashed as the text of its digest, because its own text
 * may be too long for a text.
 *
 * If the databases have different encodings, then digests of texts that are converted to UTF8 are hashed.
 * The order of a jsonb's keys, and of a tsvector's lexemes, depends on the encoding, because it is one of
 * bytes; therefore these are hashed in an order of their own.  That helps only where they are a column's
 * type, not inside of arrays, domains and composite types.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "oid_alias.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "verify/row_hash.h"

/* Longer chains would be nested too deeply for the parser. */
#define LONGEST_CHAIN 50

/* Bytes of a bytea whose text, twice as long, is surely not a problem. */
#define LARGE_BYTEA 65536

/* How the values of a column are hashed, the same way on both sides. */
typedef enum HashMethod
{
	HASH_INT4,
	HASH_INT8,
	HASH_OID,
	HASH_BOOL,
	HASH_UUID,
	HASH_TEXT,					/* the value itself is a text */
	HASH_BPCHAR,
	HASH_BYTEA,
	HASH_OUTPUT,				/* its text */
} HashMethod;

static bool
is_integer(Oid type)
{
	return type == INT2OID || type == INT4OID || type == INT8OID;
}

static bool
is_text(Oid type)
{
	return type == TEXTOID || type == VARCHAROID;
}

static HashMethod
method_of(const RowHash *hash, const PublishedColumn *column)
{
	Oid			here = column->type;
	Oid			there = column->publisher_type;

	if (is_integer(here) && is_integer(there))
		return here == INT8OID || there == INT8OID ? HASH_INT8 : HASH_INT4;
	if (is_text(here) && is_text(there) && !hash->convert)
		return HASH_TEXT;
	if (here != there)
		return HASH_OUTPUT;
	switch (here)
	{
		case OIDOID:
			return HASH_OID;
		case BOOLOID:
			return HASH_BOOL;
		case UUIDOID:
			return HASH_UUID;
		case BYTEAOID:
			return HASH_BYTEA;
		case BPCHAROID:
			/* Its hash ignores blanks at the end; there must be equally many. */
			if (column->typmod == column->publisher_typmod && column->typmod > 0 && !hash->convert)
				return HASH_BPCHAR;
			return HASH_OUTPUT;
		default:
			return HASH_OUTPUT;
	}
}

/*
 * The text of a column's value, or an empty one if it is null.  A value of type "text" or
 * "varchar" is taken as it is.  Blanks at the end of a "character" mean nothing; there are as many of them
 * as its length on each side demands.
 */
static char *
output_text(const PublishedColumn *column)
{
	const char *name = quote_identifier(column->name);

	if (column->type == BPCHAROID && column->publisher_type == BPCHAROID &&
		column->typmod != column->publisher_typmod)
		return psprintf("pg_catalog.rtrim(pg_catalog.concat(%s))", name);
	return psprintf("pg_catalog.concat(%s)", name);
}

/*
 * All values inside of a jsonb, each with its path, in the order of their paths.  The value's name is
 * looked up where no other column can be meant.
 */
static const char jsonb_text[] =
"(WITH RECURSIVE part (path, value) AS ("
"SELECT ARRAY[]::pg_catalog.text[], %s UNION ALL"
" SELECT pg_catalog.array_append(p.path, x.step), x.value FROM part p, LATERAL ("
"SELECT pg_catalog.concat('.', o.key), o.value FROM pg_catalog.jsonb_each("
"CASE pg_catalog.jsonb_typeof(p.value) WHEN 'object' THEN p.value END) o (key, value)"
" UNION ALL SELECT pg_catalog.concat(a.number), a.value FROM pg_catalog.jsonb_array_elements("
"CASE pg_catalog.jsonb_typeof(p.value) WHEN 'array' THEN p.value END)"
" WITH ORDINALITY a (value, number)) x (step, value))"
" SELECT pg_catalog.string_agg(pg_catalog.concat(q.path,"
" CASE pg_catalog.jsonb_typeof(q.value) WHEN 'object' THEN '{}' WHEN 'array' THEN '[]'"
" ELSE pg_catalog.concat(q.value) END), ','"
" ORDER BY pg_catalog.convert_to(pg_catalog.concat(q.path), 'UTF8')) FROM part q)";

static const char tsvector_text[] =
"(SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', pg_catalog.quote_literal(u.lexeme),"
" u.positions, u.weights), ',' ORDER BY pg_catalog.convert_to(u.lexeme, 'UTF8'))"
" FROM pg_catalog.unnest(%s) u)";

/*
 * A text that has the same bytes on both sides.  It is equal there exactly if the
 * column's text is.
 */
static char *
hashable_text(const RowHash *hash, const PublishedColumn *column)
{
	const char *name = quote_identifier(column->name);
	char	   *text = output_text(column);

	if (!hash->convert)
		return psprintf("%s COLLATE pg_catalog.\"C\"", text);
	if (column->type == column->publisher_type && column->type == JSONBOID)
		text = psprintf(jsonb_text, name);

	else if (column->type == column->publisher_type && column->type == TSVECTOROID)
		text = psprintf(tsvector_text, name);

	return psprintf("pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(COALESCE(%s, ''), 'UTF8')),"
					" 'base64') COLLATE pg_catalog.\"C\"", text);
}

/* IS NULL would be true for a composite value whose fields are null. */
static char *
is_null(const char *name)
{
	return psprintf("%s IS NOT DISTINCT FROM NULL", name);
}

/* The hash (int8) of a column's value, with a seed that is an expression. */
static char *
column_hash(const RowHash *hash, const PublishedColumn *column, const char *seed)
{
	const char *name = quote_identifier(column->name);

	if (!column->not_null)
		seed = psprintf("%s # CASE WHEN %s THEN 1::pg_catalog.int8 ELSE 0::pg_catalog.int8 END",
						seed, is_null(name));
	switch (method_of(hash, column))
	{
		case HASH_INT4:
			return psprintf("pg_catalog.hashint4extended(COALESCE(%s::pg_catalog.int4, 0), %s)",
							name, seed);
		case HASH_INT8:

			/*
			 * The function folds the halves into one; with the upper half,
			 * that is reversible.
			 */
			return psprintf("pg_catalog.hashint4extended("
							"(COALESCE(%s::pg_catalog.int8, 0) >> 32)::pg_catalog.int4,"
							" pg_catalog.hashint8extended(COALESCE(%s::pg_catalog.int8, 0), %s))",
							name, name, seed);
		case HASH_OID:
			return psprintf("pg_catalog.hashoidextended(COALESCE(%s, 0::pg_catalog.oid), %s)",
							name, seed);
		case HASH_BOOL:
			return psprintf("pg_catalog.hashint4extended(COALESCE(%s, false)::pg_catalog.int4, %s)",
							name, seed);
		case HASH_UUID:
			return psprintf("pg_catalog.uuid_hash_extended(COALESCE(%s,"
							" '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid), %s)",
							name, seed);
		case HASH_TEXT:
			return psprintf("pg_catalog.hashtextextended(COALESCE(%s::pg_catalog.text, '')"
							" COLLATE pg_catalog.\"C\", %s)", name, seed);
		case HASH_BPCHAR:
			return psprintf("pg_catalog.hashbpcharextended(COALESCE(%s, '')"
							" COLLATE pg_catalog.\"C\", %s)", name, seed);
		case HASH_BYTEA:
			return psprintf("pg_catalog.hashtextextended(pg_catalog.concat(CASE"
							" WHEN pg_catalog.octet_length(%s) > %d"
							" THEN pg_catalog.sha256(%s) ELSE %s END) COLLATE pg_catalog.\"C\", %s)",
							name, LARGE_BYTEA, name, name, seed);
		case HASH_OUTPUT:
			break;
	}
	return psprintf("pg_catalog.hashtextextended(%s, %s)",
					hashable_text(hash, column), seed);
}

/* The hash of several columns; different kinds of hashes begin with different seeds. */
static char *
hash_of(const RowHash *hash, List *columns, int kind)
{
	char	   *chain = NULL;
	StringInfoData chains;
	int			count = 0;
	ListCell   *cell;

	initStringInfo(&chains);
	foreach(cell, columns)
	{
		if (foreach_current_index(cell) % LONGEST_CHAIN == 0)
		{
			if (chain != NULL)
				appendStringInfo(&chains, "%s, ", chain);
			chain = psprintf("%d::pg_catalog.int8", kind + 10 * ++count);
		}
		chain = column_hash(hash, lfirst(cell), chain);
	}
	if (count == 1)
		return chain;
	appendStringInfoString(&chains, chain);
	return psprintf("pg_catalog.hashtextextended(pg_catalog.concat_ws(',', %s)"
					" COLLATE pg_catalog.\"C\", %d)", chains.data, kind);
}

char *
row_hash_value(const RowHash *hash, CompareSide side)
{
	return hash_of(hash, hash->table->columns, 1);
}

char *
row_hash_key(const RowHash *hash, CompareSide side)
{
	if (hash->table->key == NIL)
		return row_hash_value(hash, side);
	return hash_of(hash, hash->table->key, 2);
}

/* "jsonb object of column -> text"; "texts" are expressions, one for each column. */
static char *
texts_object(List *columns, List *texts)
{
	StringInfoData names;
	StringInfoData values;
	ListCell   *column;
	ListCell   *text;

	initStringInfo(&names);
	initStringInfo(&values);
	forboth(column, columns, text, texts)
	{
		const char *comma = names.len > 0 ? ", " : "";

		appendStringInfo(&names, "%s%s", comma,
						 quote_literal_cstr(((PublishedColumn *) lfirst(column))->name));
		appendStringInfo(&values, "%s%s", comma, (char *) lfirst(text));
	}
	return psprintf("pg_catalog.jsonb_object(ARRAY[%s]::pg_catalog.text[],"
					" ARRAY[%s]::pg_catalog.text[])", names.data, values.data);
}

char *
row_hash_key_json(const RowHash *hash, CompareSide side)
{
	List	   *texts = NIL;
	ListCell   *cell;

	if (hash->table->key == NIL)
		return "NULL::pg_catalog.jsonb";
	foreach(cell, hash->table->key)
	{
		PublishedColumn *column = lfirst(cell);

		texts = lappend(texts, psprintf("CASE WHEN %s THEN NULL ELSE %s END",
										is_null(quote_identifier(column->name)),
										output_text(column)));
	}
	return texts_object(hash->table->key, texts);
}

/* Is the text of a value longer than ROW_HASH_LONGEST_TEXT?  Null if it is null. */
static char *
is_long(const RowHash *hash, const PublishedColumn *column)
{
	const char *name = quote_identifier(column->name);

	switch (method_of(hash, column))
	{
		case HASH_INT4:
		case HASH_INT8:
		case HASH_OID:
		case HASH_BOOL:
		case HASH_UUID:
			return "false";
		case HASH_TEXT:
		case HASH_BYTEA:
			/* does not read values that are stored out of line */
			return psprintf("pg_catalog.octet_length(%s) > %d", name,
							column->type == BYTEAOID ? ROW_HASH_LONGEST_TEXT / 2 :
							ROW_HASH_LONGEST_TEXT);
		default:
			return psprintf("pg_catalog.length(%s) > %d", output_text(column), ROW_HASH_LONGEST_TEXT);
	}
}

/* What stands for a long value: its beginning, its length and its hash. */
static char *
cut_text(const RowHash *hash, const PublishedColumn *column)
{
	const char *name = quote_identifier(column->name);
	HashMethod	method = method_of(hash, column);
	const char *begin;
	const char *length;

	if (method == HASH_BYTEA)
	{
		begin = psprintf("pg_catalog.concat(pg_catalog.substr(%s, 1, %d))", name,
						 ROW_HASH_LONGEST_TEXT / 4);
		length = psprintf("pg_catalog.octet_length(%s), ' bytes'", name);
	}
	else
	{
		const char *text = method == HASH_TEXT ? name : output_text(column);

		begin = psprintf("pg_catalog.left(%s, %d)", text, ROW_HASH_LONGEST_TEXT / 2);
		length = psprintf("pg_catalog.length(%s), ' characters'", text);
	}
	return psprintf("pg_catalog.concat(%s, '... (', %s, ', hash ', %s, ')')", begin, length,
					column_hash(hash, column, "1::pg_catalog.int8"));
}

char *
row_hash_row_json(const RowHash *hash, CompareSide side)
{
	List	   *texts = NIL;
	ListCell   *cell;

	foreach(cell, hash->table->columns)
	{
		PublishedColumn *column = lfirst(cell);
		const char *name = quote_identifier(column->name);

		texts = lappend(texts, psprintf("CASE WHEN %s THEN NULL WHEN %s THEN %s ELSE %s END",
										is_null(name), is_long(hash, column),
										cut_text(hash, column), output_text(column)));
	}
	return texts_object(hash->table->columns, texts);
}

/* Is no value of the row cut? */
static char *
is_whole(const RowHash *hash)
{
	StringInfoData condition;
	ListCell   *cell;

	initStringInfo(&condition);
	foreach(cell, hash->table->columns)
	{
		char	   *problem = is_long(hash, lfirst(cell));

		if (strcmp(problem, "false") != 0)
			appendStringInfo(&condition, "%s(%s) IS NOT TRUE",
							 condition.len > 0 ? " AND " : "", problem);
	}
	return condition.len > 0 ? condition.data : "true";
}

char *
row_hash_sums(const RowHash *hash, CompareSide side, const char *condition)
{
	return psprintf("SELECT pg_catalog.count(*), COALESCE(pg_catalog.sum(%s), 0) FROM %s",
					row_hash_value(hash, side),
					published_table_rows(hash->table, side, condition));
}

char *
row_hash_group_sums(const RowHash *hash, CompareSide side, const char *group,
					const char *condition)
{
	return psprintf("SELECT %s, pg_catalog.count(*), pg_catalog.sum(%s) FROM %s GROUP BY 1",
					group, row_hash_value(hash, side),
					published_table_rows(hash->table, side, condition));
}

char *
row_hash_list(const RowHash *hash, CompareSide side, const char *condition)
{
	return psprintf("SELECT %s, %s FROM %s", row_hash_key(hash, side),
					row_hash_value(hash, side),
					published_table_rows(hash->table, side, condition));
}

static char *
rows_where(const RowHash *hash, CompareSide side, const char *condition)
{
	return psprintf("SELECT %s, %s, %s, %s, %s FROM %s", row_hash_key(hash, side),
					row_hash_value(hash, side), row_hash_key_json(hash, side),
					row_hash_row_json(hash, side), is_whole(hash),
					published_table_rows(hash->table, side, condition));
}

char *
row_hash_rows(const RowHash *hash, CompareSide side, const char *condition,
			  const int64 *key_hashes, int count)
{
	StringInfoData all;

	initStringInfo(&all);
	if (condition != NULL)
		appendStringInfo(&all, "(%s) AND ", condition);
	appendStringInfo(&all, "%s = ANY ('{", row_hash_key(hash, side));
	for (int i = 0; i < count; i++)
		appendStringInfo(&all, "%s" INT64_FORMAT, i > 0 ? "," : "", key_hashes[i]);
	appendStringInfoString(&all, "}'::pg_catalog.int8[])");
	return rows_where(hash, side, all.data);
}

/* Do equal values of the column always have the same text? */
static bool
equal_is_same(const PublishedColumn *column, CompareSide side)
{
	switch (side == SIDE_LOCAL ? column->type : column->publisher_type)
	{
		case BOOLOID:
		case BYTEAOID:
		case DATEOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case OIDOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
		case UUIDOID:
			return true;
		case TEXTOID:
		case VARCHAROID:
			return side == SIDE_LOCAL ? column->binary_order : column->publisher_binary_order;
		default:
			return false;
	}
}

/*
 * Can the value be found by comparing it with any key's text?  Built-in operators are found, and what
 * one side writes the other one can read, if the types are the same.  The text of an
 * OID alias may name an object that only one side has.
 */
static bool
found_by_value(const PublishedColumn *column)
{
	return column->type == column->publisher_type &&
		column->type < FirstUnpinnedObjectId && !oid_alias_type(column->type);
}

/* "column = literal", so that the text is the same, too. */
static void
append_equal(StringInfo condition, const PublishedColumn *column, CompareSide side,
			 const char *text)
{
	const char *name = quote_identifier(column->name);
	char	   *literal = quote_literal_cstr(text);
	bool		integer = is_integer(column->type) && is_integer(column->publisher_type);
	bool		by_value = integer || found_by_value(column);

	if (by_value)
		appendStringInfo(condition, "%s = %s%s", name, literal,
						 integer ? "::pg_catalog.int8" : "");
	if (!by_value || !equal_is_same(column, side))
		appendStringInfo(condition, "%s%s COLLATE pg_catalog.\"C\" = %s",
						 by_value ? " AND " : "", output_text(column), literal);
}

char *
row_hash_key_condition(const RowHash *hash, CompareSide side, List *keys)
{
	List	   *columns = hash->table->key;
	StringInfoData condition;
	ListCell   *key;

	initStringInfo(&condition);
	foreach(key, keys)
	{
		char	  **texts = lfirst(key);
		ListCell   *cell;

		appendStringInfoString(&condition, condition.len > 0 ? " OR (" : "(");
		foreach(cell, columns)
		{
			int			number = foreach_current_index(cell);

			if (number > 0)
				appendStringInfoString(&condition, " AND ");
			append_equal(&condition, lfirst(cell), side, texts[number]);
		}
		appendStringInfoChar(&condition, ')');
	}
	return condition.len > 0 ? condition.data : "false";
}

char *
row_hash_rows_by_key(const RowHash *hash, CompareSide side, List *keys)
{
	return rows_where(hash, side, row_hash_key_condition(hash, side, keys));
}

char *
row_hash_bucket(const RowHash *hash, CompareSide side, int buckets)
{
	return psprintf("(%s & %d)::pg_catalog.int4", row_hash_key(hash, side), buckets - 1);
}

char *
row_hash_bucket_condition(const RowHash *hash, CompareSide side, int buckets,
						  const int *numbers, int count)
{
	StringInfoData condition;

	initStringInfo(&condition);
	appendStringInfo(&condition, "%s = ANY ('{", row_hash_bucket(hash, side, buckets));
	for (int i = 0; i < count; i++)
		appendStringInfo(&condition, "%s%d", i > 0 ? "," : "", numbers[i]);
	appendStringInfoString(&condition, "}'::pg_catalog.int4[])");
	return condition.data;
}
