/*
 * messages.c
 *	  What becomes of each message from the publisher.
 *
 * The position in the stream decides which messages may come; the message decides where
 * it goes: into the ring, into a spool (streams.c), or to the server's apply
 * loop (handover.c).  Every message is checked first: anything that the server's code would
 * take on trust, or fail an assertion about, is reported as damage here.
 *
 * The server's apply loop gets each transaction that the leader cannot put into the ring:
 *
 *	 - prepared transactions that are not streamed;
 *	 - transactions while ALTER SUBSCRIPTION ... SKIP waits for its LSN;
 *	 - every transaction while there are no writers;
 *	 - every transaction while a parallel apply worker of the server has one in progress
 *	   (streams.c).
 */
#include "postgres.h"

#include "compat.h"
#include "last_error.h"
#include "next_leader.h"
#include "receive/damage.h"
#include "receive/ddl_rows.h"
#include "receive/feedback.h"
#include "receive/handover.h"
#include "receive/housekeeping.h"
#include "receive/led_subscription.h"
#include "receive/messages.h"
#include "receive/pause.h"
#include "receive/reception.h"
#include "receive/relations.h"
#include "receive/stream_set.h"
#include "receive/streams.h"
#include "receive/table_sync.h"
#include "receive/transaction.h"
#include "receive/writers.h"
#include "replication/worker_internal.h"
#include "utils/timestamp.h"
#include "wire.h"

/*
 * How often the loop gets a turn while it has work that somebody waits for: while tables or
 * sequences are being synchronized, or dead rows are kept until it says that they are not needed.
 */
#define URGENT_TURN_INTERVAL 100	/* ms */
/* How often the loop gets a turn under full load. */
#define TURN_INTERVAL 10000		/* ms */

/* 's', position, oldest and next transaction ID, time. */
#define STATUS_MESSAGE_LENGTH (1 + 8 + 8 + 8 + 8)

typedef enum StreamPosition
{
	BETWEEN_TRANSACTIONS,
	IN_TRANSACTION,				/* that goes into the ring */
	IN_NATIVE_TRANSACTION,		/* that the server's apply loop applies */
	IN_PREPARED_TRANSACTION,	/* the same, up to PREPARE */
	IN_STREAM_BLOCK,			/* between STREAM START and STREAM STOP */
} StreamPosition;

static StreamPosition position = BETWEEN_TRANSACTIONS;

/* Of the current transaction. */
static XLogRecPtr transaction_final_lsn;
static bool skipped;			/* by the server's apply loop */
static bool changes_seen;

/* Is the stream between transactions, rather than in one or in a block? */
bool
messages_between_transactions(void)
{
	return position == BETWEEN_TRANSACTIONS;
}

/*
 * While ALTER SUBSCRIPTION ... SKIP waits for its LSN, the server's apply loop gets all
 * transactions, and skips the one that SKIP names.  But it applies the others without
 * detecting conflicts.  Therefore, if conflicts are to be detected, it gets only the
 * named one.
 */
static bool
to_be_skipped(XLogRecPtr final_lsn)
{
	if (XLogRecPtrIsInvalid(MySubscription->skiplsn))
		return false;
	return !led.detect_conflicts || MySubscription->skiplsn == final_lsn;
}

/* Does the server's apply loop have work that somebody waits for? */
static bool
is_urgent(void)
{
	return table_sync_pending() || table_sync_sequences_pending() ||
		compat_retains_dead_tuples(MySubscription);
}

/*
 * Gives the server's apply loop a turn if it is time for one.  If so, returns true; the
 * message is read again afterwards.
 */
static bool
take_turn(char *message, int length)
{
	if (reception.socket == PGINVALID_SOCKET ||
		(!handover_status_waiting() &&
		 !TimestampDifferenceExceeds(handover_last_turn(), reception.received_time,
									 is_urgent() ? URGENT_TURN_INTERVAL : TURN_INTERVAL)))
		return false;
	handover_turn_before(message, length);
	return true;
}

/* A transaction, or one that is to be prepared, begins. */
static void
begin_any(XLogRecPtr final_lsn)
{
	transaction_final_lsn = final_lsn;
	skipped = MySubscription->skiplsn == final_lsn;
	changes_seen = false;
}

/* Decides what becomes of a transaction that begins. */
static void
begin_transaction(char *message, int length, const char *payload, int payload_length)
{
	WireBegin	begin;
	const char *problem = wire_read_begin(payload, payload_length, &begin);

	if (problem)
		damage_report(payload, problem);

	housekeeping_between_transactions();
	if (begin.final_lsn >= led.until_lsn)
		housekeeping_finish();
	if (take_turn(message, length))
		return;
	if (table_sync_pending() && next_leader_wait(MySubscription->oid) == begin.final_lsn &&
		ddl_rows_wait(begin.final_lsn, message, length))
		return;

	begin_any(begin.final_lsn);
	if (writers_count() == 0 || stream_set_has_parallel() ||
		to_be_skipped(begin.final_lsn))
	{
		position = IN_NATIVE_TRANSACTION;
		last_error_set_subject(begin.final_lsn);
		handover_keep(message, length);
	}
	else
	{
		position = IN_TRANSACTION;
		transaction_begin(payload, payload_length);
	}
}

/* The end of a transaction that began with BEGIN. */
static void
commit_transaction(char *message, int length, const char *payload, int payload_length)
{
	WireCommit	commit;
	const char *problem = wire_read_commit(payload, payload_length, &commit);

	if (problem == NULL && commit.commit_lsn != transaction_final_lsn)
		problem = "the LSN is not the one that BEGIN announced";
	if (problem)
		damage_report(payload, problem);

	reception_arrived(commit.end_lsn);
	if (position == IN_TRANSACTION)
	{
		transaction_commit(commit.end_lsn, commit.commit_time);
		handover_settled(commit.end_lsn);
	}
	else
		handover_keep_end(message, length, commit.end_lsn, commit.commit_time);
	position = BETWEEN_TRANSACTIONS;
	ddl_rows_passed(commit.end_lsn);
}

/* A schema change, which the server's apply loop does not get (ddl_rows.c). */
static void
schema_change(const char *json, int length)
{
	changes_seen = true;
	if (position == IN_TRANSACTION)
	{
		ddl_rows_check_copies(transaction_final_lsn);
		transaction_ddl(json, length);
	}
	else if (skipped)
		return;
	else if (position == IN_PREPARED_TRANSACTION)
		ddl_rows_refuse_prepared(transaction_final_lsn);
	else
	{
		ddl_rows_check_copies(transaction_final_lsn);
		ddl_rows_apply(json, length, transaction_final_lsn);
	}
}

/* Takes a message that concerns schema changes.  Returns false if it is another one. */
static bool
take_schema_change(const char *payload, int payload_length)
{
	DdlRow		kind;
	const char *json;
	int			length;
	const char *problem = ddl_rows_read(payload, payload_length, false, &kind, &json, &length);

	if (problem)
		damage_report(payload, problem);
	if (kind == DDL_ROW_STATEMENT)
		schema_change(json, length);
	return kind != DDL_ROW_OTHER;
}

/*
 * Checks a change of a transaction that the server's apply loop is going to apply.  Of one that is
 * skipped, it reads the message, but not the values.
 */
static void
check_native_change(const char *payload, int length)
{
	int			column = damage_check_change(payload, length, false);

	if (column != 0 && !skipped)
		damage_report_text(payload[0], column, transaction_final_lsn);
}

/* A message within a transaction. */
static void
transaction_message(char *message, int length, const char *payload, int payload_length)
{
	bool		native = position != IN_TRANSACTION;
	const char *problem;

	if (take_schema_change(payload, payload_length))
		return;
	switch (payload[0])
	{
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:
			changes_seen = true;
			if (native)
				check_native_change(payload, payload_length);
			else
				transaction_change(payload, payload_length);
			break;

		case LOGICAL_REP_MSG_TRUNCATE:
			changes_seen = true;
			if (native)
				check_native_change(payload, payload_length);
			else
				transaction_truncate(payload, payload_length);
			break;

		case LOGICAL_REP_MSG_RELATION:
			transaction_relation(payload, payload_length);
			if (!native)
				relations_tell_server(payload, payload_length);
			break;

		case LOGICAL_REP_MSG_ORIGIN:
		case LOGICAL_REP_MSG_TYPE:
		case LOGICAL_REP_MSG_MESSAGE:
			if (payload[0] == LOGICAL_REP_MSG_ORIGIN && changes_seen)
				damage_report(payload, "the message follows a change");
			/* Nothing to apply. */
			problem = wire_check_other(payload, payload_length);
			if (problem)
				damage_report(payload, problem);
			break;

		default:
			damage_report(payload, "the message does not belong in a transaction");
	}
	if (native)
		handover_keep(message, length);
}

/* A transaction is prepared, or a prepared one is committed or rolled back. */
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
	handover_keep_end(message, length, end_lsn, wire_uint64(&cursor));
}

/* A message between transactions. */
static void
outer_message(char *message, int length, const char *payload, int payload_length)
{
	const char *problem;
	WireCursor	cursor;

	if (payload[0] == LOGICAL_REP_MSG_BEGIN)
	{
		begin_transaction(message, length, payload, payload_length);
		return;
	}

	problem = wire_check_other(payload, payload_length);
	if (problem)
		damage_report(payload, problem);

	switch (payload[0])
	{
		case LOGICAL_REP_MSG_BEGIN_PREPARE:
			housekeeping_between_transactions();
			position = IN_PREPARED_TRANSACTION;
			wire_start(&cursor, payload + 1, payload_length - 1);
			begin_any(wire_uint64(&cursor));
			last_error_set_subject(transaction_final_lsn);
			handover_keep(message, length);
			break;

		case LOGICAL_REP_MSG_STREAM_START:
			housekeeping_between_transactions();
			if (!take_turn(message, length))
			{
				streams_start(message, length, payload, payload_length);
				position = IN_STREAM_BLOCK;
			}
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
			handover_keep(message, length);
			break;

		case LOGICAL_REP_MSG_TYPE:
		case LOGICAL_REP_MSG_MESSAGE:
			handover_keep(message, length);
			break;

		default:
			damage_report(payload, "the message does not belong outside a transaction");
	}
}

/* A message with data. */
void
messages_data(char *message, int length)
{
	WireCursor	header;
	const char *payload = message + DATA_HEADER_LENGTH;
	int			payload_length = length - DATA_HEADER_LENGTH;

	wire_start(&header, message + 1, length - 1);
	reception.message_lsn = wire_uint64(&header);
	(void) wire_uint64(&header);
	reception.sent_time = wire_uint64(&header);
	if (header.failed || payload_length < 1)
		damage_report(NULL, "the message is empty");
	reception_arrived(reception.message_lsn);

	switch (position)
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
					damage_report(payload, problem);
				position = BETWEEN_TRANSACTIONS;
				prepared_end(message, length, payload, payload_length);
			}
			else
				transaction_message(message, length, payload, payload_length);
			break;

		case IN_STREAM_BLOCK:
			if (streams_message(message, length, payload, payload_length))
				position = BETWEEN_TRANSACTIONS;
			break;
	}
	reception_show();
}

/* A keepalive.  Everything that ends before its position has arrived (hold.c). */
void
messages_keepalive(char *message, int length)
{
	WireKeepalive keepalive;
	const char *problem = wire_read_keepalive(message, length, &keepalive);

	if (problem)
		damage_report(NULL, problem);
	reception.sent_time = keepalive.sent_time;
	if (keepalive.end_lsn >= led.until_lsn && position == BETWEEN_TRANSACTIONS)
		housekeeping_finish();

	ddl_rows_passed(keepalive.end_lsn);
	reception_arrived(keepalive.end_lsn);
	reception_show();
	if (pause_drained())
	{
		handover_keep_end(message, length,
						  position == BETWEEN_TRANSACTIONS ? keepalive.end_lsn : InvalidXLogRecPtr,
						  0);
		return;
	}
	reception_settled(keepalive.end_lsn);

	feedback_send(reception.conn, reception.received_lsn, keepalive.reply_requested, false);
	MyLogicalRepWorker->last_lsn = MyLogicalRepWorker->reply_lsn = reception.received_lsn;
	MyLogicalRepWorker->last_send_time = MyLogicalRepWorker->reply_time = reception.sent_time;
	MyLogicalRepWorker->last_recv_time = reception.received_time;
	handover_news();
}

/*
 * The publisher's answer to a question of the server's apply loop, which no older loop asks.
 * The loop gets it with its next turn.
 */
void
messages_status(char *message, int length)
{
	if (!HAVE_DEAD_TUPLE_RETENTION)
		return;
	if (length != STATUS_MESSAGE_LENGTH)
		damage_report(NULL, "a status message has a wrong length");
	handover_status(message, length);
}
