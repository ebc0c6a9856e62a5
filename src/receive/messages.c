/*
 * messages.c
 *	  What becomes of each message from the publisher.
 *
 * Where in the stream we are decides what may come; what comes decides who gets
 * it.  Every message is checked before anybody acts on it: what the server's
 * code would take on trust, or fail an assertion about, ends here.
 */
#include "postgres.h"

#include "message_builder.h"
#include "receive/feedback.h"
#include "receive/leader.h"
#include "receive/messages.h"
#include "receive/relations.h"
#include "receive/streams.h"
#include "receive/transaction.h"
#include "replication/worker_internal.h"
#include "utils/timestamp.h"
#include "wire.h"

/* How long tables that are being synchronised may wait for the loop. */
#define SYNC_TURN_INTERVAL 100	/* ms */
/* How often the loop gets a turn under full load. */
#define TURN_INTERVAL 10000		/* ms */

/*
 * Is the transaction that ends there for the server's apply loop, which skips it
 * if it is the one that ALTER SUBSCRIPTION ... SKIP names?  One that is not would be
 * applied by it, without conflicts being detected.
 */
static bool
to_be_skipped(XLogRecPtr final_lsn)
{
	if (XLogRecPtrIsInvalid(MySubscription->skiplsn))
		return false;
	return !leader.detect_conflicts || MySubscription->skiplsn == final_lsn;
}

/*
 * Gives the server's apply loop its turn if it is time for that; returns true if
 * so, and the message is looked at again afterwards.
 */
static bool
take_turn(char *message, int length)
{
	if (leader.socket == PGINVALID_SOCKET ||
		!TimestampDifferenceExceeds(leader.last_turn, leader.received_time,
									leader.tables_syncing ? SYNC_TURN_INTERVAL : TURN_INTERVAL))
		return false;
	leader_hand_over(HANDOVER_TURN, message, length);
	return true;
}

/* Notes that all up to a position has been dispatched, in a transaction's end. */
void
message_settled(XLogRecPtr end_lsn)
{
	leader.received_lsn = Max(leader.received_lsn, end_lsn);
	leader.settled_lsn = Max(leader.settled_lsn, end_lsn);
	leader.native_is_behind = true;
	MyLogicalRepWorker->last_lsn = leader.received_lsn;
	MyLogicalRepWorker->last_send_time = leader.sent_time;
	MyLogicalRepWorker->last_recv_time = leader.received_time;
}

/*
 * Decides what becomes of a transaction that begins.
 */
static void
begin_transaction(char *message, int length, const char *payload, int payload_length)
{
	WireBegin	begin;
	const char *problem = wire_read_begin(payload, payload_length, &begin);

	if (problem)
		leader_damage(payload, problem);

	leader_look_around();
	if (begin.final_lsn >= leader.until_lsn)
		leader_finish();
	if (take_turn(message, length))
		return;

	leader.final_lsn = begin.final_lsn;
	leader.changes_seen = false;
	if (leader.num_writers == 0 || leader.parallel_streams > 0 ||
		to_be_skipped(begin.final_lsn))
	{
		leader.position = IN_NATIVE_TRANSACTION;
		leader_hand_over(HANDOVER_MESSAGE, message, length);
	}
	else
	{
		leader.position = IN_TRANSACTION;
		transaction_begin(payload, payload_length);
	}
}

/* The end of a transaction that began with BEGIN. */
static void
commit_transaction(char *message, int length, const char *payload, int payload_length)
{
	WireCommit	commit;
	const char *problem = wire_read_commit(payload, payload_length, &commit);

	if (problem == NULL && commit.commit_lsn != leader.final_lsn)
		problem = "the LSN is not the one that BEGIN has announced";
	if (problem)
		leader_damage(payload, problem);

	leader.received_lsn = Max(leader.received_lsn, commit.end_lsn);
	if (leader.position == IN_TRANSACTION)
	{
		transaction_commit(commit.end_lsn, commit.commit_time);
		message_settled(commit.end_lsn);
	}
	else
		leader_hand_over_end(message, length, commit.end_lsn, commit.commit_time);
	leader.position = BETWEEN_TRANSACTIONS;
}

/* Checks a change that the server's apply loop is going to read. */
void
message_check_change(const char *payload, int length, bool streamed)
{
	WireChange	change;
	WireCursor	relids;
	int			count;
	const char *problem;

	if (payload[0] == LOGICAL_REP_MSG_TRUNCATE)
		problem = wire_read_truncate(payload, length, streamed, &count, &relids);
	else
	{
		problem = wire_read_change(payload, length, streamed, &change);
		if (problem == NULL)
		{
			WireCursor	tuples = change.tuples;

			problem = wire_check_tuples(&change, -1);
			if (problem == NULL && wire_invalid_text(tuples) != 0)
				problem = "a value is not valid in the encoding of the database";
		}
	}
	if (problem)
		leader_damage(payload, problem);
}

/* A message within a transaction. */
static void
transaction_message(char *message, int length, const char *payload, int payload_length)
{
	bool		native = leader.position != IN_TRANSACTION;
	const char *problem;

	switch (payload[0])
	{
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:
			leader.changes_seen = true;
			if (native)
				message_check_change(payload, payload_length, false);
			else
				transaction_change(payload, payload_length);
			break;

		case LOGICAL_REP_MSG_TRUNCATE:
			leader.changes_seen = true;
			if (native)
				message_check_change(payload, payload_length, false);
			else
				transaction_truncate(payload, payload_length);
			break;

		case LOGICAL_REP_MSG_RELATION:
			transaction_relation(payload, payload_length);
			if (!native)
				relations_tell_server(payload, payload_length);
			break;

		case LOGICAL_REP_MSG_ORIGIN:
			if (leader.changes_seen)
				leader_damage(payload, "the message comes behind a change");
			/* FALLTHROUGH */
		case LOGICAL_REP_MSG_TYPE:
		case LOGICAL_REP_MSG_MESSAGE:
			/* Nothing to apply. */
			problem = wire_check_other(payload, payload_length);
			if (problem)
				leader_damage(payload, problem);
			break;

		default:
			leader_damage(payload, "the message does not belong into a transaction");
	}
	if (native)
		leader_hand_over(HANDOVER_MESSAGE, message, length);
}

/* A prepared transaction is committed or rolled back. */
static void
prepared_end(char *message, int length, const char *payload, int payload_length)
{
	WireCursor	cursor;
	XLogRecPtr	end_lsn;

	wire_start(&cursor, payload + 1, payload_length - 1);
	wire_bytes(&cursor, 1 + 8);
	end_lsn = wire_uint64(&cursor);
	if (payload[0] == LOGICAL_REP_MSG_ROLLBACK_PREPARED)
		wire_bytes(&cursor, 8);
	leader_hand_over_end(message, length, end_lsn, wire_uint64(&cursor));
}

/* A message between transactions. */
static void
outer_message(char *message, int length, const char *payload, int payload_length)
{
	const char *problem;

	if (payload[0] == LOGICAL_REP_MSG_BEGIN)
	{
		begin_transaction(message, length, payload, payload_length);
		return;
	}

	problem = wire_check_other(payload, payload_length);
	if (problem)
		leader_damage(payload, problem);

	switch (payload[0])
	{
		case LOGICAL_REP_MSG_BEGIN_PREPARE:
			leader_look_around();
			leader.changes_seen = false;
			leader.position = IN_PREPARED_TRANSACTION;
			leader_hand_over(HANDOVER_MESSAGE, message, length);
			break;

		case LOGICAL_REP_MSG_STREAM_START:
			leader_look_around();
			if (!take_turn(message, length))
				streams_start(message, length, payload, payload_length);
			break;

		case LOGICAL_REP_MSG_STREAM_COMMIT:
		case LOGICAL_REP_MSG_STREAM_ABORT:
		case LOGICAL_REP_MSG_STREAM_PREPARE:
			streams_end(message, length, payload, payload_length);
			break;

		case LOGICAL_REP_MSG_COMMIT_PREPARED:
		case LOGICAL_REP_MSG_ROLLBACK_PREPARED:
			prepared_end(message, length, payload, payload_length);
			break;

		case LOGICAL_REP_MSG_RELATION:
			transaction_relation(payload, payload_length);
			leader_hand_over(HANDOVER_MESSAGE, message, length);
			break;

		case LOGICAL_REP_MSG_TYPE:
		case LOGICAL_REP_MSG_MESSAGE:
			leader_hand_over(HANDOVER_MESSAGE, message, length);
			break;

		default:
			leader_damage(payload, "the message does not belong outside of a transaction");
	}
}

/* A message with data. */
void
message_data(char *message, int length)
{
	WireCursor	header;
	const char *payload = message + DATA_HEADER_LENGTH;
	int			payload_length = length - DATA_HEADER_LENGTH;

	wire_start(&header, message + 1, length - 1);
	leader.message_lsn = wire_uint64(&header);
	(void) wire_uint64(&header);
	leader.sent_time = wire_uint64(&header);
	if (header.failed || payload_length < 1)
		leader_damage(NULL, "the message is empty");
	leader.received_lsn = Max(leader.received_lsn, leader.message_lsn);

	switch (leader.position)
	{
		case BETWEEN_TRANSACTIONS:
			outer_message(message, length, payload, payload_length);
			break;

		case IN_TRANSACTION:
		case IN_NATIVE_TRANSACTION:
			if (payload[0] == LOGICAL_REP_MSG_COMMIT)
				commit_transaction(message, length, payload, payload_length);
			else
				transaction_message(message, length, payload, payload_length);
			break;

		case IN_PREPARED_TRANSACTION:
			if (payload[0] == LOGICAL_REP_MSG_PREPARE)
			{
				const char *problem = wire_check_other(payload, payload_length);

				if (problem)
					leader_damage(payload, problem);
				leader.position = BETWEEN_TRANSACTIONS;
				prepared_end(message, length, payload, payload_length);
			}
			else
				transaction_message(message, length, payload, payload_length);
			break;

		case IN_STREAM_BLOCK:
			streams_message(message, length, payload, payload_length);
			break;
	}
	pg_atomic_write_u64(&leader.shared->received_lsn, leader.received_lsn);
}

/* A keepalive. */
void
message_keepalive(char *message, int length)
{
	WireCursor	cursor;
	XLogRecPtr	end_lsn;
	bool		reply_requested;

	wire_start(&cursor, message + 1, length - 1);
	end_lsn = wire_uint64(&cursor);
	leader.sent_time = wire_uint64(&cursor);
	reply_requested = wire_uint8(&cursor) != 0;
	if (cursor.failed)
		leader_damage(NULL, "a keepalive ends too early");
	if (leader.publisher_holds)
	{
		/* What ends before that position may still be on its way. */
		end_lsn = leader.received_lsn;
		(void) message_put_uint64(message + 1, end_lsn);
	}

	if (end_lsn >= leader.until_lsn && leader.position == BETWEEN_TRANSACTIONS)
		leader_finish();

	leader.received_lsn = Max(leader.received_lsn, end_lsn);
	pg_atomic_write_u64(&leader.shared->received_lsn, leader.received_lsn);
	if (leader_drained())
	{
		leader_hand_over_end(message, length,
							 leader.position == BETWEEN_TRANSACTIONS ? end_lsn : InvalidXLogRecPtr,
							 0);
		return;
	}
	leader.settled_lsn = Max(leader.settled_lsn, end_lsn);

	feedback_send(leader.conn, leader.received_lsn, reply_requested, false);
	MyLogicalRepWorker->last_lsn = MyLogicalRepWorker->reply_lsn = leader.received_lsn;
	MyLogicalRepWorker->last_send_time = MyLogicalRepWorker->reply_time = leader.sent_time;
	MyLogicalRepWorker->last_recv_time = leader.received_time;
	leader.native_is_behind = true;
}
