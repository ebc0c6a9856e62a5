/*
 * stream_spool.c
 *	  What is kept of a transaction that the publisher sends while it is in progress.
 *
 * RELATION messages of a streamed transaction hold for it alone until it commits.
 * The spool has whatever is needed to read its changes: before the first change of
 * a relation, the message that the publisher takes for known here, and again when
 * that is another one, or was written within a part that is void now.
 *
 * An aborted subtransaction leaves a part behind that is void, from its first change
 * on: whatever came behind that belongs to it, to its children, or to a parent that
 * it was released into, which is aborted with it.  The publisher tells of children
 * that were released before their parent, so a part may begin within one that is void
 * already.  A writer that is on its way is told to roll back (SPOOL_ABORT); one that
 * reads the spool later is told which parts to leave out.
 */
#include "postgres.h"

#include "receive/relations.h"
#include "receive/stream_spool.h"
#include "ring/stream_wait.h"
#include "utils/memutils.h"
#include "wire.h"

/* The spool that is open; one is at a time. */
static SpoolWriter spool;

/* Makes an empty spool. */
void
stream_create_spool(Stream *stream)
{
	spool_create(&spool, &leader.producer.ring->stream_files, stream->number);
	spool_close(&spool);
}

static void
announce(Stream *stream)
{
	stream->written = spool.written;
	if (pg_atomic_read_u64(&stream->shared->written) == stream->written)
		return;
	pg_write_barrier();
	pg_atomic_write_u64(&stream->shared->written, stream->written);
	ring_wake_stream_writer(leader.producer.ring, stream->shared);
}

/* Opens the spool to append to it. */
void
stream_open_spool(Stream *stream)
{
	spool_open(&spool, &leader.producer.ring->stream_files, stream->number, stream->written);
}

/* Makes readable what was appended. */
void
stream_flush_spool(Stream *stream)
{
	spool_flush(&spool);
	announce(stream);
}

void
stream_close_spool(Stream *stream)
{
	stream_flush_spool(stream);
	spool_close(&spool);
}

/* What follows needs all transactions up to seq. */
void
stream_note_order(uint64 seq)
{
	spool_append(&spool, SPOOL_AFTER, InvalidTransactionId, (char *) &seq, sizeof(seq),
				 NULL, 0);
}

/* Keeps a RELATION message; behind its type comes a transaction ID. */
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

/* A RELATION message of the transaction. */
void
stream_relation(Stream *stream, const char *payload, int length)
{
	WireRelation wire;
	const char *problem = wire_read_relation(payload, length, true, &wire);
	StringInfo	message;

	if (problem)
		leader_damage(payload, problem);
	message = keep_message(stream, payload, length);
	if (!stream->native)
	{
		StreamedRelation *relation = find_relation(stream, wire.relid);

		relation->own = message;
		relation->natts = wire.natts;
		relation->written = false;
	}
}

/*
 * Makes sure that the spool has what is needed to read changes of a relation.
 */
static StreamedRelation *
use_relation(Stream *stream, LogicalRepRelId relid, const char *payload)
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
		leader_damage(payload, "the relation is unknown");
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

/* A change goes into the spool. */
void
stream_change(Stream *stream, const char *payload, int length)
{
	WireCursor	cursor;
	TransactionId xid;
	const char *problem;

	wire_start(&cursor, payload + 1, length - 1);
	xid = wire_uint32(&cursor);
	if (cursor.failed)
		leader_damage(payload, "the message ends too early");
	note_subtransaction(stream, xid);
	if (payload[0] == LOGICAL_REP_MSG_TRUNCATE)
	{
		WireCursor	relids;
		int			count;

		problem = wire_read_truncate(payload, length, true, &count, &relids);
		for (int i = 0; problem == NULL && i < count; i++)
			use_relation(stream, wire_uint32(&relids), payload);
		stream->truncates = true;
	}
	else
	{
		WireChange	change;

		problem = wire_read_change(payload, length, true, &change);
		if (problem == NULL)
			problem = wire_check_tuples(&change,
										use_relation(stream, change.relid, payload)->natts);
	}
	if (problem)
		leader_damage(payload, problem);

	spool_append(&spool, SPOOL_CHANGE, xid, payload, 1,
				 payload + 1 + sizeof(TransactionId), length - 1 - sizeof(TransactionId));
	pg_atomic_write_u64(&stream->shared->received_changes,
						pg_atomic_read_u64(&stream->shared->received_changes) + 1);
	announce(stream);
	leader.begun_since_pause++;
}

/*
 * Notes that the spool is void from a position to its end.  The parts that are void
 * already and reach into this one become one with it: a subtransaction that is
 * aborted may have begun in the middle of one of its released children's.
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

/* A subtransaction was aborted, of which something may have been sent. */
void
stream_abort_part(Stream *stream, TransactionId xid)
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

	stream_open_spool(stream);
	spool_append(&spool, SPOOL_ABORT, xid, NULL, 0, NULL, 0);
	stream_close_spool(stream);
}

/* Writes behind the last record which parts are void. */
void
stream_write_void(Stream *stream)
{
	if (stream->num_void == 0)
		return;
	stream_open_spool(stream);
	spool_append_ranges(&spool, stream->void_ranges, stream->num_void);
	spool_close(&spool);
}
