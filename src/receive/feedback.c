/*
 * feedback.c
 *	  What the publisher is told about our progress.
 *
 * The publisher removes WAL before the flush position and will never send it
 * again, so that position must not pass a transaction whose local commit
 * record is not on disk.  Writers commit asynchronously; the leader learns
 * from each committed transaction its end on the publisher and the end of its
 * commit record here, and may report the former once the latter is flushed.
 *
 * What writes nothing has no commit record, and is as durable as all that is before
 * it.  If that was applied by the server's apply loop, which tells nobody the end of its
 * commit record, it is the end of the local WAL that is waited for.
 *
 * Two pairs are enough, whatever the number of transactions: the one that is
 * waited for, and the newest one, which becomes it when that is flushed.
 *
 * While transactions are in flight we send feedback ourselves; while none is,
 * the server's apply loop does.  It keeps its own account, which
 * feedback_synchronize_native() brings up to date, and which knows nothing of
 * what we have sent: feedback_forward() sees to it that no position goes back.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "message_builder.h"
#include "receive/feedback.h"
#include "replication/syncrep.h"
#include "replication/worker_internal.h"
#include "seam/seam.h"
#include "utils/timestamp.h"

/* Standby status update: 'r', write, flush, apply, time, reply requested. */
#define STATUS_LENGTH (1 + 8 + 8 + 8 + 8 + 1)

typedef struct CommitPosition
{
	XLogRecPtr	remote_end;
	XLogRecPtr	local_end;
} CommitPosition;

static CommitPosition awaited;	/* not flushed yet, if valid */
static CommitPosition newest;

/* What the publisher knows. */
static XLogRecPtr reported_write;
static XLogRecPtr reported_flush;
static XLogRecPtr reported_apply;

static XLogRecPtr flushed;		/* end on the publisher of what is flushed */
static bool native_is_behind;	/* newest is not in the server's account */
static bool native_committed;	/* the loop has, since the newest was */
static TimestampTz last_sent;

/* The end of the local WAL, as a position that it can be flushed up to. */
static XLogRecPtr
local_wal_end(void)
{
	XLogRecPtr	end = GetXLogInsertRecPtr();
	uint64		header = XLogSegmentOffset(end, wal_segment_size) < XLOG_BLCKSZ ?
		SizeOfXLogLongPHD : SizeOfXLogShortPHD;

	/*
	 * On a new page, the position is behind its header, which is not there
	 * yet.
	 */
	return end % XLOG_BLCKSZ == header ? end - header : end;
}

/* The server's apply loop has committed a transaction, or may have. */
void
feedback_native_committed(void)
{
	native_committed = true;
}

/*
 * Notes that a transaction is committed.  Called in commit order.  local_end
 * is invalid where nothing was written.
 */
void
feedback_committed(XLogRecPtr remote_end, XLogRecPtr local_end)
{
	if (native_committed)
	{
		native_committed = false;
		local_end = Max(local_end, local_wal_end());
		XLogSetAsyncXactLSN(local_end);
	}
	newest.remote_end = Max(newest.remote_end, remote_end);
	newest.local_end = Max(newest.local_end, local_end);
	native_is_behind = true;
	if (XLogRecPtrIsInvalid(awaited.remote_end))
		awaited = newest;
}

/* Looks how far the local WAL is flushed. */
static void
look_at_flush(void)
{
	XLogRecPtr	local_flush;

	if (XLogRecPtrIsInvalid(awaited.remote_end))
		return;
	local_flush = GetFlushRecPtr(NULL);
	if (newest.local_end <= local_flush)
	{
		flushed = newest.remote_end;
		awaited.remote_end = InvalidXLogRecPtr;
	}
	else if (awaited.local_end <= local_flush)
	{
		flushed = awaited.remote_end;
		awaited = newest;
	}
}

/* Is something committed that is not known to be flushed? */
bool
feedback_flush_pending(void)
{
	look_at_flush();
	return !XLogRecPtrIsInvalid(awaited.remote_end);
}

/*
 * Makes what is committed as durable as the subscription's synchronous_commit
 * asks for: the writers have left that to us.
 */
void
feedback_flush(void)
{
	if (synchronous_commit == SYNCHRONOUS_COMMIT_OFF || !feedback_flush_pending())
		return;

	XLogFlush(newest.local_end);
	if (synchronous_commit > SYNCHRONOUS_COMMIT_LOCAL_FLUSH)
	{
		HOLD_INTERRUPTS();
		SyncRepWaitForLSN(newest.local_end, true);
		RESUME_INTERRUPTS();
	}
}

static void
send_status(WalReceiverConn *conn, XLogRecPtr received, XLogRecPtr flush,
			XLogRecPtr apply, TimestampTz now, bool request_reply)
{
	char		memory[STATUS_LENGTH];
	MessageBuilder status;

	reported_write = Max(reported_write, received);
	reported_flush = Max(reported_flush, flush);
	reported_apply = Max(reported_apply, apply);

	message_start(&status, memory, sizeof(memory), 'r');
	message_uint64(&status, reported_write);
	message_uint64(&status, reported_flush);
	message_uint64(&status, reported_apply);
	message_uint64(&status, now);
	message_byte(&status, request_reply);
	(seam_native->walrcv_send) (conn, status.data, status.length);
	last_sent = now;
}

/*
 * Sends our progress while transactions are in flight, if there is any, or it
 * is time to, or force is set.  "received" is the end of what has arrived.
 */
void
feedback_send(WalReceiverConn *conn, XLogRecPtr received, bool force, bool request_reply)
{
	TimestampTz now;

	if (!force && wal_receiver_status_interval <= 0)
		return;

	feedback_flush();
	look_at_flush();
	now = GetCurrentTimestamp();
	if (force || flushed > reported_flush || newest.remote_end > reported_apply ||
		TimestampDifferenceExceeds(last_sent, now, wal_receiver_status_interval * 1000))
		send_status(conn, received, flushed, newest.remote_end, now, request_reply);
}

/*
 * Sends what the server's apply loop wants to send.
 */
void
feedback_forward(WalReceiverConn *conn, const char *buffer, int length)
{
	uint64		fields[4];

	if (length != STATUS_LENGTH || buffer[0] != 'r')
	{
		(seam_native->walrcv_send) (conn, buffer, length);
		return;
	}
	memcpy(fields, buffer + 1, sizeof(fields));
	send_status(conn, pg_ntoh64(fields[0]), pg_ntoh64(fields[1]),
				pg_ntoh64(fields[2]), pg_ntoh64(fields[3]),
				buffer[STATUS_LENGTH - 1] != 0);
}

/*
 * Tells the server's account what the writers have committed.  Called when no
 * transaction is in flight, before the server's apply loop goes on.
 *
 * With "durable" it is flushed, so that the loop reports all of it before it
 * does anything else.  While tables are synchronized that matters: the loop may
 * mark them READY and start again, and a transaction that was skipped for them,
 * which no origin remembers, must not be sent again then.
 */
void
feedback_synchronize_native(bool durable)
{
	if (!native_is_behind)
		return;
	if (durable)
		XLogFlush(newest.local_end);
	feedback_flush();
	store_flush_position(newest.remote_end, newest.local_end);
	native_is_behind = false;
}
