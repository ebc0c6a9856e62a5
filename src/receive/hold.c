/*
 * hold.c
 *	  The leader's part in a cut: it holds transactions back.
 *
 * Actors: the leader; the requester R (verify/cut.c); S, a snapshot of the publisher that R
 * gives; L, a position of the publisher's WAL behind everything that S sees.
 *
 * 1. R asks (cut_request.h).  Between two transactions the leader holds: whatever arrives from now
 *	  on is queued.  The stream is read on, so keepalives are answered.
 *
 * 2. R takes S and L, and gives them.  S must see everything that the leader has begun to
 *	  apply (recent_commits.c); if it does not, the leader asks for another one.
 *
 * 3. The leader goes on, up to the last transaction that S sees.  Usually S sees none behind the first one that it
 *	  does not see, and then that one is held.  But a commit record and the
 *	  transaction's visibility may come in different orders, by microseconds, or by the time
 *	  that a flush or a standby takes.  Then a transaction is applied that S does not see, and
 *	  the leader asks for another S, which sees that one, too, with luck.
 *
 * 4. It reads on until the stream has passed L: now it has seen everything that S sees.
 *	  When all that is applied and committed, the leader stands.
 *
 * 5. R releases the request, or one of the limits is exceeded, or too much would be queued.
 *	  Then the leader goes on, with what is queued first.
 *
 * All of this is about ends of transactions.  A message that ends none, such as a block of a
 * streamed transaction or PREPARE, makes nothing visible.  It passes unless something before
 * it is held.
 *
 * While apply stands still, the server's apply loop does not run, except that keepalives pass
 * and that it gets a turn when the publisher has to be told what it has committed.  All pauses are
 * short: a pinned request lasts until R's commit, any other one is limited.
 *
 * The leader waits for R, and R waits for the leader, for the publisher, and, to write, for
 * locks.  If a writer waits for a lock of R, the leader cannot stand; the limits
 * end that.
 */
#include "postgres.h"

#include "cut_request.h"
#include "message_builder.h"
#include "miscadmin.h"
#include "publish/batch_format.h"
#include "receive/batch.h"
#include "receive/feedback.h"
#include "receive/hold.h"
#include "receive/leader_ring.h"
#include "receive/led_subscription.h"
#include "receive/messages.h"
#include "receive/pause.h"
#include "receive/recent_commits.h"
#include "receive/reception.h"
#include "replication/logicalproto.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "wire.h"

/* Bytes that are queued at most, plus one message. */
#define QUEUE_LIMIT (32 * 1024 * 1024)

/* How often the publisher is asked how far it is, in milliseconds. */
#define ASK_INTERVAL 10

/* The longest sleep. */
#define LONGEST_SLEEP 1000L		/* ms */

typedef struct QueuedMessage
{
	struct QueuedMessage *next;
	TransactionId ends;			/* transaction that it makes visible, or
								 * invalid */
	int			length;
	char		data[FLEXIBLE_ARRAY_MEMBER];
} QueuedMessage;

/* What is held back. */
static MemoryContext queue_context;
static QueuedMessage *first;
static QueuedMessage *last;
static QueuedMessage *taken;	/* still in use */
static Size queued_bytes;

/* A message of the stream that has no room in the queue, where it was received. */
static char *in_hand;
static int	in_hand_length;		/* zero: none; -1: the end of the stream */

/* The request that is served. */
static bool serving;
static uint64 request_id;
static TimestampTz deadline;
static CutLimits limits;
static CutSnapshot *snapshot;
static bool given;				/* is the snapshot valid? */
static int	visible_ahead;		/* queued transactions that it sees */
static bool invisible_applied;	/* was one applied that it does not see? */
static bool turn_wanted;		/* by the server's apply loop */
static TimestampTz asked;		/* when the publisher was last asked */
static TimestampTz stands_since;	/* zero: the leader does not stand */
static TimestampTz still_since; /* zero: apply does not stand still */
static int64 longest_still;		/* us, for this request */

static CutRequest *
request(void)
{
	return &led.shared->cut;
}

/* Returns the transaction that a message makes visible, or an invalid ID. */
static TransactionId
ended_by(const char *message, int length)
{
	const char *payload = message + DATA_HEADER_LENGTH;
	WireCursor	cursor;
	TransactionId result = InvalidTransactionId;

	if (message[0] != 'w' || length <= DATA_HEADER_LENGTH)
		return InvalidTransactionId;
	wire_start(&cursor, payload + 1, length - DATA_HEADER_LENGTH - 1);
	switch (payload[0])
	{
		case LOGICAL_REP_MSG_BEGIN:
			wire_bytes(&cursor, 8 + 8);
			result = wire_uint32(&cursor);
			break;
		case LOGICAL_REP_MSG_STREAM_COMMIT:
			result = wire_uint32(&cursor);
			break;
		case LOGICAL_REP_MSG_COMMIT_PREPARED:
			wire_bytes(&cursor, 1 + 8 + 8 + 8);
			result = wire_uint32(&cursor);
			break;
		default:
			break;
	}
	/* Damage is reported when it is its turn. */
	return cursor.failed ? InvalidTransactionId : result;
}

/* Does the snapshot see the transaction, if the message ends one? */
static bool
seen(TransactionId xid)
{
	return TransactionIdIsValid(xid) && recent_commits_sees(snapshot, xid);
}

/* Something is applied again. */
static void
end_stillness(void)
{
	if (still_since != 0)
		longest_still = Max(longest_still, GetCurrentTimestamp() - still_since);
	still_since = 0;
}

/* The request is over. */
static void
go_on(void)
{
	end_stillness();
	pg_atomic_write_u64(&request()->last_pause, longest_still);
	if (longest_still > pg_atomic_read_u64(&request()->longest_pause))
		pg_atomic_write_u64(&request()->longest_pause, longest_still);
	serving = false;
	given = false;
	turn_wanted = false;
	stands_since = 0;
}

/* Goes on by itself, unless the request is pinned. */
static void
lose(CutLoss loss)
{
	if (cut_request_lose(request(), request_id, loss))
		go_on();
}

/* Asks for another snapshot. */
static void
refuse(TransactionId doubtful)
{
	given = false;
	if (!TransactionIdIsValid(doubtful) && pause_drained())
	{
		/* On the publisher, somebody may be waiting for this. */
		feedback_flush(reception.conn, reception.received_lsn);
		turn_wanted = snapshot->synchronous;
	}
	(void) cut_request_refuse(request(), request_id, doubtful);
}

/* Takes the snapshot that the requester has given. */
static void
take_snapshot(void)
{
	TransactionId doubtful;

	if (!cut_request_copy_snapshot(request(), request_id, snapshot))
		return;
	pg_atomic_fetch_add_u64(&request()->attempts, 1);
	if (recent_commits_check(snapshot, &doubtful) != RECENT_ALL_VISIBLE)
	{
		refuse(doubtful);
		return;
	}
	given = true;
	invisible_applied = false;
	asked = 0;
	visible_ahead = 0;
	for (QueuedMessage *message = first; message != NULL; message = message->next)
		if (seen(message->ends))
			visible_ahead++;
}

/* Has the cut been reached? */
static void
judge(void)
{
	if (visible_ahead > 0 || reception.received_lsn < snapshot->lsn || !pause_drained())
		return;
	if (invisible_applied)
		refuse(InvalidTransactionId);
	else if (cut_request_stand(request(), request_id))
	{
		stands_since = GetCurrentTimestamp();
		pg_atomic_fetch_add_u64(&request()->cuts, 1);
	}
}

/* Goes on if that is due.  The deadline is that of reaching the cut. */
static void
check_limits(void)
{
	TimestampTz now = GetCurrentTimestamp();

	if (stands_since == 0 && now >= deadline)
		lose(CUT_LOSS_DEADLINE);
	else if (stands_since != 0 ?
			 TimestampDifferenceExceeds(stands_since, now, limits.stand) :
			 still_since != 0 && TimestampDifferenceExceeds(still_since, now, limits.attempt))
		lose(CUT_LOSS_STILL);
}

/* Begins to serve a request if there is one. */
static void
begin(void)
{
	if (!cut_request_hold(request(), &request_id, &deadline, &limits))
		return;
	if (snapshot == NULL)
		snapshot = MemoryContextAlloc(led.context, sizeof(CutSnapshot));
	serving = true;
	given = false;
	stands_since = 0;
	still_since = 0;
	longest_still = 0;
}

/* Looks at the request.  Called between transactions, with nothing kept for the loop. */
static void
look(void)
{
	if (!serving)
	{
		if (cut_request_exists(request()))
			begin();
		if (!serving)
			return;
	}
	switch (cut_request_state(request(), request_id))
	{
		case CUT_HELD:
		case CUT_STANDING:
			break;
		case CUT_GIVEN:
			if (!given)
				take_snapshot();
			if (given)
				judge();
			break;
		case CUT_PINNED:
			return;
		case CUT_FREE:
		case CUT_WANTED:
		case CUT_LOST:
			go_on();
			return;
	}
	check_limits();
}

static void
enqueue(const char *message, int length, TransactionId ends)
{
	QueuedMessage *queued;

	if (queue_context == NULL)
		queue_context = AllocSetContextCreate(led.context, "weft held messages",
											  ALLOCSET_DEFAULT_SIZES);
	queued = MemoryContextAllocHuge(queue_context, offsetof(QueuedMessage, data) + length);
	queued->next = NULL;
	queued->ends = ends;
	queued->length = length;
	memcpy(queued->data, message, length);
	if (first == NULL)
		first = queued;
	else
		last->next = queued;
	last = queued;
	queued_bytes += length;
	if (given && seen(ends))
		visible_ahead++;
}

/* Frees the message that was taken from the queue, which has been processed. */
static void
free_taken(void)
{
	if (taken == NULL)
		return;
	pfree(taken);
	taken = NULL;
	if (first == NULL)
		MemoryContextReset(queue_context);
}

/* Takes the next message from the queue, if it may go on; returns its length, or zero. */
static int
take_queued(char **message)
{
	if (first == NULL ||
		(serving && messages_between_transactions() && !(given && visible_ahead > 0)))
		return 0;
	taken = first;
	first = taken->next;
	queued_bytes -= taken->length;
	if (given && seen(taken->ends))
		visible_ahead--;
	*message = taken->data;
	return taken->length;
}

/*
 * A keepalive has been read from the stream.  Notes how far the publisher is.  If that may hold
 * transactions which end before, puts in the end of what has arrived so far, because nothing that
 * arrives later, and is queued behind the keepalive, may count when its turn comes.
 */
static void
bound_keepalive(char *message, int length)
{
	WireKeepalive keepalive;

	/* Damage is reported when it is its turn. */
	if (wire_read_keepalive(message, length, &keepalive) != NULL)
		return;
	reception_told(keepalive.end_lsn);
	if (batch_publisher_holds())
		(void) message_put_uint64(message + 1, reception.received_lsn);
}

/* A keepalive comes behind something that is held: answers it now. */
static void
answer_keepalive(const char *message, int length)
{
	WireKeepalive keepalive;

	if (wire_read_keepalive(message, length, &keepalive) != NULL)
		return;
	reception_arrived(keepalive.end_lsn);
	feedback_send(reception.conn, reception.received_lsn, keepalive.reply_requested, false);
}

/* Notes how far the stream is, by a message of which nothing else is looked at yet. */
static void
note_position(const char *message, int length)
{
	WireCursor	cursor;
	XLogRecPtr	lsn;

	wire_start(&cursor, message + 1, length - 1);
	lsn = wire_uint64(&cursor);
	if (!cursor.failed)
		reception_arrived(lsn);
}

/* May a message that has just arrived go on, with nothing before it that is held? */
static bool
passes(const char *message, TransactionId ends)
{
	if (!serving || !messages_between_transactions())
		return true;
	if (message[0] != 'w')
		return true;
	return given && stands_since == 0 &&
		(TransactionIdIsValid(ends) ? seen(ends) : true);
}

/* Queues a message that has just arrived, unless it may go on. */
static bool
hold_back(char *message, int length)
{
	TransactionId ends = ended_by(message, length);

	if (first == NULL && passes(message, ends))
		return false;
	if (queued_bytes + length > QUEUE_LIMIT)
	{
		/* It is looked at again when the queue is empty. */
		in_hand = message;
		in_hand_length = length;
		if (serving && stands_since == 0)
			lose(CUT_LOSS_MEMORY);
		return true;
	}
	if (message[0] == 'w')
		note_position(message, length);
	else if (message[0] == 'k')
		answer_keepalive(message, length);
	enqueue(message, length, ends);
	return true;
}

/*
 * Returns the length of the next message of the stream; zero if there is none, or if none
 * should be read; -1 at its end.
 */
static int
read_stream(char **message)
{
	int			length;

	if (in_hand_length != 0)
	{
		if (first != NULL)
			return 0;
		length = in_hand_length;
		*message = in_hand;
		in_hand_length = 0;
		return length;
	}
	for (;;)
	{
		length = batch_next(message);
		if (length > 0)
			return length;
		length = reception_take(message);
		if (length > 0 && (*message)[0] == 'k')
			bound_keepalive(*message, length);
		if (length <= 0 || !batch_open(*message, length))
			return length;
	}
}

/*
 * Returns the next message to be processed, with the meaning of reception_take().  It stays
 * where it is until the next call.
 */
int
hold_receive(char **message)
{
	free_taken();
	for (;;)
	{
		int			length;
		TransactionId ends;

		CHECK_FOR_INTERRUPTS();
		if (messages_between_transactions())
			look();
		length = take_queued(message);
		if (length == 0)
		{
			length = read_stream(message);
			if (length < 0 && (first != NULL || serving))
			{
				in_hand_length = length;
				lose(CUT_LOSS_LEADER);
				if (serving)
					return 0;
				continue;
			}
			if (length <= 0)
				return length;
			if ((serving || first != NULL) && hold_back(*message, length))
			{
				if (in_hand_length != 0 && serving)
					return 0;
				continue;
			}
		}

		ends = ended_by(*message, length);
		if (TransactionIdIsValid(ends))
		{
			recent_commits_add(ends);
			if (serving && given && !seen(ends))
				invisible_applied = true;
		}
		if ((*message)[0] == 'w')
			end_stillness();
		return length;
	}
}

/* Does the leader hold, so that it should call hold_wait() if there is nothing to process? */
bool
hold_active(void)
{
	return serving && messages_between_transactions();
}

/* Returns in how many milliseconds something is due. */
static long
time_left(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz due = deadline;

	if (stands_since != 0)
		due = TimestampTzPlusMilliseconds(stands_since, limits.stand);
	else if (still_since != 0)
		due = Min(due, TimestampTzPlusMilliseconds(still_since, limits.attempt));
	if (given && reception.received_lsn < snapshot->lsn)
		due = Min(due, TimestampTzPlusMilliseconds(now, ASK_INTERVAL));
	return Min(TimestampDifferenceMilliseconds(now, due) + 1, LONGEST_SLEEP);
}

/*
 * Sleeps until there is something to do, while the leader holds and nothing may be
 * processed.  Returns false if the server's apply loop should get a turn instead.
 */
bool
hold_wait(void)
{
	bool		drained = pause_drained();
	uint64		awaited = leader_ring.producer.ring ? leader_ring.producer.seq : 0;
	TimestampTz now = GetCurrentTimestamp();

	if (drained)
	{
		if (turn_wanted)
			return false;
		if (still_since == 0)
			still_since = now;
		awaited++;
	}
	if (given && reception.received_lsn < snapshot->lsn &&
		TimestampDifferenceExceeds(asked, now, ASK_INTERVAL))
	{
		feedback_send(reception.conn, reception.received_lsn, true, true);
		asked = now;
	}
	pause_sleep_at_most(time_left(), in_hand_length != 0 ? PGINVALID_SOCKET : reception.socket,
						awaited, WEFT_WAIT_LEADER_CUT);
	return true;
}

/* The server's apply loop gets its turn.  It must not sleep. */
void
hold_turn_taken(void)
{
	if (!turn_wanted)
		return;
	turn_wanted = false;
	SetLatch(MyLatch);
}
