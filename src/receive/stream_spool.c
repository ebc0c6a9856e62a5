/*
 * stream_spool.c
 *	  What the leader keeps of one streamed transaction.
 *
 * RELATION messages of a streamed transaction are valid for that transaction alone
 * until it commits.  Its spool has everything that is needed to read its changes: before
 * the first change of a relation, the message that the publisher takes for known here.
 * The message is written again when another one has become valid, or when the copy in
 * the spool belongs to a part that is void.
 *
 * An aborted subtransaction S1 leaves a void part in the spool: from the first change
 * of S1 to the end of the spool at that moment.  Every change in this part belongs to S1,
 * to a child of S1, or to a parent that S1 was released into, which is aborted with S1.
 * The publisher announces children that were released before their parent, so a void part
 * may begin within an earlier one.  A stream writer that follows the spool is told to roll
 * S1 back (SPOOL_ABORT).  A writer that reads the spool later gets the list of void
 * parts, and leaves them out.
 *
 * Functions that read a message return what is wrong with it, or NULL.
 */
#include "postgres.h"

#include "receive/leader_ring.h"
#include "receive/relations.h"
#include "receive/stream_spool.h"
#include "ring/stream_wait.h"
#include "utils/memutils.h"
#include "wire.h"

/* The open spool: at most one is open at a time. */
static SpoolWriter spool;

/* Makes an empty spool. */
void
stream_spool_create(Stream *stream)
{
	spool_create(&spool, &leader_ring.producer.ring->stream_files, stream->number);
	spool_close();
}

/* Lets writers read what is in the file. */
static void
announce(Stream *stream)
{
	stream->written = spool.written;
	if (pg_atomic_read_u64(&stream->shared->written) == stream->written)
		return;
	pg_write_barrier();
	pg_atomic_write_u64(&stream->shared->written, stream->written);
	ring_wake_stream_writer(leader_ring.producer.ring, stream->shared);
}

/* Opens the spool to append to it. */
void
stream_spool_open(Stream *stream)
{
	spool_open(&spool, &leader_ring.producer.ring->stream_files, stream->number, stream->written);
}

/* Lets writers read everything that was appended. */
void
stream_spool_flush(Stream *stream)
{
	spool_flush(&spool);
	announce(stream);
}

void
stream_spool_close(Stream *stream)
{
	stream_spool_flush(stream);
	spool_close();
}

/* Notes that what follows depends on all transactions up to seq. */
void
stream_spool_note_order(uint64 seq)
{
	spool_append(&spool, SPOOL_AFTER, InvalidTransactionId, (char *) &seq, sizeof(seq),
				 NULL, 0);
}

/* Keeps a RELATION message, without the transaction ID behind its type. */
static StringInfo
keep_message(Stream *stream, const char *payload, int length)
{
	MemoryContext old = MemoryContextSwitchTo(stream->context);
	StringInfo	copy = makeStringInfo();

	appendStringInfoChar(copy, payload[0]);
	appendBinaryStringInfo(copy, payload + 1 + sizeof(TransactionId),
						   length - 1 - sizeof(TransactionId));
	stream->messages = lappend(stream->messages, copy);
	MemoryContextSwitchTo(old);
	return copy;
}

static StreamedRelation *
find_relation(Stream *stream, LogicalRepRelId relid)
{
	StreamedRelation *relation = stream->latest;
	bool		found;

	if (relation != NULL && relation->relid == relid)
		return relation;
	relation = hash_search(stream->relations, &relid, HASH_ENTER, &found);
	if (!found)
	{
		MemoryContext old = MemoryContextSwitchTo(stream->context);

		relation->own = NULL;
		relation->written = false;
		stream->relids = lappend_oid(stream->relids, relid);
		MemoryContextSwitchTo(old);
	}
	stream->latest = relation;
	return relation;
}

/* Keeps a RELATION message of the transaction. */
const char *
stream_spool_relation(Stream *stream, const char *payload, int length)
{
	WireRelation wire;
	const char *problem = wire_read_relation(payload, length, true, &wire);
	StringInfo	message;

	if (problem)
		return problem;
	message = keep_message(stream, payload, length);
	if (!stream->native)
	{
		StreamedRelation *relation = find_relation(stream, wire.relid);

		relation->own = message;
		relation->natts = wire.natts;
		relation->written = false;
	}
	return NULL;
}

/*
 * Makes sure that the spool has what is needed to read changes of a relation; returns
 * NULL if the relation is unknown.
 */
static StreamedRelation *
use_relation(Stream *stream, LogicalRepRelId relid)
{
	StreamedRelation *relation = find_relation(stream, relid);
	LeaderRelation *known;

	if (relation->own != NULL)
	{
		if (!relation->written)
		{
			relation->position = spool_position(&spool);
			spool_append(&spool, SPOOL_RELATION, InvalidTransactionId,
						 relation->own->data, relation->own->len, NULL, 0);
			relation->written = true;
		}
		return relation;
	}

	known = relations_find(relid);
	if (known == NULL)
		return NULL;
	if (!relation->written || relation->version != known->version)
	{
		relation->position = spool_position(&spool);
		spool_append(&spool, SPOOL_RELATION, InvalidTransactionId,
					 known->message, known->message_length, NULL, 0);
		relation->version = known->version;
		relation->natts = known->natts;
		relation->written = true;
	}
	return relation;
}

/* Notes where a subtransaction begins. */
static void
note_subtransaction(Stream *stream, TransactionId xid)
{
	Subtransaction *entry;
	bool		found;

	if (xid == stream->latest_xid)
		return;
	stream->latest_xid = xid;
	if (xid == stream->xid)
		return;
	if (stream->subtransactions == NULL)
	{
		HASHCTL		info;

		info.keysize = sizeof(TransactionId);
		info.entrysize = sizeof(Subtransaction);
		info.hcxt = stream->context;
		stream->subtransactions = hash_create("weft subtransactions", 64, &info,
											  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	entry = hash_search(stream->subtransactions, &xid, HASH_ENTER, &found);
	if (!found)
		entry->start = spool_position(&spool);
}

/* Makes sure that a TRUNCATE can be read from the spool. */
static const char *
use_truncated(Stream *stream, const char *payload, int length)
{
	WireCursor	relids;
	int			count;
	const char *problem = wire_read_truncate(payload, length, true, &count, &relids);

	for (int i = 0; problem == NULL && i < count; i++)
		if (use_relation(stream, wire_uint32(&relids)) == NULL)
			problem = "the relation is unknown";
	stream->alone = true;
	return problem;
}

/* Makes sure that an INSERT, UPDATE or DELETE can be read from the spool. */
static const char *
use_changed(Stream *stream, const char *payload, int length)
{
	WireChange	change;
	StreamedRelation *relation;
	const char *problem = wire_read_change(payload, length, true, &change);

	if (problem)
		return problem;
	relation = use_relation(stream, change.relid);
	if (relation == NULL)
		return "the relation is unknown";
	return wire_check_tuples(&change, relation->natts);
}

/* Appends a change to the open spool. */
const char *
stream_spool_change(Stream *stream, const char *payload, int length)
{
	WireCursor	cursor;
	TransactionId xid;
	const char *problem;

	wire_start(&cursor, payload + 1, length - 1);
	xid = wire_uint32(&cursor);
	if (cursor.failed)
		return "the message ends too early";
	note_subtransaction(stream, xid);
	problem = payload[0] == LOGICAL_REP_MSG_TRUNCATE ?
		use_truncated(stream, payload, length) : use_changed(stream, payload, length);
	if (problem)
		return problem;

	spool_append(&spool, SPOOL_CHANGE, xid, payload, 1,
				 payload + 1 + sizeof(TransactionId), length - 1 - sizeof(TransactionId));
	pg_atomic_write_u64(&stream->shared->received_changes,
						pg_atomic_read_u64(&stream->shared->received_changes) + 1);
	announce(stream);
	return NULL;
}

/* Appends a schema change, as the contents of a message (ddl_rows.c). */
void
stream_spool_ddl(Stream *stream, TransactionId xid, const char *json, int length)
{
	const char	type = LOGICAL_REP_MSG_MESSAGE;

	note_subtransaction(stream, xid);
	stream->ddl = true;
	stream->alone = true;
	spool_append(&spool, SPOOL_CHANGE, xid, &type, 1, json, length);
	announce(stream);
}

/*
 * Notes that a range up to the end of the spool is void.  Earlier void ranges that reach
 * into it are merged with it: an aborted subtransaction may have begun in the middle
 * of the part of one of its released children.
 */
static void
add_void(Stream *stream, uint64 start, uint64 end)
{
	while (stream->num_void > 0 && stream->void_ranges[stream->num_void - 1].end >= start)
	{
		stream->num_void--;
		start = Min(start, stream->void_ranges[stream->num_void].start);
	}
	if (stream->num_void == stream->max_void)
	{
		stream->max_void = Max(2 * stream->max_void, 16);
		stream->void_ranges = stream->void_ranges == NULL ?
			MemoryContextAlloc(stream->context, stream->max_void * sizeof(SpoolRange)) :
			repalloc_huge(stream->void_ranges, stream->max_void * sizeof(SpoolRange));
	}
	stream->void_ranges[stream->num_void].start = start;
	stream->void_ranges[stream->num_void].end = end;
	stream->num_void++;
}

/* A subtransaction was aborted; changes of it may be in the spool. */
void
stream_spool_abort_part(Stream *stream, TransactionId xid)
{
	Subtransaction *entry = stream->subtransactions == NULL ? NULL :
		hash_search(stream->subtransactions, &xid, HASH_FIND, NULL);
	HASH_SEQ_STATUS scan;
	StreamedRelation *relation;
	uint64		start;

	if (entry == NULL)
		return;
	start = entry->start;
	hash_search(stream->subtransactions, &xid, HASH_REMOVE, NULL);
	stream->latest_xid = InvalidTransactionId;
	add_void(stream, start, stream->written);

	hash_seq_init(&scan, stream->relations);
	while ((relation = hash_seq_search(&scan)) != NULL)
		if (relation->written && relation->position >= start)
			relation->written = false;

	stream_spool_open(stream);
	spool_append(&spool, SPOOL_ABORT, xid, NULL, 0, NULL, 0);
	stream_spool_close(stream);
}

/* The transaction has ended: writes the list of void parts behind the last record. */
void
stream_spool_finish(Stream *stream)
{
	if (stream->num_void == 0)
		return;
	stream_spool_open(stream);
	spool_append_ranges(&spool, stream->void_ranges, stream->num_void);
	spool_close();
}
