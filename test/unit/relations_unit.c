/*
 * relations_unit.c
 *	  Unit tests of receive/relations.c.
 *
 * The map of relations lives as long as the process, so each test has a relid of its
 * own.  A test makes its tables itself; they go with its subtransaction.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_subscription_rel.h"
#include "executor/spi.h"
#include "libpq/pqformat.h"
#include "nodes/makefuncs.h"
#include "receive/relations.h"
#include "replication/worker_internal.h"
#include "unit.h"
#include "utils/memutils.h"
#include "wire.h"

/* An OID that no subscription has. */
#define SUBSCRIPTION 4294000000U

static LogicalRepRelId last_relid = 0;

static void
begin(void)
{
	static bool initialized = false;
	static Subscription subscription;

	if (!initialized)
		relations_init(TopMemoryContext);
	initialized = true;
	subscription.oid = SUBSCRIPTION;
	subscription.name = "unit";
	MySubscription = &subscription; /* a session has none of its own */
	last_relid++;
}

/* A RELATION message for a table in schema public, with columns of type text. */
static StringInfo
make_relation(const char *name, char identity, const char *const *columns, int natts, int num_keys)
{
	StringInfo	message = makeStringInfo();

	pq_sendbyte(message, LOGICAL_REP_MSG_RELATION);
	pq_sendint32(message, last_relid);
	appendBinaryStringInfo(message, "public", sizeof("public"));
	appendBinaryStringInfo(message, name, strlen(name) + 1);
	pq_sendbyte(message, identity);
	pq_sendint16(message, natts);
	for (int i = 0; i < natts; i++)
	{
		pq_sendbyte(message, i < num_keys ? WIRE_KEY_COLUMN : 0);
		appendBinaryStringInfo(message, columns[i], strlen(columns[i]) + 1);
		pq_sendint32(message, 25);
		pq_sendint32(message, -1);
	}
	return message;
}

static const char *const three[] = {"a", "b", "c"};

/* Takes in a relation that must be in order; returns whether its description changed. */
static bool
take_in(StringInfo message, uint64 floor)
{
	bool		changed;

	CHECK_TEXT(relations_take_in(message->data, message->len, floor, &changed), NULL);
	return changed;
}

static void
description(void)
{
	StringInfo	message;
	LeaderRelation *relation;
	uint64		seed;

	begin();
	CHECK(relations_find(last_relid) == NULL);
	message = make_relation("t", 'd', three, 3, 2);
	CHECK(!take_in(message, 7));
	relation = relations_find(last_relid);
	CHECK(relation != NULL);
	CHECK_EQUAL(relation->relid, last_relid);
	CHECK_EQUAL(relation->natts, 3);
	CHECK_EQUAL(relation->num_keys, 2);
	CHECK_EQUAL(relation->keys[0], 0);
	CHECK_EQUAL(relation->keys[1], 1);
	CHECK(!relation->full);
	CHECK_EQUAL(relation->floor, 7);
	CHECK_EQUAL(relation->version, 1);
	CHECK_EQUAL(relation->class, RELATION_UNKNOWN);
	CHECK_EQUAL(relation->message_length, message->len);
	CHECK(memcmp(relation->message, message->data, message->len) == 0);
	seed = relation->seed;

	/* Another table of the same name has the same rows, for the leader. */
	begin();
	CHECK(!take_in(make_relation("t", 'd', three, 2, 1), 1));
	CHECK(relations_find(last_relid)->seed == seed);
	begin();
	CHECK(!take_in(make_relation("u", 'd', three, 2, 1), 1));
	CHECK(relations_find(last_relid)->seed != seed);

	/*
	 * With replica identity full, all columns are the key; with none, no
	 * column.
	 */
	begin();
	CHECK(!take_in(make_relation("t", 'f', three, 3, 0), 1));
	CHECK(relations_find(last_relid)->full);
	CHECK_EQUAL(relations_find(last_relid)->num_keys, 3);
	CHECK_EQUAL(relations_find(last_relid)->keys[2], 2);
	begin();
	CHECK(!take_in(make_relation("t", 'n', three, 3, 0), 1));
	CHECK_EQUAL(relations_find(last_relid)->num_keys, 0);
}

/* Whether a message changes what is known decides whether its record is exclusive. */
static void
changed_description(void)
{
	LeaderRelation *relation;

	begin();
	CHECK(!take_in(make_relation("t", 'd', three, 3, 1), 5));
	relation = relations_find(last_relid);
	relation->class = RELATION_PARALLEL;
	relation->last_any = relation->last_other = relation->last_wide = 6;

	/* The same again: the local table may have changed. */
	CHECK(!take_in(make_relation("t", 'd', three, 3, 1), 8));
	CHECK(relations_find(last_relid) == relation);
	CHECK_EQUAL(relation->version, 2);
	CHECK_EQUAL(relation->floor, 8);
	CHECK_EQUAL(relation->last_wide, 6);
	CHECK_EQUAL(relation->class, RELATION_UNKNOWN);

	CHECK(take_in(make_relation("t", 'd', three, 3, 2), 9));
	CHECK_EQUAL(relation->version, 3);
	CHECK_EQUAL(relation->num_keys, 2);
	CHECK_EQUAL(relation->floor, 9);
	CHECK_EQUAL(relation->last_any, 0);
	CHECK_EQUAL(relation->last_other, 0);
	CHECK_EQUAL(relation->last_wide, 0);
	CHECK(take_in(make_relation("t", 'd', three, 2, 1), 9));
	CHECK_EQUAL(relation->natts, 2);
	CHECK(take_in(make_relation("renamed", 'd', three, 2, 1), 9));
}

/* A damaged message changes nothing. */
static void
damaged(void)
{
	StringInfo	message;
	bool		changed;

	begin();
	message = make_relation("t", 'd', three, 3, 1);
	for (int length = 1; length < message->len; length++)
	{
		CHECK(relations_take_in(message->data, length, 1, &changed) != NULL);
		CHECK(relations_find(last_relid) == NULL);
	}
}

/* A new ring: its log has every relation, and its transactions are others. */
static void
renewed(void)
{
	RingProducer producer;
	BroadcastLog log;
	BroadcastReader reader = {0};
	StringInfo	message;
	LeaderRelation *relation;
	const char *data;
	Size		length;
	int			found = 0;

	begin();
	message = make_relation("t", 'd', three, 3, 1);
	CHECK(!take_in(message, 5));
	relation = relations_find(last_relid);
	relation->last_any = relation->last_other = relation->last_wide = 6;

	broadcast_startup();
	broadcast_create(&log, unit_ring(&producer, 1024, 1));
	relations_renew(&log);
	CHECK_EQUAL(relation->floor, 0);
	CHECK_EQUAL(relation->last_any, 0);
	CHECK_EQUAL(relation->last_other, 0);
	CHECK_EQUAL(relation->last_wide, 0);
	reader.ring = log.ring;
	reader.area = log.area;
	while (broadcast_read(&reader, log.version, &data, &length))
		found += length == message->len && memcmp(data, message->data, length) == 0;
	CHECK_EQUAL(found, 1);
	broadcast_detach(log.area);
}

static void
run_sql(const char *command)
{
	SPI_connect();
	CHECK(SPI_execute(command, false, 0) >= 0);
	SPI_finish();
	CommandCounterIncrement();
}

static Oid
oid_of(const char *table)
{
	return RangeVarGetRelid(makeRangeVar("public", pstrdup(table), -1), NoLock, false);
}

/*
 * Returns the class of a table's changes, with the table's synchronization state; a
 * publisher that sends columns a to c.
 */
static RelationClass
class_of(const char *table, char state)
{
	if (state != SUBREL_STATE_UNKNOWN)
	{
		AddSubscriptionRelState(SUBSCRIPTION, oid_of(table), state, InvalidXLogRecPtr, false);
		CommandCounterIncrement();
	}
	begin();
	CHECK(!take_in(make_relation(table, 'd', three, 3, 1), 0));
	return relations_class(relations_find(last_relid));
}

/* What a local table must be like for its changes to run beside others. */
static void
classes(void)
{
	run_sql("CREATE SEQUENCE public.s;"
			"CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
			"CREATE TABLE public.plain (a text PRIMARY KEY, b text, c text, d text DEFAULT 'x');"
			"CREATE TABLE public.filled (a text PRIMARY KEY, b text,"
			" c text DEFAULT nextval('public.s')::text);"
			"CREATE TABLE public.volatile (a text PRIMARY KEY, b text, c text,"
			" d bigint DEFAULT nextval('public.s'));"
			"CREATE TABLE public.trigger (a text PRIMARY KEY, b text, c text);"
			"CREATE TRIGGER t BEFORE INSERT ON public.trigger FOR EACH ROW EXECUTE FUNCTION public.f();"
			"CREATE TABLE public.always (a text PRIMARY KEY, b text, c text);"
			"CREATE TRIGGER t BEFORE INSERT ON public.always FOR EACH ROW EXECUTE FUNCTION public.f();"
			"ALTER TABLE public.always ENABLE ALWAYS TRIGGER t;"
			"CREATE TABLE public.unknown (a text PRIMARY KEY, b text, c text)");
	CHECK_EQUAL(class_of("plain", SUBREL_STATE_READY), RELATION_PARALLEL);
	CHECK_EQUAL(class_of("filled", SUBREL_STATE_READY), RELATION_PARALLEL);
	CHECK_EQUAL(class_of("trigger", SUBREL_STATE_READY), RELATION_PARALLEL);
	CHECK_EQUAL(class_of("volatile", SUBREL_STATE_READY), RELATION_EXCLUSIVE);
	CHECK_EQUAL(class_of("always", SUBREL_STATE_READY), RELATION_EXCLUSIVE);
	CHECK_EQUAL(class_of("unknown", SUBREL_STATE_UNKNOWN), RELATION_EXCLUSIVE);
	CHECK_EQUAL(class_of("missing", SUBREL_STATE_UNKNOWN), RELATION_EXCLUSIVE);
}

/* A class is kept until something about the table changes. */
static void
invalidation(void)
{
	LeaderRelation *relation;

	run_sql("CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
			"CREATE TABLE public.t (a text PRIMARY KEY, b text, c text);"
			"CREATE TABLE public.other (a text)");
	CHECK_EQUAL(class_of("t", SUBREL_STATE_READY), RELATION_PARALLEL);
	relation = relations_find(last_relid);
	CHECK_EQUAL(relation->class, RELATION_PARALLEL);
	run_sql("ALTER TABLE public.other ADD COLUMN b text");
	CHECK_EQUAL(relation->class, RELATION_PARALLEL);
	run_sql("CREATE TRIGGER t BEFORE INSERT ON public.t FOR EACH ROW EXECUTE FUNCTION public.f();"
			"ALTER TABLE public.t ENABLE REPLICA TRIGGER t");
	CHECK_EQUAL(relation->class, RELATION_UNKNOWN);
	CHECK_EQUAL(relations_class(relation), RELATION_EXCLUSIVE);
	CHECK_EQUAL(relation->class, RELATION_EXCLUSIVE);

	/* A table that does not exist yet. */
	CHECK_EQUAL(class_of("later", SUBREL_STATE_UNKNOWN), RELATION_EXCLUSIVE);
	relation = relations_find(last_relid);
	CHECK_EQUAL(relation->class, RELATION_EXCLUSIVE);
	run_sql("CREATE TABLE public.later (a text PRIMARY KEY, b text, c text)");
	CHECK_EQUAL(relation->class, RELATION_UNKNOWN);
}

/* Any partition can make the changes of its parent exclusive, at any time. */
static void
partitioned(void)
{
	LeaderRelation *relation;

	run_sql("CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
			"CREATE TABLE public.p (a text PRIMARY KEY, b text, c text) PARTITION BY LIST (a);"
			"CREATE TABLE public.p1 PARTITION OF public.p FOR VALUES IN ('1');"
			"CREATE TABLE public.p2 PARTITION OF public.p FOR VALUES IN ('2')"
			" PARTITION BY LIST (a);"
			"CREATE TABLE public.p21 PARTITION OF public.p2 DEFAULT");
	CHECK_EQUAL(class_of("p", SUBREL_STATE_READY), RELATION_PARALLEL);
	relation = relations_find(last_relid);
	CHECK(relation->partitioned);
	run_sql("CREATE TRIGGER t BEFORE INSERT ON public.p21 FOR EACH ROW EXECUTE FUNCTION public.f();"
			"ALTER TABLE public.p21 ENABLE ALWAYS TRIGGER t");
	CHECK_EQUAL(relation->class, RELATION_UNKNOWN);
	CHECK_EQUAL(relations_class(relation), RELATION_EXCLUSIVE);
	run_sql("ALTER TABLE public.p2 DETACH PARTITION public.p21");
	CHECK_EQUAL(relations_class(relation), RELATION_PARALLEL);
	CHECK(relation->partitioned);
}

/* While its initial copy is in progress, a table's changes are dropped. */
static void
being_copied(void)
{
	static const char states[] = {SUBREL_STATE_INIT, SUBREL_STATE_DATASYNC,
	SUBREL_STATE_FINISHEDCOPY};

	for (int i = 0; i < lengthof(states); i++)
	{
		char	   *table = psprintf("t%d", i);

		run_sql(psprintf("CREATE TABLE public.%s (a text PRIMARY KEY, b text, c text)", table));
		CHECK_EQUAL(class_of(table, states[i]), RELATION_BEING_COPIED);

		/* The class is not kept: each change looks at the state. */
		CHECK_EQUAL(relations_find(last_relid)->class, RELATION_UNKNOWN);
	}
}

static const UnitTest tests[] = {
	{"description", description},
	{"changed_description", changed_description},
	{"damaged", damaged},
	{"renewed", renewed},
	{"classes", classes},
	{"invalidation", invalidation},
	{"partitioned", partitioned},
	{"being_copied", being_copied},
	{NULL, NULL}
};

const Unit	relations_unit = {"relations", tests};
