/*
 * streams.c
 *	  Transactions that the publisher sends while they are in progress.
 *
 * Actors: the leader; T1, a streamed transaction; S1, the stream writer that applies it
 * ahead of its turn; W1, the ordinary writer that takes T1 from the ring.
 *
 * The leader appends everything that arrives of T1 to a file, T1's spool
 * (ring/spool.c).  S1 reads the spool and applies T1 in a local transaction that stays
 * open (apply/stream_writer.c).  When T1 ends on the publisher, the leader gives it a
 * seq, as it does for an ordinary transaction, and puts it into the ring without any
 * changes.  W1 takes it there and makes sure that it is committed in its turn: by S1, or, if
 * anything has gone wrong with S1, by applying T1 once more from the spool.  So the
 * leader never waits for those who apply, and any early attempt may fail.
 *
 * The order that has to be kept:
 *
 * - A block of T1 depends on everything that was committed on the publisher before the
 *	 changes in it were made.  The publisher has sent all of that before the block, so it
 *	 is in the ring.  The spool says up to which seq S1 must wait (SPOOL_AFTER).
 *
 * - No transaction that commits on the publisher before T1 can touch T1's rows after that
 *	 point.  Therefore transactions that arrive between two blocks of T1 need no
 *	 care.
 *
 * - A transaction that arrives after the end of T1 depends on T1 if it changes a relation
 *	 that T1 has changed.  T1's seq becomes the "floor" of each such relation.
 *
 * - If T1 has truncated, has changed the schema, or has changed a relation whose changes must run alone
 *	 (relations.c), then whatever S1 has applied of T1 before its turn is rolled back,
 *	 and W1 applies T1 alone, from the spool.
 *
 * If T1 begins while there are no writers, it is native: the server's apply loop gets all
 * of it.  With streaming = parallel, the loop uses the server's parallel apply workers.
 *
 * Possible deadlock: a parallel apply worker P1 holds the locks of its transaction for as
 * long as that is in progress, and P1 and the leader wait for each other.  They tell the
 * server's deadlock detector, by locks, for whom they wait; but the detector would
 * not see the leader wait for a writer.  Therefore P1 never runs beside writers.  While P1
 * has a transaction, everything goes to the server's apply loop (messages.c); if
 * writers are to be started meanwhile, the leader restarts (housekeeping.c).
 */
#include "postgres.h"

#include "message_builder.h"
#include "receive/damage.h"
#include "receive/ddl_rows.h"
#include "receive/handover.h"
#include "receive/housekeeping.h"
#include "receive/leader_ring.h"
#include "receive/pause.h"
#include "receive/reception.h"
#include "receive/relations.h"
#include "receive/stream_set.h"
#include "receive/streams.h"
#include "receive/table_sync.h"
#include "receive/transaction.h"
#include "receive/writers.h"
#include "replication/reorderbuffer.h"
#include "replication/worker_internal.h"
#include "wire.h"

/* How a streamed transaction ends. */
typedef struct StreamEnd
{
	TransactionId xid;
	TransactionId subxid;		/* for an abort: which one */
	XLogRecPtr	final_lsn;
	XLogRecPtr	end_lsn;
	TimestampTz time;
} StreamEnd;

/* Gives a transaction that ends a shared entry; waits until there is one. */
static void
show_ended(Stream *stream)
{
	pause_collect();
	while (!stream_set_show_ended(stream))
	{
		Stream	   *oldest = stream_set_oldest_ended();

		if (oldest->seq == 0)
			pause_sleep(PGINVALID_SOCKET, leader_ring.producer.seq + 1, WEFT_WAIT_LEADER_SPACE);
		else
			pause_drain(oldest->seq);
	}
}

/* Gives an open transaction a stream writer, if it needs one and there is one. */
static void
assign_writer(Stream *stream)
{
	StreamShared *shared = stream->shared;

	if (table_sync_pending() || !stream_set_visible(stream) ||
		pg_atomic_read_u32(&shared->state) != STREAM_SPOOLED)
		return;
	if (debug_logical_replication_streaming == DEBUG_LOGICAL_REP_STREAMING_IMMEDIATE)
	{
		/* On a subscriber, this means to spool; the message is the server's. */
		if (stream->written == 0)
			ereport(LOG,
					(errmsg("logical replication apply worker will serialize the remaining changes of remote transaction %u to a file",
							stream->xid)));
		return;
	}
	writers_assign(shared);
}

/* STREAM START: a transaction begins or continues. */
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
		damage_report(payload, "the transaction ID is missing");
	first = wire_uint8(&cursor) == 1;
	stream = stream_set_find(xid);
	if (first && stream != NULL)
		damage_report(payload, "the transaction has begun already");
	if (!first && stream == NULL)
		damage_report(payload, "the transaction has not begun");

	if (first)
		stream = stream_set_add(xid, writers_count() == 0);
	stream_set_enter_block(stream);
	if (stream->native)
		handover_keep(message, length);
	else
	{
		stream_set_show_open(stream);
		assign_writer(stream);
		stream_spool_open(stream);
		stream_spool_note_order(leader_ring.producer.seq);
	}
}

/* STREAM STOP: the block ends. */
static void
end_block(Stream *stream)
{
	if (!stream->native)
		stream_spool_close(stream);
	stream_set_leave_block();

	/* The server's apply loop should know that the publisher is alive. */
	handover_news();
}

/*
 * A change that the server's apply loop is to get.  Returns false if it must not, since a value is not
 * valid text: then the transaction ends with an error, unless SKIP names it, and only its end has its LSN.
 */
static bool
native_change(Stream *stream, const char *payload, int payload_length)
{
	int			column = damage_check_change(payload, payload_length, true);

	if (column == 0)
		return true;
	stream->invalid_type = payload[0];
	stream->invalid_column = column;
	return false;
}

/* A change within a block. */
static void
block_change(Stream *stream, const char *payload, int payload_length)
{
	const char *problem = stream_spool_change(stream, payload, payload_length);

	if (problem)
		damage_report(payload, problem);
	reception.begun_since_pause++;
}

/* Takes a message that concerns schema changes.  Returns false if it is another one. */
static bool
take_schema_change(Stream *stream, const char *payload, int payload_length)
{
	DdlRow		kind;
	const char *json;
	int			length;
	WireCursor	cursor;
	const char *problem;
	bool		asks = !stream->native && ddl_rows_will_ask(payload, payload_length, true);

	if (asks)
		stream_spool_close(stream);
	problem = ddl_rows_read(payload, payload_length, true, &kind, &json, &length);
	if (asks)
		stream_spool_open(stream);
	if (problem)
		damage_report(payload, problem);
	if (kind == DDL_ROW_STATEMENT)
	{
		if (stream->native)
			ddl_rows_stop_streaming();
		wire_start(&cursor, payload + 1, payload_length - 1);
		stream_spool_ddl(stream, wire_uint32(&cursor), json, length);
	}
	return kind != DDL_ROW_OTHER;
}

/* A message within a block; returns true if it ends the block. */
bool
streams_message(char *message, int length, const char *payload, int payload_length)
{
	Stream	   *stream = stream_set_block();
	bool		native = stream->native;
	bool		keep = native;
	bool		ends = false;
	WireCursor	cursor;
	const char *problem;

	if (take_schema_change(stream, payload, payload_length))
		return false;
	switch (payload[0])
	{
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:
		case LOGICAL_REP_MSG_TRUNCATE:
			if (native)
				keep = native_change(stream, payload, payload_length);
			else
				block_change(stream, payload, payload_length);
			break;
		case LOGICAL_REP_MSG_RELATION:
			problem = stream_spool_relation(stream, payload, payload_length);
			if (problem)
				damage_report(payload, problem);
			break;
		case LOGICAL_REP_MSG_TYPE:
		case LOGICAL_REP_MSG_MESSAGE:
			wire_start(&cursor, payload + 1, payload_length - 1);
			if (wire_bytes(&cursor, sizeof(TransactionId)) == NULL)
				damage_report(payload, "the message ends too early");
			break;
		case LOGICAL_REP_MSG_ORIGIN:
			break;
		case LOGICAL_REP_MSG_STREAM_STOP:
			end_block(stream);
			ends = true;
			break;
		default:
			damage_report(payload, "the message does not belong in a streamed transaction");
	}
	if (keep)
		handover_keep(message, length);
	return ends;
}

/* Reads a message, whose form has been checked, that ends a transaction or a part of it. */
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

/* The transaction's RELATION messages are valid for all transactions from now on. */
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

/* Must the transaction run alone? */
static bool
is_exclusive(Stream *stream)
{
	ListCell   *cell;
	bool		result = stream->alone;

	foreach(cell, stream->relids)
	{
		LeaderRelation *relation = relations_find(lfirst_oid(cell));

		if (relation != NULL && relations_class(relation) != RELATION_PARALLEL)
			result = true;
	}
	return result;
}

/* Puts the transaction into the ring. */
static void
dispatch(Stream *stream, const StreamEnd *end, bool prepare)
{
	StreamShared *shared;
	ListCell   *cell;

	if (!stream_set_visible(stream))
		show_ended(stream);
	shared = stream->shared;
	stream_spool_finish(stream);
	shared->num_void = stream->num_void;
	shared->prepare = prepare;
	shared->alone = is_exclusive(stream);
	shared->final_lsn = end->final_lsn;

	transaction_stream(shared, end->end_lsn, end->time);
	stream->seq = leader_ring.producer.seq;

	foreach(cell, stream->relids)
	{
		LeaderRelation *relation = relations_find(lfirst_oid(cell));

		if (relation != NULL)
			relation->floor = stream->seq;
	}
	stream_set_remove(stream);
	handover_settled(end->end_lsn);
}

/*
 * Gives the server's apply loop an empty transaction in place of one that ALTER
 * SUBSCRIPTION ... SKIP names; the loop does what belongs to skipping.
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

	/* BEGIN, unlike BEGIN PREPARE, has no end LSN. */
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
	handover_keep(begin.data, begin.length);

	/*
	 * The end stays the same, except that COMMIT has no transaction ID in
	 * front.
	 */
	message_start(&finish, finish_memory, sizeof(finish_memory), message[0]);
	message_bytes(&finish, message + 1, DATA_HEADER_LENGTH - 1);
	message_byte(&finish, prepare ? LOGICAL_REP_MSG_PREPARE : LOGICAL_REP_MSG_COMMIT);
	if (!prepare)
	{
		rest += sizeof(TransactionId);
		rest_length -= sizeof(TransactionId);
	}
	message_bytes(&finish, rest, Min(rest_length, finish.size - finish.length));
	handover_keep_second(finish.data, finish.length, end->end_lsn, end->time);
}

/* STREAM COMMIT or STREAM PREPARE. */
static void
finish_stream(Stream *stream, const StreamEnd *end, char *message, int length)
{
	bool		prepare = message[DATA_HEADER_LENGTH] == LOGICAL_REP_MSG_STREAM_PREPARE;

	if (XLogRecPtrIsInvalid(end->final_lsn) || end->end_lsn < end->final_lsn)
		damage_report(message + DATA_HEADER_LENGTH, "the end is before the commit");
	if (stream->ddl && MySubscription->skiplsn != end->final_lsn)
	{
		if (prepare)
			ddl_rows_refuse_prepared(end->final_lsn);
		if (ddl_rows_wait(end->final_lsn, message, length))
			return;
	}
	if (stream->invalid_column != 0 &&
		!(stream->can_be_skipped && MySubscription->skiplsn == end->final_lsn))
		damage_report_text(stream->invalid_type, stream->invalid_column, end->final_lsn);
	take_in_relations(stream);
	if (stream->native)
	{
		stream_set_remove(stream);
		handover_keep_end(message, length, end->end_lsn, end->time);
		return;
	}

	housekeeping_between_transactions();
	if (MySubscription->skiplsn == end->final_lsn)
	{
		stream_set_discard(stream);
		stream_set_remove(stream);
		hand_over_skipped(end, message, length);
	}
	else
		dispatch(stream, end, prepare);
	ddl_rows_passed(end->end_lsn);
}

/* A transaction, or a subtransaction of one, ends. */
void
streams_end(char *message, int length, const char *payload, int payload_length)
{
	bool		aborted = payload[0] == LOGICAL_REP_MSG_STREAM_ABORT;
	StreamEnd	end;
	Stream	   *stream;

	read_end(payload, payload_length, &end);
	stream = stream_set_find(end.xid);
	if (stream == NULL)
	{
		/* Version 18 sends this for transactions that it has sent nothing of. */
		if (aborted)
			return;
		damage_report(payload, "the transaction has not begun");
	}
	if (!aborted)
		finish_stream(stream, &end, message, length);
	else if (stream->native)
	{
		if (end.subxid == end.xid)
			stream_set_remove(stream);
		handover_keep(message, length);
	}
	else
	{
		if (end.subxid == end.xid)
		{
			stream_set_discard(stream);
			stream_set_remove(stream);
		}
		else
			stream_spool_abort_part(stream, end.subxid);
		elog(DEBUG1, "finished processing the STREAM ABORT command");
	}
}
