/*
 * stream_writer.c
 *	  Applies transactions that were streamed.
 *
 * Actors: the leader; T1, a streamed transaction; S1, the stream writer that applies T1 ahead
 * of its turn; W1, the ordinary writer that takes T1 from the ring.
 *
 * The leader appends everything that arrives of T1 to a file, T1's spool
 * (receive/streams.c).  S1 reads the spool while it grows, and applies T1 in a local
 * transaction that it keeps open.  When T1 ends on the publisher, the leader gives it a place
 * in the ring, where W1 takes it.  These are the states of T1's StreamShared, and who changes
 * them:
 *
 *	 leader		FREE -> SPOOLED			T1's first block arrives
 *	 leader		SPOOLED -> APPLYING		at the beginning of a block, if a stream writer is
 *										idle
 *	 W1			APPLYING -> FINISHING	it is T1's turn: commit
 *	 W1			APPLYING -> DISCARDED	it is T1's turn, but T1 must be applied alone
 *	 leader		APPLYING -> DISCARDED	T1 was aborted
 *	 S1			FINISHING -> COMMITTED
 *	 S1			APPLYING, FINISHING, DISCARDED -> FAILED	everything is rolled back
 *	 leader		any of the last, or SPOOLED -> FREE			T1 is over
 *
 * Each transition out of APPLYING is an atomic exchange.  Therefore only one of those who
 * want one succeeds.  Once S1 has set COMMITTED or FAILED, it no longer looks at the entry.
 *
 * W1 first waits for T1's turn; it holds no locks then.  So when W1 asks S1 to commit, all
 * earlier transactions are committed, and T1 is the oldest.  If the state is or becomes
 * FAILED, or if no stream writer has applied anything of T1, then W1 applies T1 itself, from
 * the spool, without what subtransactions that were aborted did.  It does so as for
 * any other oldest transaction.  Only there does an error count as one.
 *
 * Therefore S1 may fail at any time.  An error, a missing row, a table that is not READY, a
 * TRUNCATE, a schema change, a trigger that would fire, too many subtransactions: all of these only make S1
 * roll back.
 *
 * Possible deadlocks:
 *	 1. W2, with an ordinary transaction T2, needs a lock that S1 holds, while S1 waits for the
 *		leader to receive more of T1.  T1 will be committed before some of the
 *		transactions that are applied beside it and after others; which ones is known
 *		only when it ends.  Until then T1 counts as later than all others, so S1 yields
 *		to every writer.  It checks who waits for its locks whenever it has nothing to
 *		read, and at intervals while it has (must_stop).
 *	 2. S1 waits for a lock that W2 holds, while W2 waits for T1 to be committed before T2.
 *		S1 does not wait for a lock for long (attempt.c).
 *	 3. W1 waits for S1 to finish or to roll back.  W1 holds no locks, and S1 either
 *		finishes or fails.
 *
 * Subtransactions are savepoints.  S1 defines each before its first change.  It cannot
 * release one when the publisher does, since the publisher does not send that.  If a
 * subtransaction was aborted, S1 rolls back to its savepoint and releases it.
 *
 * If S1 dies before its commit record is written, the replication origin stands before T1, and
 * the leader ends, too; if it dies after that, the origin stands after T1.  No other
 * transaction commits in between.
 */
#include "postgres.h"

#include "access/xact.h"
#include "apply/change.h"
#include "apply/guard.h"
#include "apply/local_transaction.h"
#include "apply/server_apply.h"
#include "apply/stream_writer.h"
#include "apply/turn.h"
#include "apply/writer.h"
#include "compat.h"
#include "fast/fast.h"
#include "gate.h"
#include "message_builder.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/logicalproto.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "ring/spool.h"
#include "ring/stream_wait.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* A stream writer gives up if more subtransactions than this are in progress. */
#define MAX_SAVEPOINTS 1000

/* A stream writer looks around after this many records ... */
#define LOOK_AROUND_RECORDS 256

/* ... and checks at most this often, in microseconds, whether it must yield. */
#define YIELD_CHECK_INTERVAL 100000

/* A stream writer ends after being idle for this long, in milliseconds. */
#define IDLE_TIME 60000L

/* What is being applied from a spool, by a stream writer or by an ordinary one. */
typedef struct Streamed
{
	StreamShared *stream;		/* NULL in an ordinary writer */
	SpoolReader reader;
	uint32		changes_since_pause;

	/* The subtransactions with a savepoint, outermost first. */
	int			num_savepoints;
	TransactionId savepoints[MAX_SAVEPOINTS];

	TimestampTz looked_around;	/* of the last must_stop() */
} Streamed;

/* A global, since an attempt (guard.h) is a function without an argument. */
static Streamed streamed;

/* The streamed transaction that a transaction in the ring is, or NULL. */
StreamShared *
stream_writer_stream(const RingTransaction *transaction)
{
	return transaction->stream == 0 ? NULL :
		&writer.subscription->streams[transaction->stream - 1];
}

/* The name of a streamed transaction to be prepared; invalid if it is to be committed. */
TransactionId
stream_writer_prepare_xid(StreamShared *stream)
{
	return stream->prepare ? pg_atomic_read_u32(&stream->xid) : InvalidTransactionId;
}

/* Begins the local transaction, and tells the server's code what it expects. */
static void
begin(StreamShared *stream)
{
	/* Where T1 ends is known only in its turn, and not needed before. */
	XLogRecPtr	final_lsn = attempt_stage() == ATTEMPT_SPECULATIVE ? 1 : stream->final_lsn;
	char		memory[1 + 8 + 8 + 4];
	MessageBuilder message;
	RowChange	change;

	message_start(&message, memory, sizeof(memory), LOGICAL_REP_MSG_BEGIN);
	message_uint64(&message, final_lsn);
	message_uint64(&message, 0);	/* commit time */
	message_uint32(&message, pg_atomic_read_u32(&stream->xid));
	in_remote_transaction = false;
	change = row_change_read(message.data, message.length);
	change_apply(&change);

	StartTransactionCommand();
	maybe_reread_subscription();
	spool_read_open(&streamed.reader, &writer.ring->stream_files, stream->number);
	streamed.num_savepoints = 0;
	streamed.changes_since_pause = 0;
	pg_atomic_write_u64(&stream->applied_changes, 0);
}

static void
savepoint_name(char *name, TransactionId xid)
{
	snprintf(name, NAMEDATALEN, "weft_%u", xid);
}

/* Makes sure that there is a savepoint for the subtransaction of a change. */
static bool
enter_subtransaction(StreamShared *stream, TransactionId xid)
{
	char		name[NAMEDATALEN];

	if (xid == pg_atomic_read_u32(&stream->xid))
		return true;
	for (int i = streamed.num_savepoints - 1; i >= 0; i--)
		if (streamed.savepoints[i] == xid)
			return true;
	if (streamed.num_savepoints == MAX_SAVEPOINTS)
		return false;

	/* A table that is open belongs to the level that it was opened at. */
	fast_close();
	if (!IsTransactionBlock())
	{
		BeginTransactionBlock();
		CommitTransactionCommand();
	}
	savepoint_name(name, xid);
	DefineSavepoint(name);
	CommitTransactionCommand();
	streamed.savepoints[streamed.num_savepoints++] = xid;
	return true;
}

/* A subtransaction was aborted: rolls back everything since it began. */
static void
abort_subtransaction(TransactionId xid)
{
	char		name[NAMEDATALEN];
	RepOriginId origin = replorigin_session_origin;
	int			level = streamed.num_savepoints - 1;

	while (level >= 0 && streamed.savepoints[level] != xid)
		level--;
	if (level < 0)
		return;

	/* An abort would advance the origin. */
	replorigin_session_origin = InvalidRepOriginId;
	savepoint_name(name, xid);
	RollbackToSavepoint(name);
	CommitTransactionCommand();
	ReleaseSavepoint(name);
	CommitTransactionCommand();
	replorigin_session_origin = origin;
	fast_after_subabort();
	streamed.num_savepoints = level;
}

static void
apply_change(StreamShared *stream, const char *message, int length)
{
	RowChange	change = row_change_read(message, length);

	change_apply(&change);
	pg_atomic_write_u64(&stream->applied_changes,
						pg_atomic_read_u64(&stream->applied_changes) + 1);
}

/*
 * Ends the attempt because a process that must not wait for this one waits for its locks.
 * The server would call it a deadlock if it knew of the other waits, so the log does.
 */
pg_noreturn static void
give_way(StreamShared *stream)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail("Streamed remote transaction %u holds a lock that is needed for one that comes before it.",
					   pg_atomic_read_u32(&stream->xid))));
}

/* Applies a record as a stream writer.  Returns false to give up. */
static bool
apply_early(StreamShared *stream, const SpoolRecord *record, char *payload)
{
	uint64		seq;

	switch ((SpoolRecordKind) record->kind)
	{
		case SPOOL_AFTER:
			memcpy(&seq, payload, sizeof(seq));
			fast_renew_snapshot();
			if (streamed.reader.position > stream->base && ring_committed(writer.ring) < seq &&
				!turn_wait_dependency(seq))
				give_way(stream);
			return true;
		case SPOOL_RELATION:
			server_apply_own_relation(payload, record->length);
			return true;
		case SPOOL_ABORT:
			abort_subtransaction(record->xid);
			return true;
		case SPOOL_CHANGE:
			if (payload[0] == LOGICAL_REP_MSG_TRUNCATE ||
				payload[0] == LOGICAL_REP_MSG_MESSAGE ||
				!enter_subtransaction(stream, record->xid))
				return false;
			apply_change(stream, payload, record->length);
			streamed.changes_since_pause++;
			return true;
	}
	return false;
}

/* Must the stream writer stop?  Called at intervals while it applies. */
static bool
must_stop(StreamShared *stream)
{
	TimestampTz now;

	CHECK_FOR_INTERRUPTS();
	if (pg_atomic_read_u32(&stream->state) == STREAM_DISCARDED)
		return true;
	now = GetCurrentTimestamp();
	if (now - streamed.looked_around >= YIELD_CHECK_INTERVAL)
	{
		streamed.looked_around = now;
		if (turn_must_yield())
			give_way(stream);
	}
	return false;
}

/* Waits until there may be more to read. */
static void
wait_for_more(StreamShared *stream)
{
	if (streamed.changes_since_pause > 0)
		elog(DEBUG1, "applied %u changes in the streaming chunk", streamed.changes_since_pause);
	streamed.changes_since_pause = 0;
	writer_set_activity(WRITER_WAITING_FOR_DATA);
	if (!ring_wait_stream_data(turn_waiter(), stream, streamed.reader.position))
		give_way(stream);
	writer_set_activity(WRITER_APPLYING);
}

/* Commits or prepares the local transaction; returns the end of its commit record. */
static XLogRecPtr
commit(StreamShared *stream)
{
	return local_transaction_commit(stream_writer_prepare_xid(stream),
									stream->end_lsn, stream->end_time);
}

/* Applies a streamed transaction while it arrives, and commits it when asked to. */
static bool
attempt_early(void)
{
	StreamShared *stream = streamed.stream;
	SpoolRecord record;
	char	   *payload;
	uint64		limit = 0;
	uint64		records = 0;

	begin(stream);
	for (;;)
	{
		uint32		state;

		if (spool_read(&streamed.reader, limit, &record, &payload))
		{
			if (!apply_early(stream, &record, payload) ||
				(++records % LOOK_AROUND_RECORDS == 0 && must_stop(stream)))
				return false;
			continue;
		}
		state = pg_atomic_read_u32(&stream->state);
		pg_read_barrier();
		compat_injection_point("weft-stream-looks");
		limit = pg_atomic_read_u64(&stream->written);
		if (streamed.reader.position < limit)
			continue;
		if (state == STREAM_FINISHING)
			break;
		if (state == STREAM_DISCARDED)
			return false;
		wait_for_more(stream);
	}
	compat_injection_point("weft-stream-finishes");
	fast_store_all();
	spool_read_close(&streamed.reader);
	stream->local_end = commit(stream);
	return true;
}

/* Applies a streamed transaction that has ended, as the oldest one. */
static void
apply_late(StreamShared *stream)
{
	uint64		end = pg_atomic_read_u64(&stream->written);
	SpoolRange *void_ranges;
	uint32		next = 0;
	SpoolRecord record;
	char	   *payload;

	begin(stream);
	void_ranges = spool_read_ranges(&streamed.reader, end, stream->num_void);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (next < stream->num_void && streamed.reader.position >= void_ranges[next].start)
		{
			Assert(streamed.reader.position == void_ranges[next].start);
			streamed.reader.position = void_ranges[next++].end;
		}
		else if (!spool_read(&streamed.reader, end, &record, &payload))
			break;
		else if (record.kind == SPOOL_RELATION)
			server_apply_own_relation(payload, record.length);
		else if (record.kind == SPOOL_CHANGE)
			apply_change(stream, payload, record.length);
	}
	spool_read_close(&streamed.reader);
}

/*
 * Called by the ordinary writer that has taken a streamed transaction from the ring.  Waits for
 * its turn, and has its stream writer commit it, or applies it and leaves the commit to
 * the caller.  Returns false if too early.
 */
bool
stream_writer_apply_in_turn(const RingTransaction *transaction)
{
	StreamShared *stream = stream_writer_stream(transaction);
	StreamState state;

	if (!turn_wait_oldest())
		return false;
	attempt_become_final();
	attempt_set_subject(pg_atomic_read_u32(&stream->xid), stream->final_lsn);
	stream->end_lsn = transaction->end_lsn;
	stream->end_time = transaction->commit_time;
	state = ring_wait_stream_writer(turn_waiter(), stream,
									stream->alone ? STREAM_DISCARDED : STREAM_FINISHING);
	if (state != STREAM_COMMITTED)
	{
		apply_late(stream);
		server_apply_forget_own_relations();
	}
	elog(DEBUG1, "finished processing the STREAM %s command",
		 stream->prepare ? "PREPARE" : "COMMIT");
	return true;
}

/*
 * Logs why a stream writer rolls back, unless that is likely to be only because it is early.
 * The error counts as one only if it comes again when it is the transaction's turn.
 */
static void
report(const ErrorData *error)
{
	if (error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE ||
		error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
		ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION)
		return;

	/* A user who searches the log will search for the server's words. */
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("streamed transaction %u of subscription \"%s\" is rolled back, and applied when it has ended",
					pg_atomic_read_u32(&streamed.stream->xid), MySubscription->name),
			 error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED ?
			 errdetail("ERROR:  %s. %s", error->message, error->detail ? error->detail : "") :
			 errdetail("ERROR:  %s, in place of a logical replication parallel apply worker.",
					   error->message)));
}

/*
 * Waits for a streamed transaction and applies it.  Returns false if the stream
 * writer is to end.
 */
bool
stream_writer_work(void)
{
	int			index = ring_wait_stream(turn_waiter(), writer.shared, IDLE_TIME);
	bool		committed;
	uint32		none = 0;

	if (index < 0)
		return ring_stopping(writer.ring) ? false :
			!pg_atomic_compare_exchange_u32(&writer.shared->stream, &none,
											STREAM_WRITER_LEAVES);

	streamed.stream = &writer.subscription->streams[index];
	turn_begin_stream();
	gate_apply_early();
	streamed.looked_around = GetCurrentTimestamp();
	writer_reread_subscription();
	writer_set_activity(WRITER_APPLYING);
	committed = guard_attempt(ATTEMPT_SPECULATIVE, attempt_early, report);
	writer_set_activity(WRITER_IDLE);
	pgstat_report_activity(STATE_IDLE, NULL);
	if (committed)
		pg_atomic_fetch_add_u64(&writer.shared->transactions, 1);
	else
	{
		pg_atomic_write_u64(&streamed.stream->applied_changes, 0);
		pg_atomic_fetch_add_u64(&writer.shared->misspeculations, 1);
	}
	ring_report_stream(streamed.stream, committed ? STREAM_COMMITTED : STREAM_FAILED);
	streamed.stream = NULL;
	server_apply_forget_own_relations();
	pg_atomic_write_u32(&writer.shared->stream, 0);
	return true;
}
