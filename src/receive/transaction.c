/*
 * transaction.c
 *	  Putting a transaction into the ring.
 *
 * The leader appends the messages of a transaction in the order in which they arrive, each
 * change with what it depends on (dependency.c).  If the ring is full, it publishes what it
 * has appended, and waits until writers have released space; see pause.c for why
 * that ends.
 *
 * A transaction T1 that must run alone from some change on is a barrier: T2, the next
 * one, does not begin before T1 is committed, and the record is exclusive, so that T1's
 * writer waits there until all earlier transactions are committed.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "receive/concurrent_start.h"
#include "receive/damage.h"
#include "receive/dependency.h"
#include "receive/leader_ring.h"
#include "receive/led_subscription.h"
#include "receive/pause.h"
#include "receive/reception.h"
#include "receive/relations.h"
#include "receive/transaction.h"
#include "receive/writers.h"
#include "utils/timestamp.h"
#include "wire.h"

/*
 * A transaction is published when it is complete, or when this much of it has been
 * appended, so that applying overlaps with receiving.
 */
#define PUBLISH_BYTES (32 * 1024)

/* To get space, the leader waits until this part of what is in flight is committed. */
#define SPACE_SHARE 64			/* one 64th */

/* Tuning gets a step once in this many transactions. */
#define TUNING_INTERVAL 32

/* The end of the records that the writers know about. */
static uint64 published_write;

static void
publish(void)
{
	ring_publish(&leader_ring.producer);
	published_write = leader_ring.producer.write;
}

/*
 * Waits until a part of what is in flight is committed, rather than for each transaction,
 * or a writer releases space before that.
 */
static void
wait_for_space(void)
{
	uint64		committed = ring_committed(leader_ring.producer.ring);

	pause_sleep(PGINVALID_SOCKET,
				committed + 1 + (leader_ring.producer.seq - committed) / SPACE_SHARE,
				WEFT_WAIT_LEADER_SPACE);
	tuning_step(&leader_ring.tuning, GetCurrentTimestamp(), true);
}

/*
 * Appends a record to the open transaction, in several pieces if necessary; waits for
 * space.
 */
static void
append(RingRecordKind kind, uint16 flags, uint64 number, const char *data, Size length)
{
	Size		done = 0;

	for (;;)
	{
		Size		part = ring_append(&leader_ring.producer, kind, flags, number,
									   data + done, length - done);

		if (part != SIZE_MAX)
		{
			done += part;
			if (done == length)
				break;
		}
		publish();
		wait_for_space();
	}
	if (leader_ring.producer.write - published_write >= PUBLISH_BYTES)
		publish();
}

/* Waits until everything before the barrier is committed and collected; a worker may have to be started for that. */
static void
await_barrier(void)
{
	while (ring_committed(leader_ring.producer.ring) < leader_ring.barrier)
	{
		concurrent_start_turn();
		pause_sleep(PGINVALID_SOCKET, leader_ring.barrier, WEFT_WAIT_LEADER_DRAIN);
	}
	pause_collect();
}

/* Opens the next transaction; waits for its barrier, and for space. */
static void
open_transaction(void)
{
	if (ring_committed(leader_ring.producer.ring) < leader_ring.barrier)
		await_barrier();
	while (!ring_begin(&leader_ring.producer, leader_ring.broadcast.version, leader_ring.collected))
		wait_for_space();
	if (leader_ring.producer.seq % TUNING_INTERVAL == 0)
		tuning_step(&leader_ring.tuning, GetCurrentTimestamp(), false);
	reception.begun_since_pause++;
	published_write = leader_ring.producer.write;
}

/* Opens a transaction with its BEGIN message. */
void
transaction_begin(const char *message, int length)
{
	open_transaction();
	append(RING_MESSAGE, 0, 0, message, length);
}

/* The open transaction must run alone from here on. */
static void
make_barrier(void)
{
	if (leader_ring.barrier != leader_ring.producer.seq)
	{
		leader_ring.barrier = leader_ring.producer.seq;
		pg_atomic_fetch_add_u64(&led.shared->barriers, 1);
	}
}

/*
 * Appends an INSERT, UPDATE or DELETE, or drops it.  A change that is dropped must not count as
 * a touch of its row: no record of it would wait for the earlier ones (dependency.c).
 */
void
transaction_change(const char *message, int length)
{
	WireChange	change;
	LeaderRelation *relation;
	RelationClass class;
	const char *problem;
	Dependency	dependency;

	problem = wire_read_change(message, length, false, &change);
	if (problem)
		damage_report(message, problem);
	relation = relations_find(change.relid);
	if (relation == NULL)
		damage_report(message, "the relation is unknown");

	class = relations_class(relation);
	if (class == RELATION_BEING_COPIED)
	{
		problem = wire_check_tuples(&change, relation->natts);
		if (problem)
			damage_report(message, problem);
		return;
	}

	dependency = dependency_of_change(relation, &change, leader_ring.producer.seq, &problem);
	if (problem)
		damage_report(message, problem);
	if (class == RELATION_EXCLUSIVE)
	{
		make_barrier();
		dependency.flags |= RING_EXCLUSIVE;
	}
	append(RING_MESSAGE, dependency.flags, dependency.seq, message, length);
}

/*
 * Takes in a RELATION message and broadcasts it.  If a transaction is open, its writer
 * must take the message in at this point.
 */
void
transaction_relation(const char *message, int length)
{
	bool		open = leader_ring.producer.open;
	bool		changed;
	uint64		version;
	const char *problem = relations_take_in(message, length,
											leader_ring.producer.seq - (open ? 1 : 0),
											&changed);

	if (problem)
		damage_report(message, problem);
	if (writers_count() == 0)
		return;
	version = broadcast_append(&leader_ring.broadcast, message, length);
	if (open)
		append(RING_BROADCAST, changed ? RING_EXCLUSIVE : 0, version, NULL, 0);
}

/* Appends a TRUNCATE. */
void
transaction_truncate(const char *message, int length)
{
	WireCursor	relids;
	int			count;
	const char *problem = wire_read_truncate(message, length, false, &count, &relids);

	if (problem)
		damage_report(message, problem);
	for (int i = 0; i < count; i++)
		if (relations_find(wire_uint32(&relids)) == NULL)
			damage_report(message, "the relation is unknown");

	make_barrier();
	append(RING_MESSAGE, RING_EXCLUSIVE, 0, message, length);
}

/* Appends a schema change, as the contents of a message (ddl_rows.c). */
void
transaction_ddl(const char *json, int length)
{
	StringInfoData message;

	initStringInfo(&message);
	appendStringInfoChar(&message, LOGICAL_REP_MSG_MESSAGE);
	appendBinaryStringInfo(&message, json, length);
	make_barrier();
	append(RING_MESSAGE, RING_EXCLUSIVE, 0, message.data, message.len);
	pfree(message.data);
}

/* Puts a streamed transaction, which has ended, into the ring. */
void
transaction_stream(StreamShared *stream, XLogRecPtr end_lsn, TimestampTz commit_time)
{
	open_transaction();
	if (stream->alone)
		make_barrier();
	ring_use_stream(&leader_ring.producer, stream - led.shared->streams + 1);
	pg_write_barrier();
	pg_atomic_write_u64(&stream->seq, leader_ring.producer.seq);
	transaction_commit(end_lsn, commit_time);
}

/* Completes the open transaction. */
void
transaction_commit(XLogRecPtr end_lsn, TimestampTz commit_time)
{
	ring_complete(&leader_ring.producer, end_lsn, commit_time);
	leader_ring_show_used();
}
