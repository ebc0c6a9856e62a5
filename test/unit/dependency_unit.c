/*
 * dependency_unit.c
 *	  Unit tests of receive/dependency.c: each rule of the dependency table.
 *
 * T1, T2 ... are transactions with that seq.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "libpq/pqformat.h"
#include "receive/dependency.h"
#include "ring/layout.h"
#include "unit.h"

/* Stands for a value that is not sent because it has not changed. */
#define UNCHANGED ((const char *) -1)

/* A row: up to three values.  A value that is NULL is sent as a null. */
typedef struct Row
{
	const char *values[3];
} Row;

#define ROW(...) ((Row) {{__VA_ARGS__}})
#define NONE ((uint16) 0)

/* A relation whose first num_keys columns are its replica identity. */
static LeaderRelation
make_relation(int natts, int num_keys)
{
	LeaderRelation relation = {0};

	relation.relid = 1;
	relation.natts = natts;
	relation.num_keys = num_keys;
	relation.keys = palloc(sizeof(int16) * Max(natts, 1));
	for (int i = 0; i < num_keys; i++)
		relation.keys[i] = i;
	relation.seed = 4711;
	relation.class = RELATION_PARALLEL;
	dependency_reset();
	return relation;
}

static void
put_row(StringInfo message, int natts, const Row *row)
{
	pq_sendint16(message, natts);
	for (int i = 0; i < natts; i++)
	{
		const char *value = row->values[i];

		if (value == NULL)
			pq_sendbyte(message, LOGICALREP_COLUMN_NULL);
		else if (value == UNCHANGED)
			pq_sendbyte(message, LOGICALREP_COLUMN_UNCHANGED);
		else
		{
			pq_sendbyte(message, LOGICALREP_COLUMN_TEXT);
			pq_sendint32(message, strlen(value));
			appendStringInfoString(message, value);
		}
	}
}

/* Builds a change; old_kind is 'K', 'O' or 0, rows that it does not have are NULL. */
static StringInfo
make_change(int natts, char type, char old_kind, const Row *old, const Row *new)
{
	StringInfo	message = makeStringInfo();

	pq_sendbyte(message, type);
	pq_sendint32(message, 1);
	if (old)
	{
		pq_sendbyte(message, old_kind);
		put_row(message, natts, old);
	}
	if (new)
	{
		pq_sendbyte(message, 'N');
		put_row(message, natts, new);
	}
	return message;
}

/* The dependency of a message that is no longer than "length". */
static const char *
read_change(LeaderRelation *relation, StringInfo message, int length, uint64 seq,
			Dependency *dependency)
{
	WireChange	change;
	const char *problem = wire_read_change(message->data, length, false, &change);

	if (problem == NULL)
		*dependency = dependency_of_change(relation, &change, seq, &problem);
	return problem;
}

static Dependency
depend(LeaderRelation *relation, uint64 seq, char type, char old_kind,
	   const Row *old, const Row *new)
{
	StringInfo	message = make_change(relation->natts, type, old_kind, old, new);
	Dependency	dependency;

	CHECK_TEXT(read_change(relation, message, message->len, seq, &dependency), NULL);
	pfree(message->data);
	pfree(message);
	return dependency;
}

static Dependency
insert(LeaderRelation *relation, uint64 seq, Row row)
{
	return depend(relation, seq, LOGICAL_REP_MSG_INSERT, 0, NULL, &row);
}

static Dependency
update(LeaderRelation *relation, uint64 seq, Row row)
{
	return depend(relation, seq, LOGICAL_REP_MSG_UPDATE, 0, NULL, &row);
}

static Dependency
update_old(LeaderRelation *relation, uint64 seq, char old_kind, Row old, Row new)
{
	return depend(relation, seq, LOGICAL_REP_MSG_UPDATE, old_kind, &old, &new);
}

static Dependency
delete(LeaderRelation *relation, uint64 seq, char old_kind, Row row)
{
	return depend(relation, seq, LOGICAL_REP_MSG_DELETE, old_kind, &row, NULL);
}

#define CHECK_DEPENDENCY(dependency, expected_seq, expected_flags) \
	do { \
		Dependency	checked = (dependency); \
		CHECK_EQUAL(checked.seq, expected_seq); \
		CHECK_EQUAL(checked.flags, expected_flags); \
	} while (0)

/* The newest transaction that has touched the row, and no other row's. */
static void
same_row(void)
{
	LeaderRelation relation = make_relation(2, 1);

	CHECK_DEPENDENCY(insert(&relation, 1, ROW("a", "1")), 0, NONE);
	CHECK_DEPENDENCY(insert(&relation, 2, ROW("b", "1")), 0, NONE);
	CHECK_DEPENDENCY(update(&relation, 3, ROW("a", "2")), 1, NONE);
	CHECK_DEPENDENCY(update(&relation, 4, ROW("b", NULL)), 2, NONE);
	CHECK_DEPENDENCY(update(&relation, 5, ROW("a", UNCHANGED)), 3, NONE);
	CHECK_DEPENDENCY(delete(&relation, 6, 'K', ROW("a", NULL)), 5, NONE);
	CHECK_DEPENDENCY(insert(&relation, 7, ROW("a", "3")), 6, NONE);
	CHECK_DEPENDENCY(insert(&relation, 8, ROW("c", "1")), 0, NONE);
}

/* Its own transaction has touched the row before. */
static void
row_again(void)
{
	LeaderRelation relation = make_relation(2, 1);

	CHECK_DEPENDENCY(insert(&relation, 1, ROW("a", "1")), 0, NONE);
	CHECK_DEPENDENCY(update(&relation, 1, ROW("a", "2")), 0, RING_ROW_AGAIN);
	CHECK_DEPENDENCY(update(&relation, 2, ROW("a", "3")), 1, NONE);
	CHECK_DEPENDENCY(update(&relation, 2, ROW("a", "4")), 0, RING_ROW_AGAIN);

	/* A row that T3 has inserted gets the key of one that T2 has touched. */
	CHECK_DEPENDENCY(insert(&relation, 3, ROW("b", "1")), 0, NONE);
	CHECK_DEPENDENCY(update_old(&relation, 3, 'K', ROW("b", NULL), ROW("a", "1")), 2, RING_ROW_AGAIN);
}

/* An update that changes the key touches two rows. */
static void
old_and_new_key(void)
{
	LeaderRelation relation = make_relation(2, 1);

	CHECK_DEPENDENCY(insert(&relation, 1, ROW("a", "1")), 0, NONE);
	CHECK_DEPENDENCY(update_old(&relation, 2, 'K', ROW("a", NULL), ROW("b", "1")), 1, NONE);

	/* Both keys are T2's now. */
	CHECK_DEPENDENCY(insert(&relation, 3, ROW("a", "1")), 2, NONE);
	CHECK_DEPENDENCY(update(&relation, 4, ROW("b", "2")), 2, NONE);
}

/* Two different transactions: the newer one is told, and that there is another. */
static void
several(void)
{
	LeaderRelation relation = make_relation(2, 1);

	CHECK_DEPENDENCY(insert(&relation, 1, ROW("a", "1")), 0, NONE);
	CHECK_DEPENDENCY(delete(&relation, 2, 'K', ROW("b", NULL)), 0, NONE);
	CHECK_DEPENDENCY(update_old(&relation, 3, 'K', ROW("a", NULL), ROW("b", "1")), 2, RING_SEVERAL);

	/*
	 * The same the other way round; and twice the same transaction is not
	 * several.
	 */
	CHECK_DEPENDENCY(insert(&relation, 4, ROW("a", "1")), 3, NONE);
	CHECK_DEPENDENCY(update_old(&relation, 5, 'K', ROW("a", NULL), ROW("b", "1")), 4, RING_SEVERAL);
	CHECK_DEPENDENCY(update_old(&relation, 6, 'K', ROW("b", NULL), ROW("a", "1")), 5, NONE);
}

/* Keys of several columns; other columns do not matter. */
static void
key_columns(void)
{
	LeaderRelation relation = make_relation(3, 2);

	CHECK_DEPENDENCY(insert(&relation, 1, ROW("a", "bc", "x")), 0, NONE);
	CHECK_DEPENDENCY(insert(&relation, 2, ROW("ab", "c", "x")), 0, NONE);
	CHECK_DEPENDENCY(insert(&relation, 3, ROW("bc", "a", "x")), 0, NONE);
	CHECK_DEPENDENCY(insert(&relation, 4, ROW("a", NULL, "x")), 0, NONE);
	CHECK_DEPENDENCY(update(&relation, 5, ROW("a", "bc", "y")), 1, NONE);
	CHECK_DEPENDENCY(update(&relation, 6, ROW("a", NULL, "y")), 4, NONE);

	/* The key need not be in front. */
	relation = make_relation(3, 1);
	relation.keys[0] = 2;
	CHECK_DEPENDENCY(insert(&relation, 1, ROW("a", "b", "c")), 0, NONE);
	CHECK_DEPENDENCY(insert(&relation, 2, ROW("a", "b", "d")), 0, NONE);
	CHECK_DEPENDENCY(update(&relation, 3, ROW("x", "y", "c")), 1, NONE);
}

/* Keys are bytes. */
static void
key_bytes(void)
{
	LeaderRelation relation = make_relation(1, 1);

	CHECK_DEPENDENCY(insert(&relation, 1, ROW("1")), 0, NONE);
	CHECK_DEPENDENCY(insert(&relation, 2, ROW("01")), 0, NONE);
	CHECK_DEPENDENCY(insert(&relation, 3, ROW("")), 0, NONE);
}

/* Relations are told apart by their names. */
static void
relations(void)
{
	LeaderRelation first = make_relation(1, 1);
	LeaderRelation second = make_relation(1, 1);
	LeaderRelation renamed = make_relation(1, 1);

	second.seed = 4712;
	renamed.relid = 3;
	CHECK_DEPENDENCY(insert(&first, 1, ROW("a")), 0, NONE);
	CHECK_DEPENDENCY(insert(&second, 2, ROW("a")), 0, NONE);
	CHECK_DEPENDENCY(update(&first, 3, ROW("a")), 1, NONE);
	CHECK_DEPENDENCY(update(&renamed, 4, ROW("a")), 3, NONE);
}

/* With replica identity full, all columns are the key. */
static void
identity_full(void)
{
	LeaderRelation relation = make_relation(2, 2);

	relation.full = true;
	CHECK_DEPENDENCY(insert(&relation, 1, ROW("a", "1")), 0, NONE);
	CHECK_DEPENDENCY(insert(&relation, 2, ROW("a", "2")), 0, NONE);
	CHECK_DEPENDENCY(update_old(&relation, 3, 'O', ROW("a", "1"), ROW("a", "3")), 1, NONE);
	CHECK_DEPENDENCY(delete(&relation, 4, 'O', ROW("a", "3")), 3, NONE);
	CHECK_DEPENDENCY(delete(&relation, 5, 'O', ROW("a", "2")), 2, NONE);
	CHECK_DEPENDENCY(insert(&relation, 6, ROW("a", "1")), 3, NONE);
}

/* A row that is not known by its key: its change depends on all others of its table. */
static void
wide_after_others(void)
{
	LeaderRelation relation = make_relation(2, 2);
	const uint16 wide = RING_SEVERAL | RING_IN_PLACE;

	CHECK_DEPENDENCY(insert(&relation, 1, ROW("a", "1")), 0, NONE);
	CHECK_DEPENDENCY(insert(&relation, 2, ROW("b", "1")), 0, NONE);
	CHECK_DEPENDENCY(update_old(&relation, 3, 'O', ROW("c", "1"), ROW("c", UNCHANGED)), 2, wide);

	/* All later ones depend on it. */
	CHECK_DEPENDENCY(insert(&relation, 4, ROW("d", "1")), 3, NONE);
	CHECK_DEPENDENCY(delete(&relation, 5, 'O', ROW("a", "1")), 3, NONE);

	/* One that depends on something newer already, by its key, needs no more. */
	CHECK_DEPENDENCY(delete(&relation, 6, 'O', ROW("d", "1")), 4, NONE);

	/* A wide one depends on the newest, wide or not. */
	CHECK_DEPENDENCY(update_old(&relation, 7, 'O', ROW("x", "1"), ROW("x", UNCHANGED)), 6, wide);
	CHECK_DEPENDENCY(update_old(&relation, 8, 'O', ROW("y", "1"), ROW("y", UNCHANGED)), 7, wide);
	CHECK_DEPENDENCY(insert(&relation, 9, ROW("z", "1")), 8, NONE);
}

/* Within one transaction. */
static void
wide_in_transaction(void)
{
	LeaderRelation relation = make_relation(2, 2);
	const uint16 wide = RING_SEVERAL | RING_IN_PLACE;

	CHECK_DEPENDENCY(insert(&relation, 1, ROW("a", "1")), 0, NONE);
	CHECK_DEPENDENCY(insert(&relation, 2, ROW("b", "1")), 0, NONE);

	/* Changes of T3 before its wide one do not hide T2. */
	CHECK_DEPENDENCY(insert(&relation, 3, ROW("c", "1")), 0, NONE);
	CHECK_DEPENDENCY(insert(&relation, 3, ROW("d", "1")), 0, NONE);
	CHECK_DEPENDENCY(update_old(&relation, 3, 'O', ROW("e", "1"), ROW("e", UNCHANGED)), 2, wide);

	/* What follows in T3 has been waited for. */
	CHECK_DEPENDENCY(delete(&relation, 3, 'O', ROW("a", "1")), 0, NONE);
	CHECK_DEPENDENCY(update_old(&relation, 3, 'O', ROW("b", "1"), ROW("b", UNCHANGED)), 2, wide);

	/* T4 depends on T3, but not on its own changes. */
	CHECK_DEPENDENCY(insert(&relation, 4, ROW("f", "1")), 3, NONE);
	CHECK_DEPENDENCY(update_old(&relation, 4, 'O', ROW("f", "1"), ROW("f", UNCHANGED)), 3,
					 wide | RING_ROW_AGAIN);
}

/* Without a replica identity, inserted rows are new, and all others wide. */
static void
no_identity(void)
{
	LeaderRelation relation = make_relation(1, 0);
	const uint16 wide = RING_SEVERAL | RING_IN_PLACE;

	CHECK_DEPENDENCY(insert(&relation, 1, ROW("a")), 0, NONE);
	CHECK_DEPENDENCY(insert(&relation, 2, ROW("a")), 0, NONE);
	CHECK_DEPENDENCY(update(&relation, 3, ROW("b")), 2, wide);
	CHECK_DEPENDENCY(insert(&relation, 4, ROW("a")), 3, NONE);
	CHECK_DEPENDENCY(delete(&relation, 5, 'O', ROW("a")), 4, wide);
}

/* A new description of a relation: what came before may have named rows differently. */
static void
floor_of_relation(void)
{
	LeaderRelation relation = make_relation(1, 1);

	CHECK_DEPENDENCY(insert(&relation, 1, ROW("a")), 0, NONE);
	CHECK_DEPENDENCY(insert(&relation, 2, ROW("b")), 0, NONE);
	relation.floor = 2;
	CHECK_DEPENDENCY(insert(&relation, 3, ROW("c")), 2, NONE);
	CHECK_DEPENDENCY(update(&relation, 4, ROW("b")), 2, NONE);
	CHECK_DEPENDENCY(update(&relation, 5, ROW("a")), 2, RING_SEVERAL);
	CHECK_DEPENDENCY(update(&relation, 6, ROW("c")), 3, NONE);
}

/* A new ring has new transactions. */
static void
reset(void)
{
	LeaderRelation relation = make_relation(1, 1);

	CHECK_DEPENDENCY(insert(&relation, 5, ROW("a")), 0, NONE);
	dependency_reset();
	CHECK_DEPENDENCY(insert(&relation, 1, ROW("a")), 0, NONE);
}

/*
 * There are fewer entries than keys.  A collision makes a transaction wait without need,
 * and the transactions of both keys stay in order.
 */
static void
collisions(void)
{
	LeaderRelation relation = make_relation(1, 1);
	int			found = 0;

	for (int i = 1; i <= 2000; i++)
	{
		Row			mine = ROW(psprintf("%d", i));
		Row			other;
		uint64		collided = insert(&relation, i, mine).seq;

		if (collided == 0)
			continue;
		found++;
		other = ROW(psprintf("%d", (int) collided));

		/* The newer transaction has replaced the older one, for both keys. */
		CHECK_EQUAL(update(&relation, 10000 + i, other).seq, i);
		CHECK_EQUAL(update(&relation, 20000 + i, mine).seq, 10000 + i);

		/* Not seen again by later ones: their seqs are lower. */
		dependency_reset();
		for (int j = 1; j <= i; j++)
			(void) insert(&relation, j, ROW(psprintf("%d", j)));
	}

	/* 2000 keys in 65536 entries: about 30 are expected. */
	CHECK(found > 5 && found < 100);
}

/* A change that is cut anywhere is damaged, and so is one with something behind it. */
static void
damage(void)
{
	LeaderRelation relation = make_relation(2, 1);
	Row			old = ROW("old", NULL);
	Row			new = ROW("new", "value");
	StringInfo	message = make_change(2, LOGICAL_REP_MSG_UPDATE, 'K', &old, &new);
	Dependency	dependency;

	for (int length = 1; length < message->len; length++)
		CHECK(read_change(&relation, message, length, 1, &dependency) != NULL);
	CHECK_TEXT(read_change(&relation, message, message->len, 1, &dependency), NULL);
	pq_sendbyte(message, 0);
	CHECK_TEXT(read_change(&relation, message, message->len, 1, &dependency),
			   "there are bytes behind the end of the message");

	message = make_change(2, LOGICAL_REP_MSG_DELETE, 'K', &old, NULL);
	for (int length = 1; length < message->len; length++)
		CHECK(read_change(&relation, message, length, 1, &dependency) != NULL);

	relation.natts = 3;
	CHECK_TEXT(read_change(&relation, message, message->len, 1, &dependency),
			   "the number of columns is not the relation's");
}

/*
 * Random changes against a plain model: for each row the newest transaction that has
 * touched it.  A dependency may be newer than needed, but no older, unless an earlier change
 * of its transaction has waited for it: one of the row, or of one with the same hash value.
 */
static void
random_changes(void)
{
	LeaderRelation relation = make_relation(1, 1);
	uint64		touched[300] = {0};
	uint64		seq = 0;
	uint64		told = 0;		/* newest dependency of transaction "seq" */

	for (int i = 0; i < 50000; i++)
	{
		int			old = unit_random(lengthof(touched));
		int			new = unit_random(2) ? old : unit_random(lengthof(touched));
		Row			old_row = ROW(psprintf("%d", old));
		Row			new_row = ROW(psprintf("%d", new));
		uint64		needed = 0;
		Dependency	dependency;

		if (unit_random(3) == 0 || seq == 0)
		{
			seq++;
			told = 0;
		}
		if (touched[old] != seq)
			needed = touched[old];
		if (touched[new] != seq)
			needed = Max(needed, touched[new]);
		if (old == new)
			dependency = update(&relation, seq, new_row);
		else
			dependency = update_old(&relation, seq, 'K', old_row, new_row);
		told = Max(told, dependency.seq);
		CHECK(dependency.seq >= needed ||
			  ((dependency.flags & RING_ROW_AGAIN) && told >= needed));
		CHECK(dependency.seq < seq);
		if (touched[old] == seq || touched[new] == seq)
			CHECK(dependency.flags & RING_ROW_AGAIN);
		touched[old] = touched[new] = seq;
	}
}

static const UnitTest tests[] = {
	{"same_row", same_row},
	{"row_again", row_again},
	{"old_and_new_key", old_and_new_key},
	{"several", several},
	{"key_columns", key_columns},
	{"key_bytes", key_bytes},
	{"relations", relations},
	{"identity_full", identity_full},
	{"wide_after_others", wide_after_others},
	{"wide_in_transaction", wide_in_transaction},
	{"no_identity", no_identity},
	{"floor", floor_of_relation},
	{"reset", reset},
	{"collisions", collisions},
	{"damage", damage},
	{"random_changes", random_changes},
	{NULL, NULL}
};

const Unit	dependency_unit = {"dependency", tests};
