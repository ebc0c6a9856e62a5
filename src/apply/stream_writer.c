/*
 * stream_writer.c
 *	  Applying transactions that were streamed.
 *
 * The leader keeps all that arrives of a streamed transaction in a file
 * (receive/streams.c).  A stream writer reads it while it grows, and applies it in a
 * local transaction that it keeps open.  When the transaction ends on the publisher,
 * it gets its place in the ring, and an ordinary writer takes it there.  The states
 * of StreamShared, and who changes them:
 *
 *	 leader		FREE -> SPOOLED			the first block arrives
 *	 leader		SPOOLED -> APPLYING		at the beginning of a block, if a stream
 *										writer has nothing to do
 *	 writer		APPLYING -> FINISHING	it is its turn: commit
 *	 writer		APPLYING -> DISCARDED	the same, but it must be applied alone
 *	 leader		APPLYING -> DISCARDED	it was aborted
 *	 stream writer	FINISHING -> COMMITTED
 *	 stream writer	APPLYING, FINISHING, DISCARDED -> FAILED	all is rolled back
 *	 leader		any of the last, or SPOOLED -> FREE		it is over
 *
 * What leaves APPLYING does so by an atomic exchange, so only one of those who want
 * it succeeds.  Once a stream writer has set COMMITTED or FAILED, it does not look at
 * the entry any more.
 *
 * The ordinary writer waits for its turn first; it holds no locks then.  So when it
 * asks for the commit, all earlier transactions are committed, and the stream writer's
 * is the oldest.  If the state is, or becomes, FAILED, or nobody has applied anything,
 * the writer applies the transaction itself, from the spool, as any other one that is
 * the oldest, and leaves out what is void: that is the only place where an error is
 * an error.
 *
 * So a stream writer is free to fail: an error, a missing row, a table that is not
 * READY, a TRUNCATE, a trigger that would fire, too many subtransactions, all of it
 * only means that it rolls back.  The same if somebody needs its locks.  Its
 * transaction comes before some of those that are applied beside it and behind
 * others, and which is not known before it has ended; so it gives way to every writer
 * until then.  It looks who waits for it while it has nothing to read, and every so
 * often while it has; and it does not wait for a lock for long (transaction.c).
 *
 * Subtransactions are savepoints, each defined before its first change.  To release
 * one when the publisher did would take knowing of it; what is aborted is rolled back
 * to its savepoint, and the savepoint released.
 *
 * If the stream writer dies before its commit record is written, the replication
 * origin stands before the transaction, and the leader ends, too; if after, the
 * origin is behind it.  In between nobody else commits.
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

/* With more subtransactions than this in progress, a stream writer gives up. */
#define MAX_SAVEPOINTS 1000

/* After so many records a stream writer looks around. */
#define LOOK_AROUND_RECORDS 256

/* And at most so often, in microseconds, whether it is in somebody's way. */
#define YIELD_CHECK_INTERVAL 100000

/* A stream writer that has had nothing to do for so long ends, in milliseconds. */
#define IDLE_TIME 60000L

static SpoolReader reader;

/* The subtransactions with a savepoint, outermost first. */
static TransactionId savepoints[MAX_SAVEPOINTS];
static int	num_savepoints;

static TimestampTz looked_around;
static uint32 changes_since_pause;

/*
 * In a stream writer: what it applies.  A global, for attempts are functions without an
 * argument.
 */
static StreamShared *own_stream;

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

/* Begins the local transaction, and what the server's code expects of it. */
static void
begin(StreamShared *stream)
{
	/* Where it ends is known only in its turn; nobody asks before. */
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
	spool_read_open(&reader, &writer.ring->stream_files, stream->number);
	num_savepoints = 0;
	changes_since_pause = 0;
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
	for (int i = num_savepoints - 1; i >= 0; i--)
		if (savepoints[i] == xid)
			return true;
	if (num_savepoints == MAX_SAVEPOINTS)
		return false;

	/* What is open belongs to the level that it was opened in. */
	fast_close();
	if (!IsTransactionBlock())
	{
		BeginTransactionBlock();
		CommitTransactionCommand();
	}
	savepoint_name(name, xid);
	DefineSavepoint(name);
	CommitTransactionCommand();
	savepoints[num_savepoints++] = xid;
	return true;
}

/* A subtransaction was aborted; with it goes all that was done since it began. */
static void
abort_subtransaction(TransactionId xid)
{
	char		name[NAMEDATALEN];
	RepOriginId origin = replorigin_session_origin;
	int			level = num_savepoints - 1;

	while (level >= 0 && savepoints[level] != xid)
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
	num_savepoints = level;
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
 * Ends the attempt because somebody waits for our locks who must not wait for us.
 * The server would call it a deadlock if it knew what else is waited for, so this
 * is what the log says.
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

/*
 * Applies a record as a stream writer; returns false to give up.
 */
static bool
apply_early(StreamShared *stream, const SpoolRecord *record, char *payload)
{
	uint64		seq;

	switch ((SpoolRecordKind) record->kind)
	{
		case SPOOL_AFTER:
			memcpy(&seq, payload, sizeof(seq));
			fast_renew_snapshot();
			if (reader.position > stream->base && ring_committed(writer.ring) < seq &&
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
				!enter_subtransaction(stream, record->xid))
				return false;
			apply_change(stream, payload, record->length);
			changes_since_pause++;
			return true;
	}
	return false;
}

/* Is the stream writer to end its work?  Called now and then while it applies. */
static bool
must_stop(StreamShared *stream)
{
	TimestampTz now;

	CHECK_FOR_INTERRUPTS();
	if (pg_atomic_read_u32(&stream->state) == STREAM_DISCARDED)
		return true;
	now = GetCurrentTimestamp();
	if (now - looked_around >= YIELD_CHECK_INTERVAL)
	{
		looked_around = now;
		if (turn_must_yield())
			give_way(stream);
	}
	return false;
}

/* Waits until there may be more to read. */
static void
wait_for_more(StreamShared *stream)
{
	if (changes_since_pause > 0)
		elog(DEBUG1, "applied %u changes in the streaming chunk", changes_since_pause);
	changes_since_pause = 0;
	writer_set_activity(WRITER_WAITING_FOR_DATA);
	if (!ring_wait_stream_data(turn_waiter(), stream, reader.position))
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
	StreamShared *stream = own_stream;
	SpoolRecord record;
	char	   *payload;
	uint64		limit = 0;
	uint64		records = 0;

	begin(stream);
	for (;;)
	{
		uint32		state;

		if (spool_read(&reader, limit, &record, &payload))
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
		if (reader.position < limit)
			continue;
		if (state == STREAM_FINISHING)
			break;
		if (state == STREAM_DISCARDED)
			return false;
		wait_for_more(stream);
	}
	compat_injection_point("weft-stream-finishes");
	fast_store_all();
	spool_read_close(&reader);
	stream->local_end = commit(stream);
	return true;
}

/*
 * Applies a streamed transaction that has ended, as the oldest one.
 */
static void
apply_late(StreamShared *stream)
{
	uint64		end = pg_atomic_read_u64(&stream->written);
	SpoolRange *void_ranges;
	uint32		next = 0;
	SpoolRecord record;
	char	   *payload;

	begin(stream);
	void_ranges = spool_read_ranges(&reader, end, stream->num_void);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (next < stream->num_void && reader.position >= void_ranges[next].start)
		{
			Assert(reader.position == void_ranges[next].start);
			reader.position = void_ranges[next++].end;
		}
		else if (!spool_read(&reader, end, &record, &payload))
			break;
		else if (record.kind == SPOOL_RELATION)
			server_apply_own_relation(payload, record.length);
		else if (record.kind == SPOOL_CHANGE)
			apply_change(stream, payload, record.length);
	}
	spool_read_close(&reader);
}

/*
 * Called by the ordinary writer that has taken a streamed transaction: waits for its
 * turn, and lets its stream writer commit it, or applies it itself; that is not
 * committed then.  Returns false if it came too early.
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
 * Says in the log why a stream writer rolls back, if that is more than a matter of
 * its being early: the error is an error only if it comes again in its turn.
 */
static void
report(const ErrorData *error)
{
	if (error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE ||
		error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
		ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION)
		return;

	/* Whoever looks for the error will look for what the server would say. */
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("streamed transaction %u of subscription \"%s\" is rolled back, and applied when it has ended",
					pg_atomic_read_u32(&own_stream->xid), MySubscription->name),
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

	own_stream = &writer.subscription->streams[index];
	turn_begin_stream();
	looked_around = GetCurrentTimestamp();
	writer_reread_subscription();
	writer_set_activity(WRITER_APPLYING);
	committed = guard_attempt(ATTEMPT_SPECULATIVE, attempt_early, report);
	writer_set_activity(WRITER_IDLE);
	pgstat_report_activity(STATE_IDLE, NULL);
	if (committed)
		pg_atomic_fetch_add_u64(&writer.shared->transactions, 1);
	else
	{
		pg_atomic_write_u64(&own_stream->applied_changes, 0);
		pg_atomic_fetch_add_u64(&writer.shared->misspeculations, 1);
	}
	ring_report_stream(own_stream, committed ? STREAM_COMMITTED : STREAM_FAILED);
	own_stream = NULL;
	server_apply_forget_own_relations();
	pg_atomic_write_u32(&writer.shared->stream, 0);
	return true;
}
