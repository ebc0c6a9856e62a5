/*
 * key_prefix_unit.c
 *	  Unit tests of fast/key_prefix.c: prefixes have the order of the index, and are the same
 *	  from whichever form of a key they are made.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/nbtree.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "executor/spi.h"
#include "fast/key_prefix.h"
#include "fmgr.h"
#include "unit.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#define MAX_COLUMNS 3

/* A key as an index, and as rows that have the key. */
typedef struct Example
{
	const char *columns;		/* of the table, a, b and c */
	const char *index;			/* of these */
	const char *rows;			/* i is 1 .. 2000, r is random below 1 */
	int			length;			/* of a prefix, or 0: there is none */
	bool		sent_as_text;	/* a prefix can be made of the value's text */
} Example;

#define WORDS "substr(translate(md5(i::text), '0123456789', 'aaaabbbbcc'), 1, i % 21)"

static const Example examples[] = {
	{"a int2", "a", "(65535 * r)::int - 32768", 2, true},
	{"a int4", "a", "(4294967295 * r)::int8 - 2147483648", 4, true},
	{"a int4", "a", "i - 1000", 4, true},
	{"a int8", "a", "((r - 0.5) * 1.8e19)::int8", 8, true},
	{"a int8", "a DESC", "((r - 0.5) * 1.8e19)::int8", 8, true},
	{"a oid", "a", "(4294967295 * r)::int8::oid", 4, true},
	{"a date", "a", "'2000-01-01'::date + i - 1000", 4, false},
	{"a timestamp", "a", "'2000-01-01'::timestamp + (i - 1000) * r * '1 day'::interval", 8, false},
	{"a timestamptz", "a", "CASE WHEN i % 100 = 0 THEN '-infinity' ELSE now() - i * '1 h'::interval END",
	8, false},
	{"a uuid", "a", "md5(r::text)::uuid", 16, true},
	{"a uuid", "a DESC", "md5(r::text)::uuid", 16, true},
	{"a text COLLATE \"C\"", "a", WORDS, 16, true},
	{"a varchar(30) COLLATE \"C\"", "a", WORDS, 16, true},
	{"a text COLLATE \"C\"", "a DESC", WORDS, 16, true},
	{"a bytea", "a", "decode(substr(md5(r::text), 1, 2 * (i % 17)), 'hex')", 16, false},
	{"a int4, b int4", "a, b", "i % 7 - 3, ((r - 0.5) * 4e9)::int", 8, true},
	{"a int4, b int4", "a DESC, b", "i % 7 - 3, ((r - 0.5) * 4e9)::int", 8, true},
	{"a int4, b int4", "b, a", "i % 7 - 3, ((r - 0.5) * 4e9)::int", 8, true},
	{"a int8, b int8", "a, b", "i % 7 - 3, ((r - 0.5) * 1.8e19)::int8", 16, true},
	{"a int8, b int8", "a, b", "i % 7 - 3, i", 16, true},
	{"a int4, b int8", "a, b", "i % 7 - 3, ((r - 0.5) * 1.8e19)::int8", 12, true},
	{"a int2, b int8, c int8", "a, b DESC, c",
	"i % 3 - 1, i % 5 - 2, ((r - 0.5) * 1.8e19)::int8", 16, true},
	{"a uuid, b int4", "a, b", "md5((i % 300)::text)::uuid, i", 16, true},
	{"a int4, b uuid", "a, b", "i % 7 - 3, md5(r::text)::uuid", 16, true},
	{"a int4, b text COLLATE \"C\"", "a, b DESC", "i % 7 - 3, " WORDS, 16, true},
	{"a text COLLATE \"C\", b int4", "a, b", WORDS ", i", 16, true},
	{"a int4, b numeric", "a, b", "i % 7 - 3, r", 4, true},
	{"a numeric", "a", "r", 0, false},
	{"a text COLLATE \"C\"", "a text_pattern_ops", WORDS, 0, false},
	{"a text COLLATE \"en-x-icu\"", "a", WORDS, 0, false},
	{"a char(20) COLLATE \"C\"", "a", WORDS, 0, false},
};

/* Makes what a publisher sends of a value, in the current memory context. */
static WireColumn
send_value(Oid type, Datum value, bool binary)
{
	WireColumn	sent;
	Oid			function;
	bool		varlena;

	if (binary)
	{
		bytea	   *bytes;

		getTypeBinaryOutputInfo(type, &function, &varlena);
		bytes = OidSendFunctionCall(function, value);
		sent.status = LOGICALREP_COLUMN_BINARY;
		sent.length = VARSIZE(bytes) - VARHDRSZ;
		sent.data = VARDATA(bytes);
	}
	else
	{
		getTypeOutputInfo(type, &function, &varlena);
		sent.status = LOGICALREP_COLUMN_TEXT;
		sent.data = OidOutputFunctionCall(function, value);
		sent.length = strlen(sent.data);
	}
	return sent;
}

/* Is the prefix of a row's key the same from each of its forms?  Returns it. */
static KeyPrefix
prefix_of_row(const Example *example, const KeyPrefixForm *form, Relation index, HeapTuple row,
			  TupleDesc desc)
{
	Datum		values[MAX_COLUMNS];
	bool		isnull[MAX_COLUMNS] = {false};
	ScanKeyData keys[MAX_COLUMNS];
	WireColumn	sent[MAX_COLUMNS];
	IndexTuple	entry;
	KeyPrefix	prefix;
	KeyPrefix	other;

	for (int binary = 0; binary < 2; binary++)
	{
		bool		possible;

		for (int i = 0; i < index->rd_index->indnkeyatts; i++)
		{
			int			column = index->rd_index->indkey.values[i];

			values[i] = SPI_getbinval(row, desc, column, &isnull[i]);
			keys[i].sk_argument = values[i];
			sent[i] = send_value(SPI_gettypeid(desc, column), values[i], binary);
		}
		prefix = key_prefix_of_keys(form, keys);
		possible = key_prefix_of_sent(form, sent, &other);
		CHECK_EQUAL(possible, binary || example->sent_as_text);
		CHECK(!possible || key_prefix_equal(prefix, other));
	}
	entry = index_form_tuple(RelationGetDescr(index), values, isnull);
	CHECK(key_prefix_equal(prefix, key_prefix_of_entry(form, index, entry)));
	return prefix;
}

static void
try_example(const Example *example)
{
	Oid			namespace;
	Relation	index;
	KeyPrefixForm form;
	bool		described;
	int			different = 0;
	KeyPrefix	last = {0, 0};

	SPI_execute(psprintf("SET LOCAL client_min_messages = warning;"
						 "DROP TABLE IF EXISTS prefixes;"
						 "CREATE TEMP TABLE prefixes (%s);"
						 "SELECT setseed(0.5);"
						 "INSERT INTO prefixes SELECT %s FROM"
						 " (SELECT i, random() AS r FROM generate_series(1, 2000) i OFFSET 0);"
						 "CREATE INDEX prefixes_key ON prefixes (%s)",
						 example->columns, example->rows, example->index), false, 0);
	SPI_execute(psprintf("SELECT * FROM prefixes ORDER BY %s",
						 strstr(example->index, "_ops") ? "a" : example->index), false, 0);
	CHECK_EQUAL(SPI_processed, 2000);
	namespace = LookupExplicitNamespace("pg_temp", false);
	index = index_open(get_relname_relid("prefixes_key", namespace), AccessShareLock);
	described = key_prefix_describe(index, &form);
	CHECK_EQUAL(described ? form.length : 0, example->length);
	for (uint64 i = 0; i < SPI_processed && described; i++)
	{
		KeyPrefix	prefix = prefix_of_row(example, &form, index, SPI_tuptable->vals[i],
										   SPI_tuptable->tupdesc);

		CHECK(!key_prefix_less(prefix, last));
		CHECK(key_prefix_equal(prefix, last) || key_prefix_distance(last, prefix) > 0);
		different += !key_prefix_equal(prefix, last);
		last = prefix;
	}
	CHECK(!described || different >= 7);
	index_close(index, AccessShareLock);
}

static void
have_the_order_of_the_index(void)
{
	SPI_connect();
	for (int i = 0; i < lengthof(examples); i++)
		try_example(&examples[i]);
	SPI_finish();
}

/* An entry above the leaf pages may lack its last columns. */
static void
shorter_entry_comes_first(void)
{
	Oid			namespace;
	Relation	index;
	KeyPrefixForm form;
	Datum		values[2] = {Int32GetDatum(-5), Int32GetDatum(PG_INT32_MIN + 1)};
	bool		isnull[2] = {false, false};
	IndexTuple	entry;
	KeyPrefix	whole;
	KeyPrefix	empty = {0, 0};

	SPI_connect();
	SPI_execute("CREATE TEMP TABLE prefixes (a int, b int);"
				"CREATE INDEX prefixes_key ON prefixes (a, b)", false, 0);
	namespace = LookupExplicitNamespace("pg_temp", false);
	index = index_open(get_relname_relid("prefixes_key", namespace), AccessShareLock);
	CHECK(key_prefix_describe(index, &form));
	entry = index_form_tuple(RelationGetDescr(index), values, isnull);
	whole = key_prefix_of_entry(&form, index, entry);
	BTreeTupleSetNAtts(entry, 1, false);
	CHECK(key_prefix_less(key_prefix_of_entry(&form, index, entry), whole));
	BTreeTupleSetNAtts(entry, 0, false);
	CHECK(key_prefix_equal(key_prefix_of_entry(&form, index, entry), empty));
	index_close(index, AccessShareLock);
	SPI_finish();
}

/* What is not a value is not read as one. */
static void
wrong_values(void)
{
	static const struct
	{
		KeyPart		part;
		WireColumn	sent;
	}			wrong[] = {
		{{KEY_PART_INTEGER, 4, 4}, {LOGICALREP_COLUMN_BINARY, 3, "abc"}},
		{{KEY_PART_INTEGER, 4, 4}, {LOGICALREP_COLUMN_BINARY, 8, "abcdefgh"}},
		{{KEY_PART_INTEGER, 4, 4}, {LOGICALREP_COLUMN_TEXT, 0, ""}},
		{{KEY_PART_INTEGER, 4, 4}, {LOGICALREP_COLUMN_TEXT, 2, "1a"}},
		{{KEY_PART_INTEGER, 4, 4}, {LOGICALREP_COLUMN_NULL, 0, NULL}},
		{{KEY_PART_INTEGER, 4, 4}, {LOGICALREP_COLUMN_UNCHANGED, 0, NULL}},
		{{KEY_PART_UUID, 16, 16}, {LOGICALREP_COLUMN_BINARY, 15, "abcdefghijklmno"}},
		{{KEY_PART_UUID, 16, 16}, {LOGICALREP_COLUMN_TEXT, 31, "0123456789abcdef0123456789abcde"}},
		{{KEY_PART_UUID, 16, 16}, {LOGICALREP_COLUMN_TEXT, 33, "0123456789abcdef0123456789abcdef0"}},
		{{KEY_PART_UUID, 16, 16}, {LOGICALREP_COLUMN_TEXT, 32, "g123456789abcdef0123456789abcdef"}},
		{{KEY_PART_TEXT, -1, 16}, {LOGICALREP_COLUMN_NULL, 0, NULL}},
		{{KEY_PART_BYTEA, -1, 16}, {LOGICALREP_COLUMN_TEXT, 4, "\\x61"}},
	};

	for (int i = 0; i < lengthof(wrong); i++)
	{
		KeyPrefixForm form = {1, wrong[i].part.used, {wrong[i].part}};
		KeyPrefix	prefix;

		CHECK(!key_prefix_of_sent(&form, &wrong[i].sent, &prefix));
	}
}

static const UnitTest tests[] = {
	{"have_the_order_of_the_index", have_the_order_of_the_index},
	{"shorter_entry_comes_first", shorter_entry_comes_first},
	{"wrong_values", wrong_values},
	{NULL, NULL}
};

const Unit	key_prefix_unit = {"key_prefix", tests};
