/*
 * streams.c
 *	  Transactions that the publisher sends while they are in progress.
 *
 * Whatever arrives of one is appended to a file, its spool (ring/spool.c), and a
 * writer of its own reads it from there and applies it, in a local transaction that
 * stays open (apply/stream_writer.c).  When the transaction ends on the publisher, it gets
 * its seq as an ordinary one: it goes into the ring, without changes, and whoever
 * takes it there sees to it that it is committed in its turn.  So the leader never
 * waits for those who apply, and if anything goes wrong there, the transaction can
 * be applied once more, from the spool, by an ordinary writer.
 *
 * What order has to be kept:
 *	 - A block needs whatever was committed on the publisher before its changes were
 *	   made.  All of that was sent before it, so it is in the ring: SPOOL_AFTER
 *	   tells up to which seq.
 *	 - Nobody can have touched its rows on the publisher, and be committed before it,
 *	   later than that.  So transactions that are sent between its blocks need no
 *	   care.
 *	 - What is sent behind its end depends on it, if it is a change of a relation
 *	   that it has changed, too: its seq becomes the relation's "floor".
 *	 - If it has changed what only an exclusive transaction may (relations.c), or
 *	   truncated, what was applied of it before its turn is thrown away, and it is
 *	   applied alone, from the spool.
 *
 * A transaction belongs to the server's own path if it began while there were no
 * writers; then all of it does.  The server's parallel workers and the leader need
 * each other for the detection of deadlocks (apply/yield.c), so they never work beside
 * writers: if these come back while such a worker is busy, the leader starts again.
 *
 * Writers know of NUM_STREAMS transactions at a time.  Some of these places are kept for
 * transactions that end.  One that begins while there is no other is only kept in its
 * spool, with an entry of its own here, until a place is free at the beginning of one
 * of its blocks, or when it ends; those that have ended give theirs back.
 *
 * A new set of writers (another number of them, for example) takes over transactions
 * in progress from their spools.  What the old ones had applied of them is rolled back.
 */
#include "postgres.h"

#include "access/xact.h"
#include "message_builder.h"
#include "miscadmin.h"
#include "receive/feedback.h"
#include "receive/leader.h"
#include "receive/messages.h"
#include "receive/relations.h"
#include "receive/stream_spool.h"
#include "receive/streams.h"
#include "receive/transaction.h"
#include "receive/writers.h"
#include "replication/reorderbuffer.h"
#include "replication/worker_internal.h"
#include "ring/stream_wait.h"
#include "utils/memutils.h"
#include "wire.h"

/* So many of the shared entries may belong to transactions that are in progress. */
#define NUM_OPEN_STREAMS (NUM_STREAMS - 8)

typedef struct StreamEntry
{
	TransactionId xid;			/* hash key */
	Stream	   *stream;
} StreamEntry;

/* How a streamed transaction ends. */
typedef struct StreamEnd
{
	TransactionId xid;
	TransactionId subxid;		/* for an abort: which one */
	XLogRecPtr	final_lsn;
	XLogRecPtr	end_lsn;
	TimestampTz time;
} StreamEnd;

static HTAB *open_streams;		/* of StreamEntry */
static List *ended_streams = NIL;	/* whose spool is still there */
static Stream *current;			/* whose block is open */
static FileSet files;			/* of the spools; each ring has a copy */
static bool have_files = false; /* it has been made */
static uint32 num_spools = 0;	/* so far: the number of the next one */

/* Prepares for the first message; called once in a leader. */
void
streams_init(void)
{
	HASHCTL		info;

	info.keysize = sizeof(TransactionId);
	info.entrysize = sizeof(StreamEntry);
	info.hcxt = leader.context;
	open_streams = hash_create("weft streams", 8, &info,
							   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* Is any transaction in progress, or being rolled back, that is not the server's? */
bool
streams_open(void)
{
	HASH_SEQ_STATUS scan;
	StreamEntry *entry;

	hash_seq_init(&scan, open_streams);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		if (!entry->stream->native)
		{
			hash_seq_term(&scan);
			return true;
		}
	}
	return ended_streams != NIL;
}

static Stream *
find_stream(TransactionId xid)
{
	StreamEntry *entry = hash_search(open_streams, &xid, HASH_FIND, NULL);

	return entry ? entry->stream : NULL;
}

static bool
has_shared_entry(Stream *stream)
{
	return stream->shared != &stream->own_entry;
}

static StreamShared *
free_entry(void)
{
	for (int i = 0; i < NUM_STREAMS; i++)
		if (pg_atomic_read_u32(&leader.shared->streams[i].state) == STREAM_FREE)
			return &leader.shared->streams[i];
	return NULL;
}

/* Returns a shared entry for a transaction in progress, or NULL. */
static StreamShared *
entry_for_open_stream(void)
{
	HASH_SEQ_STATUS scan;
	StreamEntry *entry;
	int			count = 0;

	hash_seq_init(&scan, open_streams);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (!entry->stream->native && has_shared_entry(entry->stream))
			count++;
	return count < NUM_OPEN_STREAMS ? free_entry() : NULL;
}

/* Waits for a shared entry, for a transaction that ends. */
static StreamShared *
wait_for_entry(void)
{
	StreamShared *result;

	leader_collect();
	while ((result = free_entry()) == NULL)
	{
		Stream	   *oldest = linitial(ended_streams);

		if (oldest->seq == 0)
			leader_sleep(PGINVALID_SOCKET, leader.producer.seq + 1, WEFT_WAIT_LEADER_SPACE);
		else
			leader_drain(oldest->seq);
	}
	return result;
}

/*
 * Makes an entry that of a transaction whose spool is as the Stream says, and which
 * nobody applies.
 */
static void
use_entry(Stream *stream, StreamShared *shared, uint64 received_changes)
{
	stream->shared = shared;
	shared->number = stream->number;
	shared->base = stream->base;
	shared->num_void = 0;
	pg_atomic_write_u32(&shared->xid, stream->xid);
	pg_atomic_write_u64(&shared->written, stream->written);
	pg_atomic_write_u32(&shared->data_awaited, 0);
	pg_atomic_write_u32(&shared->writer, 0);
	pg_atomic_write_u64(&shared->received_changes, received_changes);
	pg_atomic_write_u64(&shared->applied_changes, 0);
	pg_atomic_write_u64(&shared->seq, 0);
	pg_write_barrier();
	pg_atomic_write_u32(&shared->state, STREAM_SPOOLED);
}

/* Takes a transaction from its own entry to a shared one. */
static void
move_to_shared(Stream *stream, StreamShared *shared)
{
	if (shared != NULL)
		use_entry(stream, shared, pg_atomic_read_u64(&stream->own_entry.received_changes));
}

/* Gives a new transaction its spool, and its entry. */
static void
begin_spool(Stream *stream)
{
	StreamShared *shared = entry_for_open_stream();

	if (!have_files)
	{
		StartTransactionCommand();
		FileSetInit(&files);
		CommitTransactionCommand();
		MemoryContextSwitchTo(leader.message_context);
		leader.producer.ring->stream_files = files;
		have_files = true;
	}
	stream->number = num_spools++;
	stream_create_spool(stream);
	use_entry(stream, shared ? shared : &stream->own_entry, 0);
}

/* A transaction begins. */
static Stream *
begin_stream(TransactionId xid)
{
	MemoryContext context = AllocSetContextCreate(leader.context, "weft stream",
												  ALLOCSET_DEFAULT_SIZES);
	StreamEntry *entry;
	Stream	   *stream = MemoryContextAllocZero(context, sizeof(Stream));
	HASHCTL		info;

	stream->context = context;
	stream->xid = stream->latest_xid = xid;
	stream->native = leader.num_writers == 0;
	if (!stream->native)
		begin_spool(stream);
	entry = hash_search(open_streams, &xid, HASH_ENTER, NULL);
	entry->stream = stream;
	if (stream->native)
	{
		if (MyLogicalRepWorker->parallel_apply)
			leader.parallel_streams++;
		return stream;
	}

	info.keysize = sizeof(LogicalRepRelId);
	info.entrysize = sizeof(StreamedRelation);
	info.hcxt = context;
	stream->relations = hash_create("weft streamed relations", 16, &info,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	return stream;
}

/*
 * There is a new ring, and new writers: nothing is in flight, and nobody applies any of
 * the transactions in progress.
 */
void
streams_renew(void)
{
	HASH_SEQ_STATUS scan;
	StreamEntry *entry;
	ListCell   *cell;

	leader.producer.ring->stream_files = files;

	/* What was aborted was left to stream writers that are gone. */
	foreach(cell, ended_streams)
	{
		Stream	   *stream = lfirst(cell);

		Assert(stream->seq == 0);
		spool_delete(&files, stream->number);
		MemoryContextDelete(stream->context);
	}
	list_free(ended_streams);
	ended_streams = NIL;

	hash_seq_init(&scan, open_streams);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		Stream	   *stream = entry->stream;

		if (stream->native)
			continue;
		stream->base = stream->written;
		use_entry(stream, stream->shared,
				  pg_atomic_read_u64(&stream->shared->received_changes));
	}
}

/* Gives the transaction a writer of its own, if there is one for it. */
static void
assign_writer(Stream *stream)
{
	StreamShared *shared = stream->shared;
	uint32		index;
	int			number;

	if (leader.tables_syncing || !has_shared_entry(stream) ||
		pg_atomic_read_u32(&shared->state) != STREAM_SPOOLED)
		return;
	if (debug_logical_replication_streaming == DEBUG_LOGICAL_REP_STREAMING_IMMEDIATE)
	{
		/* That is what it means on a subscriber, and what the server says. */
		if (stream->written == 0)
			ereport(LOG,
					(errmsg("logical replication apply worker will serialize the remaining changes of remote transaction %u to a file",
							stream->xid)));
		return;
	}
	index = shared - leader.shared->streams + 1;
	for (number = WEFT_MAX_WRITERS; number < WEFT_MAX_WRITERS + weft_max_stream_writers; number++)
	{
		uint32		none = 0;

		if (leader.writers[number] == NULL)
		{
			pg_atomic_write_u32(&shared->writer, number);
			pg_atomic_write_u32(&shared->state, STREAM_APPLYING);
			if (!writers_start_for_stream(number, index))
				pg_atomic_write_u32(&shared->state, STREAM_SPOOLED);
			return;
		}
		if (pg_atomic_read_u32(&leader.shared->writers[number].stream) != 0)
			continue;
		pg_atomic_write_u32(&shared->writer, number);
		pg_atomic_write_u32(&shared->state, STREAM_APPLYING);
		if (pg_atomic_compare_exchange_u32(&leader.shared->writers[number].stream, &none, index))
		{
			SetLatch(&GetPGProcByNumber(leader.producer.ring->writer_procno[number])->procLatch);
			return;
		}
		pg_atomic_write_u32(&shared->state, STREAM_SPOOLED);
	}
}

/* STREAM START: a transaction begins or goes on. */
void
streams_start(char *message, int length, const char *payload, int payload_length)
{
	WireCursor	cursor;
	TransactionId xid;
	bool		first;
	Stream	   *stream;

	wire_start(&cursor, payload + 1, payload_length - 1);
	xid = wire_uint32(&cursor);
	if (!TransactionIdIsValid(xid))
		leader_damage(payload, "the transaction ID is missing");
	first = wire_uint8(&cursor) == 1;
	stream = find_stream(xid);
	if (first && stream != NULL)
		leader_damage(payload, "the transaction has begun already");
	if (!first && stream == NULL)
		leader_damage(payload, "the transaction has not begun");

	if (first)
		stream = begin_stream(xid);
	current = stream;
	leader.position = IN_STREAM_BLOCK;
	if (stream->native)
		leader_hand_over(HANDOVER_MESSAGE, message, length);
	else
	{
		if (!has_shared_entry(stream))
			move_to_shared(stream, entry_for_open_stream());
		assign_writer(stream);
		stream_open_spool(stream);
		stream_note_order(leader.producer.seq);
	}
}

/* STREAM STOP: the block ends. */
static void
end_block(void)
{
	if (!current->native)
		stream_close_spool(current);
	current = NULL;
	leader.position = BETWEEN_TRANSACTIONS;

	/* The server's loop shall know that we hear from the publisher. */
	leader.native_is_behind = true;
}

/* A message within a block. */
void
streams_message(char *message, int length, const char *payload, int payload_length)
{
	bool		native = current->native;
	WireCursor	cursor;

	switch (payload[0])
	{
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:
		case LOGICAL_REP_MSG_TRUNCATE:
			if (native)
				message_check_change(payload, payload_length, true);
			else
				stream_change(current, payload, payload_length);
			break;
		case LOGICAL_REP_MSG_RELATION:
			stream_relation(current, payload, payload_length);
			break;
		case LOGICAL_REP_MSG_TYPE:
		case LOGICAL_REP_MSG_MESSAGE:
			wire_start(&cursor, payload + 1, payload_length - 1);
			if (wire_bytes(&cursor, sizeof(TransactionId)) == NULL)
				leader_damage(payload, "the message ends too early");
			break;
		case LOGICAL_REP_MSG_ORIGIN:
			break;
		case LOGICAL_REP_MSG_STREAM_STOP:
			end_block();
			break;
		default:
			leader_damage(payload, "the message does not belong into a streamed transaction");
	}
	if (native)
		leader_hand_over(HANDOVER_MESSAGE, message, length);
}

/* Reads the message that ends a transaction, or a part of it; its form is checked. */
static void
read_end(const char *payload, int length, StreamEnd *end)
{
	WireCursor	cursor;

	memset(end, 0, sizeof(StreamEnd));
	wire_start(&cursor, payload + 1, length - 1);
	switch (payload[0])
	{
		case LOGICAL_REP_MSG_STREAM_ABORT:
			end->xid = wire_uint32(&cursor);
			end->subxid = wire_uint32(&cursor);
			return;
		case LOGICAL_REP_MSG_STREAM_COMMIT:
			end->xid = wire_uint32(&cursor);
			break;
		default:
			break;
	}
	wire_bytes(&cursor, 1);
	end->final_lsn = wire_uint64(&cursor);
	end->end_lsn = wire_uint64(&cursor);
	end->time = wire_uint64(&cursor);
	if (payload[0] == LOGICAL_REP_MSG_STREAM_PREPARE)
		end->xid = wire_uint32(&cursor);
}

/* The transaction's RELATION messages hold for all from now on. */
static void
take_in_relations(Stream *stream)
{
	ListCell   *cell;

	foreach(cell, stream->messages)
	{
		StringInfo	message = lfirst(cell);

		transaction_relation(message->data, message->len);
		if (!stream->native)
			relations_tell_server(message->data, message->len);
	}
}

/* What is not needed any more goes; the transaction is not open any more. */
static void
forget(Stream *stream)
{
	hash_search(open_streams, &stream->xid, HASH_REMOVE, NULL);
	if (stream->native)
	{
		if (leader.parallel_streams > 0)
			leader.parallel_streams--;
		MemoryContextDelete(stream->context);
	}
	else
	{
		MemoryContext old = MemoryContextSwitchTo(leader.context);

		ended_streams = lappend(ended_streams, stream);
		MemoryContextSwitchTo(old);
	}
}

/* If a stream writer applies the transaction, it is to roll that back. */
static void
discard(Stream *stream)
{
	uint32		state = STREAM_APPLYING;

	stream->shared->waiter_procno = MyProcNumber;
	if (pg_atomic_compare_exchange_u32(&stream->shared->state, &state, STREAM_DISCARDED))
		ring_wake_stream_writer(leader.producer.ring, stream->shared);
}

/* All stream writers are to roll back what is in progress. */
void
streams_discard(void)
{
	HASH_SEQ_STATUS scan;
	StreamEntry *entry;

	hash_seq_init(&scan, open_streams);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (!entry->stream->native)
			discard(entry->stream);
}

/* Must the transaction run alone? */
static bool
is_exclusive(Stream *stream)
{
	ListCell   *cell;
	bool		result = stream->truncates;

	foreach(cell, stream->relids)
	{
		LeaderRelation *relation = relations_find(lfirst_oid(cell));

		if (relation != NULL && relations_class(relation) != RELATION_PARALLEL)
			result = true;
	}
	return result;
}

/* The transaction goes into the ring. */
static void
dispatch(Stream *stream, const StreamEnd *end, bool prepare)
{
	StreamShared *shared;
	ListCell   *cell;

	if (!has_shared_entry(stream))
		move_to_shared(stream, wait_for_entry());
	shared = stream->shared;
	stream_write_void(stream);
	shared->num_void = stream->num_void;
	shared->prepare = prepare;
	shared->alone = is_exclusive(stream);
	shared->final_lsn = end->final_lsn;

	transaction_stream(shared, end->end_lsn, end->time);
	stream->seq = leader.producer.seq;

	foreach(cell, stream->relids)
	{
		LeaderRelation *relation = relations_find(lfirst_oid(cell));

		if (relation != NULL)
			relation->floor = stream->seq;
	}
	forget(stream);
	message_settled(end->end_lsn);
}

/*
 * Gives the server's apply loop an empty transaction in place of one that is to be
 * skipped: it knows what is to be done about it.
 */
static void
hand_over_skipped(const StreamEnd *end, char *message, int length)
{
	static char begin_memory[DATA_HEADER_LENGTH + 1 + 8 + 8 + 8 + 4 + GIDSIZE];
	static char finish_memory[DATA_HEADER_LENGTH + 1 + 1 + 8 + 8 + 8 + 4 + GIDSIZE];
	bool		prepare = message[DATA_HEADER_LENGTH] == LOGICAL_REP_MSG_STREAM_PREPARE;
	const char *rest = message + DATA_HEADER_LENGTH + 1;
	int			rest_length = length - DATA_HEADER_LENGTH - 1;
	MessageBuilder begin;
	MessageBuilder finish;

	/* BEGIN has no end of its own. */
	message_start(&begin, begin_memory, sizeof(begin_memory), message[0]);
	message_bytes(&begin, message + 1, DATA_HEADER_LENGTH - 1);
	message_byte(&begin, prepare ? LOGICAL_REP_MSG_BEGIN_PREPARE : LOGICAL_REP_MSG_BEGIN);
	message_uint64(&begin, end->final_lsn);
	if (prepare)
		message_uint64(&begin, end->end_lsn);
	message_uint64(&begin, end->time);
	message_uint32(&begin, end->xid);
	if (prepare)
	{
		char		gid[GIDSIZE];

		strlcpy(gid, rest + 29, sizeof(gid));
		message_string(&begin, gid);
	}
	leader_hand_over(HANDOVER_MESSAGE, begin.data, begin.length);

	/* The end is the same, except that COMMIT has no transaction ID in front. */
	message_start(&finish, finish_memory, sizeof(finish_memory), message[0]);
	message_bytes(&finish, message + 1, DATA_HEADER_LENGTH - 1);
	message_byte(&finish, prepare ? LOGICAL_REP_MSG_PREPARE : LOGICAL_REP_MSG_COMMIT);
	if (!prepare)
	{
		rest += sizeof(TransactionId);
		rest_length -= sizeof(TransactionId);
	}
	message_bytes(&finish, rest, Min(rest_length, finish.size - finish.length));
	leader_hand_over_second(finish.data, finish.length, end->end_lsn, end->time);
}

/* STREAM COMMIT or STREAM PREPARE. */
static void
finish_stream(Stream *stream, const StreamEnd *end, char *message, int length)
{
	bool		prepare = message[DATA_HEADER_LENGTH] == LOGICAL_REP_MSG_STREAM_PREPARE;

	if (XLogRecPtrIsInvalid(end->final_lsn) || end->end_lsn < end->final_lsn)
		leader_damage(message + DATA_HEADER_LENGTH, "the end is before the commit");
	take_in_relations(stream);
	if (stream->native)
	{
		forget(stream);
		leader_hand_over_end(message, length, end->end_lsn, end->time);
		return;
	}

	leader_look_around();
	if (MySubscription->skiplsn == end->final_lsn)
	{
		discard(stream);
		forget(stream);
		hand_over_skipped(end, message, length);
	}
	else
		dispatch(stream, end, prepare);
}

/* Is a block open whose changes are ours to keep? */
bool
streams_in_block(void)
{
	return current != NULL && !current->native;
}

/* The leader is going to pause: what has arrived shall be readable. */
void
streams_flush(void)
{
	if (streams_in_block())
	{
		stream_flush_spool(current);
	}
}

/* A transaction, or a subtransaction of one, ends. */
void
streams_end(char *message, int length, const char *payload, int payload_length)
{
	bool		aborted = payload[0] == LOGICAL_REP_MSG_STREAM_ABORT;
	StreamEnd	end;
	Stream	   *stream;

	read_end(payload, payload_length, &end);
	stream = find_stream(end.xid);
	if (stream == NULL)
	{
		/* Version 18 sends this for what it has never sent anything of. */
		if (aborted)
			return;
		leader_damage(payload, "the transaction has not begun");
	}
	if (!aborted)
		finish_stream(stream, &end, message, length);
	else if (stream->native)
	{
		if (end.subxid == end.xid)
			forget(stream);
		leader_hand_over(HANDOVER_MESSAGE, message, length);
	}
	else
	{
		if (end.subxid == end.xid)
		{
			discard(stream);
			forget(stream);
		}
		else
			stream_abort_part(stream, end.subxid);
		elog(DEBUG1, "finished processing the STREAM ABORT command");
	}
}

/* May the spool of a transaction that has ended go? */
static bool
is_over(Stream *stream)
{
	uint32		state = pg_atomic_read_u32(&stream->shared->state);

	if (stream->seq > 0)
		return stream->seq <= leader.collected;
	return state == STREAM_SPOOLED || state == STREAM_FAILED;
}

/* Removes what is left of transactions that have ended; a part of leader_collect(). */
void
streams_collect(void)
{
	ListCell   *cell;

	foreach(cell, ended_streams)
	{
		Stream	   *stream = lfirst(cell);

		if (!is_over(stream))
			continue;
		pg_atomic_write_u32(&stream->shared->state, STREAM_FREE);
		spool_delete(&files, stream->number);
		MemoryContextDelete(stream->context);
		ended_streams = foreach_delete_current(ended_streams, cell);
	}
}

/* Removes all files: the leader ends, or nothing is in progress. */
void
streams_remove_files(void)
{
	if (have_files)
		FileSetDeleteAll(&files);
	have_files = false;
}
