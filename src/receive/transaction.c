/*
 * transaction.c
 *	  Putting a transaction into the ring.
 */
#include "postgres.h"

#include "receive/dependency.h"
#include "receive/feedback.h"
#include "receive/leader.h"
#include "receive/relations.h"
#include "receive/transaction.h"
#include "utils/timestamp.h"
#include "wire.h"

/*
 * A transaction is offered to the writers when it is complete, or when so many
 * bytes of it are there: then applying and receiving overlap.
 */
#define PUBLISH_BYTES (32 * 1024)

/* For space, the leader waits until one of so many transactions is committed. */
#define SPACE_SHARE 64

/* Every so many transactions it is looked whether to tune something. */
#define TUNING_INTERVAL 32

/* Where the records that the writers know of end. */
static uint64 published_write;

static void
publish(void)
{
	ring_publish(&leader.producer);
	published_write = leader.producer.write;
}

/*
 * Waits until a part of what is in flight is committed, rather than for each
 * transaction, or a writer lets go of space before.
 */
static void
wait_for_space(void)
{
	uint64		committed = ring_committed(leader.producer.ring);

	leader_sleep(PGINVALID_SOCKET,
				 committed + 1 + (leader.producer.seq - committed) / SPACE_SHARE,
				 WEFT_WAIT_LEADER_SPACE);
	tuning_step(&leader.tuning, GetCurrentTimestamp(), true);
}

/*
 * Appends a record to the open transaction, in pieces if need be; waits for
 * space.
 */
void
transaction_record(RingRecordKind kind, uint16 flags, uint64 number,
				const char *data, Size length)
{
	Size		done = 0;

	for (;;)
	{
		Size		part = ring_append(&leader.producer, kind, flags, number,
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
	if (leader.producer.write - published_write >= PUBLISH_BYTES)
		publish();
}

/* Opens the next transaction; waits for its barrier, and for space. */
static void
open_transaction(void)
{
	if (ring_committed(leader.producer.ring) < leader.barrier)
		leader_drain(leader.barrier);
	while (!ring_begin(&leader.producer, leader.broadcast.version, leader.collected))
		wait_for_space();
	if (leader.producer.seq % TUNING_INTERVAL == 0)
		tuning_step(&leader.tuning, GetCurrentTimestamp(), false);
	leader.begun_since_pause++;
	published_write = leader.producer.write;
}

/* Opens a transaction with its BEGIN message. */
void
transaction_begin(const char *message, int length)
{
	open_transaction();
	transaction_record(RING_MESSAGE, 0, 0, message, length);
}

/* The open transaction must run alone from here on. */
void
transaction_barrier(void)
{
	if (leader.barrier != leader.producer.seq)
	{
		leader.barrier = leader.producer.seq;
		pg_atomic_fetch_add_u64(&leader.shared->barriers, 1);
	}
}

/* Appends an INSERT, UPDATE or DELETE. */
void
transaction_change(const char *message, int length)
{
	WireChange	change;
	LeaderRelation *relation;
	const char *problem;
	Dependency	dependency;

	problem = wire_read_change(message, length, false, &change);
	if (problem)
		leader_damage(message, problem);
	relation = relations_find(change.relid);
	if (relation == NULL)
		leader_damage(message, "the relation is unknown");

	dependency = dependency_of_change(relation, &change, leader.producer.seq, &problem);
	if (problem)
		leader_damage(message, problem);

	switch (relations_class(relation))
	{
		case RELATION_BEING_COPIED:
			return;
		case RELATION_EXCLUSIVE:
			transaction_barrier();
			dependency.flags |= RING_EXCLUSIVE;
			break;
		default:
			break;
	}
	transaction_record(RING_MESSAGE, dependency.flags, dependency.seq, message, length);
}

/*
 * Takes in a RELATION message and broadcasts it.  If a transaction is open, its writer
 * must take the message in at this point.
 */
void
transaction_relation(const char *message, int length)
{
	bool		open = leader.producer.open;
	bool		changed;
	uint64		version;
	const char *problem = relations_take_in(message, length,
											leader.producer.seq - (open ? 1 : 0),
											&changed);

	if (problem)
		leader_damage(message, problem);
	if (leader.num_writers == 0)
		return;
	version = broadcast_append(&leader.broadcast, message, length);
	if (open)
		transaction_record(RING_BROADCAST, changed ? RING_EXCLUSIVE : 0, version, NULL, 0);
}

/* Appends a TRUNCATE. */
void
transaction_truncate(const char *message, int length)
{
	WireCursor	relids;
	int			count;
	const char *problem = wire_read_truncate(message, length, false, &count, &relids);

	if (problem)
		leader_damage(message, problem);
	for (int i = 0; i < count; i++)
		if (relations_find(wire_uint32(&relids)) == NULL)
			leader_damage(message, "the relation is unknown");

	transaction_barrier();
	transaction_record(RING_MESSAGE, RING_EXCLUSIVE, 0, message, length);
}

/* Puts a streamed transaction, which has ended, into the ring. */
void
transaction_stream(StreamShared *stream, XLogRecPtr end_lsn, TimestampTz commit_time)
{
	open_transaction();
	if (stream->alone)
		transaction_barrier();
	ring_use_stream(&leader.producer, stream - leader.shared->streams + 1);
	pg_write_barrier();
	pg_atomic_write_u64(&stream->seq, leader.producer.seq);
	transaction_commit(end_lsn, commit_time);
}

/* Completes the open transaction. */
void
transaction_commit(XLogRecPtr end_lsn, TimestampTz commit_time)
{
	ring_complete(&leader.producer, end_lsn, commit_time);
	pg_atomic_write_u64(&leader.shared->ring_used, ring_used(&leader.producer));
}
