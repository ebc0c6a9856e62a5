/*
 * lookup_unit.c
 *	  Unit tests of fast/lookup.c and fast/leaf_map.c: whatever the key, rows are found where the
 *	  server's own scan of the index finds them.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/nbtree.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/namespace.h"
#include "common/hashfn.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "fast/lookup.h"
#include "unit.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#define KEYS 6000				/* of which the table has some */
#define ROUNDS 4
#define LOOKUPS_PER_ROUND 1000

/* Less than KEYS, so that rows share remembered places. */
#define HASHES 2000

/* Misses after which a map of these small indexes is read. */
#define MISSES 200

/* A table's key, as an index, and as rows that have the key. */
typedef struct Shape
{
	const char *columns;		/* a, b and c */
	const char *index;			/* of these */
	const char *key;			/* i is 1 .. KEYS */
	bool		has_map;
} Shape;

#define WORDS "substr(translate(md5(i::text), '0123456789', 'aaaabbbbcc'), 1, 6 + i % 15) || i"

static const Shape shapes[] = {
	{"a int2", "a", "i - 3000", true},
	{"a int4", "a", "i * 7 - 20000", true},
	{"a int8", "a DESC", "hashint8extended(i, 0)", true},
	{"a int8", "a", "CASE i WHEN 1 THEN -9223372036854775808 WHEN 2 THEN 9223372036854775807 ELSE i END", true},
	{"a oid", "a", "hashint4(i)::int8 + 2147483648", true},
	{"a lookup_number", "a", "i - 3000", true},
	{"a int4", "a lookup_reverse_ops", "i - 3000", false},
	{"a date", "a DESC",
	"CASE i WHEN 1 THEN 'infinity' WHEN 2 THEN '-infinity' ELSE '4713-01-01 BC'::date + i * 300 END", true},
	{"a timestamp", "a NULLS FIRST", "'2000-01-01'::timestamp + (i - 3000) * '1 s'::interval", true},
	{"a timestamptz, b int4", "a, b",
	"CASE i % 9 WHEN 1 THEN 'infinity' WHEN 2 THEN '-infinity' ELSE '2000-01-01'::timestamptz + (i - 3000) * '1 s'::interval END, i", true},
	{"a time", "a", "'00:00'::time + i * '1 s'::interval", false},
	{"a uuid", "a", "md5(i::text)::uuid", true},
	{"a uuid", "a DESC NULLS LAST", "md5(i::text)::uuid", true},
	{"a uuid", "a", "lpad(to_hex(i), 32, '0')::uuid", true},
	{"a text COLLATE \"C\"", "a", WORDS, true},
	{"a text COLLATE \"POSIX\"", "a DESC", WORDS, true},
	{"a varchar(40) COLLATE \"C\"", "a", WORDS, true},
	{"a text COLLATE \"C\"", "a", "repeat('same', i % 4) || i", true},
	{"a text COLLATE \"C\"", "a", "'the same first bytes ' || i", false},
	{"a text COLLATE \"C\"", "a", "repeat(md5(i::text), CASE WHEN i % 50 = 0 THEN 40 ELSE 1 END)", true},
	{"a text COLLATE \"C\"", "a text_pattern_ops", WORDS, false},
	{"a text COLLATE \"en-x-icu\"", "a", WORDS, false},
	{"a text COLLATE lookup_any_case", "a", "CASE WHEN i % 2 = 0 THEN upper(" WORDS ") ELSE " WORDS " END", false},
	{"a char(40) COLLATE \"C\"", "a", WORDS, false},
	{"a name", "a", WORDS, false},
	{"a bytea", "a", "decode(substr(md5(i::text), 1, 2 * (i % 17)) || lpad(to_hex(i), 8, '0'), 'hex')", true},
	{"a bytea", "a", "decode(repeat('00', i % 20) || lpad(to_hex(i), 8, '0'), 'hex')", false},
	{"a numeric", "a", "i - 3000.5", false},
	{"a float8", "a", "i - 3000.5", false},
	{"a interval", "a", "i * '1 h'::interval", false},
	{"a int4, b int4", "b, a", "i % 7 - 3, i", true},
	{"a int4, b int4", "a DESC, b NULLS FIRST", "i % 7 - 3, i - 3000", true},
	{"a int8, b int8", "a, b", "i % 7 - 3, i", true},
	{"a int8, b int8", "a DESC, b DESC", "i % 7 - 3, i - 3000", true},
	{"a int4, b int4, c int4", "a, b) INCLUDE (c", "i % 300, i, i", true},
	{"a int2, b int8, c int8", "a, b DESC, c", "i % 3 - 1, i % 2 - 2, i", false},
	{"a int4, b text COLLATE \"C\"", "a DESC, b DESC", "i % 1000 - 500, " WORDS, true},
	{"a text COLLATE \"C\", b int4", "a, b", "left(md5((i / 3)::text), 9), i", true},
	{"a uuid, b int4", "a, b", "md5((i / 3)::text)::uuid, i", true},
	{"a int4, b numeric", "a, b", "i % 2000, i", true},
	{"a lookup_color, b int4", "a, b", "CASE WHEN i % 2 = 0 THEN 'red' ELSE 'green' END::lookup_color, i", false},
	{"a int4[]", "a", "ARRAY[i % 100, i]", false},
};

/* A global, for messages: the table that is looked at. */
static const Shape *shape;

/* Ends the test, and says with which table. */
static void
must(bool condition, const char *what)
{
	if (!condition)
		elog(ERROR, "key (%s), index (%s): not so: %s", shape->columns, shape->index, what);
}

static void
run(const char *sql)
{
	SPI_execute(sql, false, 0);
}

static void
make_types(void)
{
	run("SET LOCAL client_min_messages = warning;"
		"CREATE DOMAIN lookup_number AS int4 CHECK (VALUE > -10000);"
		"CREATE TYPE lookup_color AS ENUM ('red', 'green');"
		"CREATE COLLATION lookup_any_case"
		" (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
		"CREATE FUNCTION lookup_reverse(int4, int4) RETURNS int4 LANGUAGE internal IMMUTABLE STRICT"
		" AS 'btint4cmp';"
		"CREATE FUNCTION lookup_reversed(int4, int4) RETURNS int4 LANGUAGE sql IMMUTABLE STRICT"
		" RETURN lookup_reverse($2, $1);"
		"CREATE OPERATOR CLASS lookup_reverse_ops FOR TYPE int4 USING btree AS"
		" OPERATOR 1 >, OPERATOR 2 >=, OPERATOR 3 =, OPERATOR 4 <=, OPERATOR 5 <,"
		" FUNCTION 1 lookup_reversed(int4, int4);");
}

static Oid
oid_of(const char *name)
{
	return get_relname_relid(name, LookupExplicitNamespace("public", false));
}

/* Makes the table, half of whose possible rows exist, and all possible keys. */
static void
make_table(void)
{
	run(psprintf("DROP TABLE IF EXISTS lookup_rows, lookup_keys;"
				 "CREATE TABLE lookup_rows (%s, i int, body text) WITH (autovacuum_enabled = off);"
				 "CREATE TABLE lookup_keys AS SELECT * FROM lookup_rows;"
				 "INSERT INTO lookup_keys SELECT %s, i, '' FROM generate_series(1, %d) i;"
				 "INSERT INTO lookup_rows SELECT * FROM lookup_keys WHERE i %% 2 = 0 ORDER BY hashint4(i);"
				 "CREATE UNIQUE INDEX lookup_index ON lookup_rows (%s)",
				 shape->columns, shape->key, KEYS, shape->index));
}

/* As fast_table.c describes and opens a table. */
static FastRelation *
open_table(LogicalRepRelId relid)
{
	FastRelation *relation = palloc0(sizeof(FastRelation));
	Relation	rel = table_open(oid_of("lookup_rows"), RowExclusiveLock);
	Relation	index;

	relation->remote_relid = relid;
	relation->rel = rel;
	relation->index = oid_of("lookup_index");
	relation->estate = CreateExecutorState();
	relation->info = makeNode(ResultRelInfo);
	InitResultRelInfo(relation->info, rel, 1, NULL, 0);
	ExecOpenIndices(relation->info, false);
	relation->found = table_slot_create(rel, NULL);
	index = relation->info->ri_IndexRelationDescs[0];
	CHECK_EQUAL(RelationGetRelid(index), relation->index);
	relation->num_keys = IndexRelationGetNumberOfKeyAttributes(index);
	for (int i = 0; i < relation->num_keys; i++)
	{
		Oid			type = index->rd_opcintype[i];
		Oid			operator = get_opfamily_member(index->rd_opfamily[i], type, type,
												   BTEqualStrategyNumber);

		relation->key_columns[i] = index->rd_index->indkey.values[i] - 1;
		ScanKeyEntryInitialize(&relation->keys[i], 0, i + 1, BTEqualStrategyNumber, InvalidOid,
							   index->rd_indcollation[i], get_opcode(operator), (Datum) 0);
	}
	relation->leaf_map = leaf_map_describe(index);
	return relation;
}

static void
close_table(FastRelation *relation)
{
	if (relation->scan)
		index_endscan(relation->scan);
	if (relation->leaf_map)
		leaf_map_forget(relation->leaf_map);
	lookup_forget_places(relation);
	ExecDropSingleTupleTableSlot(relation->found);
	ExecCloseIndices(relation->info);
	FreeExecutorState(relation->estate);
	table_close(relation->rel, NoLock);
}

/* Sets what is looked for: the key of row "i", which may not exist. */
static void
set_key(FastRelation *relation, SPITupleTable *keys, int i)
{
	bool		isnull;

	for (int key = 0; key < relation->num_keys; key++)
		relation->keys[key].sk_argument = SPI_getbinval(keys->vals[i], keys->tupdesc,
														relation->key_columns[key] + 1, &isnull);
	relation->key_hash = hash_uint32(i % HASHES);
}

/* Returns where the server's scan of the index finds the row, or an invalid place. */
static ItemPointerData
place_by_server(FastRelation *relation, TupleTableSlot *slot)
{
	Relation	index = relation->info->ri_IndexRelationDescs[0];
	ItemPointerData result;
	SnapshotData dirty;
	IndexScanDesc scan;

	InitDirtySnapshot(dirty);
	scan = compat_index_beginscan(relation->rel, index, &dirty, relation->num_keys);
	index_rescan(scan, relation->keys, relation->num_keys, NULL, 0);
	ItemPointerSetInvalid(&result);
	if (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		result = slot->tts_tid;
		CHECK(!index_getnext_slot(scan, ForwardScanDirection, slot));
	}
	index_endscan(scan);
	return result;
}

static void
compare(FastRelation *relation, TupleTableSlot *slot)
{
	ItemPointerData expected = place_by_server(relation, slot);
	bool		found = lookup_row(relation);

	must(!found || ItemPointerIsValid(&expected), "no row is found that is not there");
	must(found || !ItemPointerIsValid(&expected), "a row that is there is found");
	must(!found || ItemPointerEquals(&expected, &relation->found->tts_tid),
		 "the right row is found");
	ExecClearTuple(relation->found);
}

/*
 * A map that has just been read tells where a row is, unless too many keys have the same
 * prefix: then what it tells belongs to rows with that prefix.
 */
static void
check_map(FastRelation *relation, SPITupleTable *keys)
{
	Relation	index = relation->info->ri_IndexRelationDescs[0];
	TupleTableSlot *slot = table_slot_create(relation->rel, NULL);
	ItemPointerData places[LEAF_MAP_MAX_PLACES];
	KeyPrefix	lowest = {0, 0};
	const KeyPrefixForm *form;
	int			found = 0;
	int			known = 0;

	if (relation->leaf_map == NULL)
	{
		must(!shape->has_map, "there is a map");
		return;
	}
	form = leaf_map_form(relation->leaf_map);
	for (int i = 0; i < MISSES; i++)
		leaf_map_places(relation->leaf_map, index, lowest, places);
	for (int i = 0; i < KEYS; i++)
	{
		KeyPrefix	prefix;
		ItemPointerData expected;
		int			num;
		bool		told = false;

		set_key(relation, keys, i);
		prefix = key_prefix_of_keys(form, relation->keys);
		num = leaf_map_places(relation->leaf_map, index, prefix, places);
		must(num <= LEAF_MAP_MAX_PLACES, "there are few places");
		must(num == 0 || shape->has_map, "there is no map");
		expected = place_by_server(relation, slot);
		if (!ItemPointerIsValid(&expected))
			continue;
		for (int n = 0; n < num; n++)
			told |= ItemPointerEquals(&places[n], &expected);
		found++;
		known += told;
	}
	CHECK_EQUAL(found, KEYS / 2);
	must(!shape->has_map || known > found * 8 / 10, "the map knows most rows");
	ExecDropSingleTupleTableSlot(slot);
}

/* Changes rows, and has pages of the index split; most places that were known are wrong now. */
static void
change_rows(int round)
{
	int			seed = unit_random(1000000);

	run(psprintf("UPDATE lookup_rows SET body = body || 'x' WHERE (hashint4(i) + %d) %% 5 = 0;"
				 "DELETE FROM lookup_rows WHERE (hashint4(i) + %d) %% 7 = 0;"
				 "UPDATE lookup_rows SET body = repeat('long', 50) WHERE i %% 13 = %d;"
				 "INSERT INTO lookup_rows SELECT * FROM lookup_keys k"
				 " WHERE (hashint4(i) + %d) %% 3 = 0"
				 " AND NOT EXISTS (SELECT FROM lookup_rows r WHERE r.i = k.i);"
				 "DELETE FROM lookup_rows WHERE i BETWEEN %d AND %d;"
				 "INSERT INTO lookup_rows SELECT * FROM lookup_keys WHERE i BETWEEN %d AND %d",
				 seed, seed, round, seed,
				 round * 100, round * 100 + 99, round * 100 + 10, round * 100 + 19));
}

static void
try_shape(LogicalRepRelId relid)
{
	SPITupleTable *keys;
	FastRelation *relation;
	TupleTableSlot *slot;

	make_table();
	run("SELECT * FROM lookup_keys ORDER BY i");
	keys = SPI_tuptable;
	CHECK_EQUAL(SPI_processed, KEYS);
	relation = open_table(relid);
	check_map(relation, keys);
	slot = table_slot_create(relation->rel, NULL);
	for (int round = 0; round < ROUNDS; round++)
	{
		for (int n = 0; n < LOOKUPS_PER_ROUND; n++)
		{
			set_key(relation, keys, unit_random(KEYS));
			compare(relation, slot);
		}
		/* in the order in which rows are stored */
		for (int i = 1; i < 200; i++)
		{
			set_key(relation, keys, round * 100 + i);
			compare(relation, slot);
		}
		change_rows(round);
	}
	ExecDropSingleTupleTableSlot(slot);
	close_table(relation);
	SPI_freetuptable(keys);
}

static void
same_as_by_server(void)
{
	SPI_connect();
	make_types();
	for (int i = 0; i < lengthof(shapes); i++)
	{
		shape = &shapes[i];
		try_shape(i + 1);
	}
	SPI_finish();
}

static const UnitTest tests[] = {
	{"same_as_by_server", same_as_by_server},
	{NULL, NULL}
};

const Unit	lookup_unit = {"lookup", tests};
