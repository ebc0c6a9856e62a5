/*
 * handover.c
 *	  What the server's apply loop gets.
 *
 * The server's apply loop and the writers never work at the same time.  Whatever the leader
 * hands over to the loop, "nothing yet" included, it hands over only when drained
 * (pause.c): nothing is in flight, and all commits are collected.  The leader keeps a
 * message for the loop until then, and reads no further message meanwhile.
 *
 * What the loop does then - apply, report the flush position, synchronize tables, read its
 * configuration and its subscription again, wait for the socket - is correct as the
 * server's code stands, provided that the loop knows the subscription's progress.  It does not
 * see what the writers do.  Therefore, if anything has happened that the loop does not
 * know about, it first gets a keepalive that the leader makes, with the end of
 * what is settled, and the position of the last local commit through
 * store_flush_position() (feedback.c).  Only its next call gets the message kept for it.
 *
 * From 19 on, the loop of a subscription with retain_dead_tuples asks the publisher again and
 * again how far it is, and gets a status message as the answer.  Until it has gone through
 * this cycle, no server of the subscriber may remove dead rows.  The answer may arrive at any
 * moment, in the middle of a transaction that goes into the ring, too.  Therefore it is copied,
 * and the loop gets the copy before anything else that it gets next; messages.c sees to it that
 * this is soon.  The loop has one question open at most, so one copy is enough.  The answer
 * says nothing about what has arrived: the loop compares the position in it to what the
 * keepalive of the leader tells.
 *
 * "Settled" rather than "received": the message that is kept has been received, but the
 * loop has not applied it, so the keepalive must not tell a position behind its end.
 *
 * The loop applies a message between two calls.  When it calls again, the message is
 * done, and the leader accounts for it.
 */
#include "postgres.h"

#include "compat.h"
#include "last_error.h"
#include "message_builder.h"
#include "receive/feedback.h"
#include "receive/handover.h"
#include "receive/leader_ring.h"
#include "receive/led_subscription.h"
#include "receive/reception.h"
#include "receive/table_sync.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "storage/latch.h"
#include "utils/timestamp.h"

typedef enum HandoverKind
{
	HANDOVER_NOTHING,
	HANDOVER_MESSAGE,
	HANDOVER_TURN,				/* let it do its housekeeping */
	HANDOVER_END,				/* the stream has ended */
} HandoverKind;

typedef struct KeptMessage
{
	char	   *data;			/* NULL: none */
	int			length;
} KeptMessage;

/*
 * What is over once the loop has applied a message: a transaction, or WAL without one if
 * there is no commit time.
 */
typedef struct HandoverEnd
{
	XLogRecPtr	lsn;			/* invalid: nothing is over */
	TimestampTz commit_time;
} HandoverEnd;

/* What is kept for the loop.  The messages stay where they were received. */
static HandoverKind kept = HANDOVER_NOTHING;
static KeptMessage message;		/* for a turn: to be read again after it */
static KeptMessage second;		/* to be given right after "message" */
static HandoverEnd message_end; /* of both */

/* The publisher's answer to a question of the loop, or nothing. */
static char *status;
static int	status_length;

/* Of the message that the loop got last; it is done when the loop asks for more. */
static HandoverEnd given_end;

static bool behind;				/* something has happened that the loop does
								 * not know about */
static TimestampTz last_turn;	/* when it could last do its housekeeping */

/* Called once in a leader. */
void
handover_start(void)
{
	last_turn = GetCurrentTimestamp();
}

static void
keep(HandoverKind kind, char *data, int length, XLogRecPtr end_lsn, TimestampTz commit_time)
{
	kept = kind;
	message.data = data;
	message.length = length;
	message_end.lsn = end_lsn;
	message_end.commit_time = commit_time;
}

/* Keeps a message for the loop. */
void
handover_keep(char *data, int length)
{
	keep(HANDOVER_MESSAGE, data, length, InvalidXLogRecPtr, 0);
}

/* The same for a message that ends a transaction, or WAL without one. */
void
handover_keep_end(char *data, int length, XLogRecPtr end_lsn, TimestampTz commit_time)
{
	keep(HANDOVER_MESSAGE, data, length, end_lsn, commit_time);
}

/* Keeps one more message, which ends a transaction, to be given right after the first. */
void
handover_keep_second(char *data, int length, XLogRecPtr end_lsn, TimestampTz commit_time)
{
	second.data = data;
	second.length = length;
	message_end.lsn = end_lsn;
	message_end.commit_time = commit_time;
}

/* Lets the loop do its housekeeping; the leader then takes this message back. */
void
handover_turn_before(char *data, int length)
{
	keep(HANDOVER_TURN, data, length, InvalidXLogRecPtr, 0);
}

/* Tells the loop that the stream has ended. */
void
handover_stream_end(void)
{
	keep(HANDOVER_END, NULL, 0, InvalidXLogRecPtr, 0);
}

/* Is anything kept for the loop? */
bool
handover_waiting(void)
{
	return kept != HANDOVER_NOTHING;
}

/* Returns the message in front of which the loop had its turn: its length, or zero. */
int
handover_take_back(char **data)
{
	*data = message.data;
	message.data = NULL;
	return *data ? message.length : 0;
}

/* The publisher has answered a question of the loop: copies the message. */
void
handover_status(const char *data, int length)
{
	if (status != NULL)
		pfree(status);
	status = MemoryContextAlloc(led.context, length);
	memcpy(status, data, length);
	status_length = length;
}

/* Is there an answer that the loop has not got yet? */
bool
handover_status_waiting(void)
{
	return status_length > 0;
}

/* Something has happened that the loop does not know about. */
void
handover_news(void)
{
	behind = true;
}

/* Everything up to end_lsn is in the ring. */
void
handover_settled(XLogRecPtr end_lsn)
{
	reception_arrived(end_lsn);
	reception_settled(end_lsn);
	behind = true;
	MyLogicalRepWorker->last_lsn = reception.received_lsn;
	MyLogicalRepWorker->last_send_time = reception.sent_time;
	MyLogicalRepWorker->last_recv_time = reception.received_time;
}

/* The loop asks for more, so it has applied what it got last: accounts for that. */
void
handover_account(void)
{
	if (XLogRecPtrIsInvalid(given_end.lsn))
		return;
	if (given_end.lsn > pg_atomic_read_u64(&led.shared->applied_lsn))
		pg_atomic_write_u64(&led.shared->applied_lsn, given_end.lsn);
	if (given_end.commit_time != 0)
	{
		pg_atomic_write_u64(&led.shared->applied_time, given_end.commit_time);
		pg_atomic_fetch_add_u64(&led.shared->native_transactions, 1);
		feedback_native_committed();
	}
	given_end.lsn = InvalidXLogRecPtr;
	given_end.commit_time = 0;
	last_error_set_subject(InvalidXLogRecPtr);
}

/*
 * The loop may mark a table READY next.  No replication origin remembers the transactions of
 * which changes were skipped because of that table's state, if they changed nothing else; and
 * the publisher, which has been told of them, forgets that in a crash, unless a checkpoint
 * has written it.  It would send them again, and they would be applied twice.  Therefore the
 * commit record that marks the table carries the position, as it does for what the loop itself
 * has skipped.
 */
static void
remember_skipped(XLogRecPtr lsn)
{
	if (table_sync_possible())
		replorigin_session_origin_lsn = Max(replorigin_session_origin_lsn, lsn);
}

/* Tells the loop by a keepalive how far the subscription is. */
static int
deliver_keepalive(char **buffer)
{
	static char keepalive[MESSAGE_KEEPALIVE_LENGTH];

	Assert(leader_ring.producer.ring == NULL ||
		   leader_ring.collected == leader_ring.producer.seq);
	feedback_synchronize_native(table_sync_possible());
	remember_skipped(reception.settled_lsn);
	*buffer = keepalive;
	behind = false;
	given_end.lsn = reception.settled_lsn;
	return message_keepalive(keepalive, reception.settled_lsn, reception.sent_time);
}

/* Gives the loop the publisher's answer.  It stays where it is until the next one. */
static int
deliver_status(char **buffer)
{
	int			length = status_length;

	*buffer = status;
	status_length = 0;
	return length;
}

/* Gives the loop the message that is kept, or the first of two. */
static int
deliver_message(char **buffer)
{
	int			length = message.length;

	compat_injection_point("weft-leader-hands-over");
	*buffer = message.data;
	if (second.data != NULL)
	{
		handover_keep_end(second.data, second.length,
						  message_end.lsn, message_end.commit_time);
		second.data = NULL;
		return length;
	}
	message.data = NULL;
	given_end = message_end;
	/* The loop itself sees to a transaction's end. */
	if (message_end.commit_time == 0)
		remember_skipped(message_end.lsn);
	return length;
}

/* Gives the loop what is kept for it; called when drained. */
int
handover_deliver(char **buffer, pgsocket *wait_fd)
{
	HandoverKind kind = kept;

	if (behind)
		return deliver_keepalive(buffer);
	if (status_length > 0)
		return deliver_status(buffer);

	kept = HANDOVER_NOTHING;
	switch (kind)
	{
		case HANDOVER_MESSAGE:
			return deliver_message(buffer);
		case HANDOVER_TURN:
			/* It must not sleep: the leader has the next message already. */
			SetLatch(MyLatch);
			last_turn = GetCurrentTimestamp();
			*wait_fd = reception_any_socket();
			return 0;
		case HANDOVER_END:
			return -1;
		case HANDOVER_NOTHING:
			break;
	}
	pg_unreachable();
}

/*
 * Tells the loop that there is no message yet, or gives it a keepalive instead; called
 * when drained.
 */
int
handover_deliver_nothing(char **buffer, pgsocket *wait_fd)
{
	*wait_fd = reception.socket;
	if (behind)
		return deliver_keepalive(buffer);
	return status_length > 0 ? deliver_status(buffer) : 0;
}

/* The loop is about to wait for the socket, and does its housekeeping then. */
void
handover_turn_taken(void)
{
	last_turn = GetCurrentTimestamp();
}

/* When could the loop last do its housekeeping? */
TimestampTz
handover_last_turn(void)
{
	return last_turn;
}
