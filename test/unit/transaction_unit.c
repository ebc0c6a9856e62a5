/*
 * transaction_unit.c
 *	  Unit tests of receive/transaction.c: what of a transaction gets into the ring.
 *
 * T1, T2 ... are transactions with that seq.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_subscription_rel.h"
#include "executor/spi.h"
#include "libpq/pqformat.h"
#include "nodes/makefuncs.h"
#include "receive/dependency.h"
#include "receive/leader_ring.h"
#include "receive/led_subscription.h"
#include "receive/relations.h"
#include "receive/transaction.h"
#include "replication/worker_internal.h"
#include "unit.h"
#include "utils/memutils.h"
#include "wire.h"

/* An OID that no subscription has. */
#define SUBSCRIPTION 4294000000U

#define RING_SIZE 65536

/* Tables with this relid on the publisher. */
#define READY 1
#define COPIED 2

static void
begin(void)
{
	static Subscription subscription;
	static SubscriptionShared shared;

	relations_init(TopMemoryContext);
	subscription.oid = SUBSCRIPTION;
	subscription.name = "unit";
	MySubscription = &subscription; /* a session has none of its own */
	led.shared = &shared;
	(void) unit_ring(&leader_ring.producer, RING_SIZE, 1);
	dependency_reset();
}

/* Makes a table with one column, its key, and takes in the publisher's description. */
static void
add_table(LogicalRepRelId relid, const char *name, char state)
{
	StringInfo	message = makeStringInfo();
	bool		changed;

	SPI_connect();
	CHECK(SPI_execute(psprintf("CREATE TABLE public.%s (a text PRIMARY KEY)", name), false, 0) >= 0);
	SPI_finish();
	CommandCounterIncrement();
	AddSubscriptionRelState(SUBSCRIPTION,
							RangeVarGetRelid(makeRangeVar("public", pstrdup(name), -1), NoLock, false),
							state, InvalidXLogRecPtr, false);
	CommandCounterIncrement();

	pq_sendbyte(message, LOGICAL_REP_MSG_RELATION);
	pq_sendint32(message, relid);
	appendBinaryStringInfo(message, "public", sizeof("public"));
	appendBinaryStringInfo(message, name, strlen(name) + 1);
	pq_sendbyte(message, 'd');
	pq_sendint16(message, 1);
	pq_sendbyte(message, WIRE_KEY_COLUMN);
	appendBinaryStringInfo(message, "a", sizeof("a"));
	pq_sendint32(message, 25);
	pq_sendint32(message, -1);
	CHECK_TEXT(relations_take_in(message->data, message->len, 0, &changed), NULL);
}

/* An UPDATE of the row with this key. */
static void
update(LogicalRepRelId relid, const char *key)
{
	StringInfo	message = makeStringInfo();

	pq_sendbyte(message, LOGICAL_REP_MSG_UPDATE);
	pq_sendint32(message, relid);
	pq_sendbyte(message, 'N');
	pq_sendint16(message, 1);
	pq_sendbyte(message, LOGICALREP_COLUMN_TEXT);
	pq_sendint32(message, strlen(key));
	appendStringInfoString(message, key);
	transaction_change(message->data, message->len);
}

static void
begin_transaction(void)
{
	transaction_begin("B", 1);
}

static void
commit(void)
{
	transaction_commit(leader_ring.producer.seq * 100, 0);
}

/* Moves to the only change of a transaction, behind BEGIN. */
static const RingRecordHeader *
only_change(uint64 seq)
{
	RingCursor	cursor;
	const RingRecordHeader *result;
	const RingRecordHeader *header;
	const char *payload;

	ring_rewind(&cursor, leader_ring.producer.ring, seq);
	CHECK_EQUAL(ring_read(&cursor, &header, &payload), RING_READ_RECORD);
	CHECK_EQUAL(payload[0], 'B');
	CHECK_EQUAL(ring_read(&cursor, &result, &payload), RING_READ_RECORD);
	CHECK_EQUAL(payload[0], LOGICAL_REP_MSG_UPDATE);
	CHECK_EQUAL(ring_read(&cursor, &header, &payload), RING_READ_END);
	return result;
}

/*
 * A change of a table that is being copied is not in the ring, so nothing depends on it: the
 * next change of a row with the same hash value depends on the one before.
 */
static void
being_copied(void)
{
	begin();
	add_table(READY, "ready", SUBREL_STATE_READY);
	add_table(COPIED, "copied", SUBREL_STATE_INIT);
	relations_find(COPIED)->seed = relations_find(READY)->seed;

	begin_transaction();		/* T1 */
	update(READY, "a");
	commit();
	begin_transaction();		/* T2 */
	update(COPIED, "a");
	commit();
	begin_transaction();		/* T3 */
	update(READY, "a");
	commit();
	CHECK_EQUAL(only_change(3)->number, 1);
	CHECK_EQUAL(only_change(3)->flags, 0);

	/* In one transaction: T4 has not touched the row before. */
	begin_transaction();
	update(COPIED, "a");
	update(READY, "a");
	commit();
	CHECK_EQUAL(only_change(4)->number, 3);
	CHECK_EQUAL(only_change(4)->flags, 0);
	CHECK_EQUAL(relations_find(COPIED)->last_any, 0);
}

static const UnitTest tests[] = {
	{"being_copied", being_copied},
	{NULL, NULL}
};

const Unit	transaction_unit = {"transaction", tests};
