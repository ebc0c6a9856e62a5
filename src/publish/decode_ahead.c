/*
 * decode_ahead.c
 *	  Decodes a stretch of WAL in one go.
 *
 * After every WAL record, the walsender's loop asks the kernel whether the subscriber has sent
 * anything.  While decoding is far behind the end of the WAL, that costs more than decoding
 * some kinds of records does.  Therefore up to weft.decode_ahead of WAL is then decoded at once.
 *
 * Actors: the walsender's loop L and its reader R (context->reader); a second reader A.
 *
 * 1. R asks for a page, to read the record at X.  plugin.c answers such requests, and calls
 *	  decode_ahead().  A reads and decodes records from X on.  Meanwhile A takes the place of
 *	  R in the decoding context, because decoding asks that for its position.
 *
 * 2. A stops at Y, the beginning of a record that is not decoded.  R is moved to Y, and gets
 *	  no page.  L takes this for a record that is not there yet, and comes around: it processes
 *	  replies, signals, time-outs and a changed configuration.
 *
 * 3. R reads the record at Y, and those after it in the same page, for L.  A begins
 *	  again with a later record.
 *
 * L knows the position that it has sent (sentPtr) only from what R has read.  Between 1 and
 * 3 it is too old, by the stretch that A has decoded:
 *
 *	 - Keepalives tell an older position than was sent.  Subscribers take the maximum.
 *
 *	 - pg_stat_replication.sent_lsn may be behind write_lsn for that long.
 *
 *	 - L thinks that it has caught up if R is at the end of the WAL.  Y is before it.
 *
 *	 - WalSndDone(), at shutdown, waits until the subscriber has confirmed exactly sentPtr.  It
 *	   would wait forever if R had nothing left to read.  Therefore A decodes a record only if
 *	   it ends before a limit, which is before the end of the flushed WAL.  The record at Y
 *	   is either flushed, or so long that its end is not flushed yet, and at shutdown the server
 *	   flushes it.  In both cases R reads it before L can think that it has caught up.
 *
 * Replies are processed late by one stretch, which therefore ends after RUN_TIME.  Synchronous
 * commits wait for replies.  In walsenders of synchronous standbys, a stretch ends after
 * BRIEF_TIME, or BRIEF_LENGTH of WAL: little compared to what such a commit waits for anyway
 * while its walsender is far behind.  A single record, such as the commit of a large
 * transaction, may take longer, as it does for L; the server's own functions then see to
 * replies and time-outs.  They, and those that read a page, may reload the configuration.
 * Therefore A asks after each record how long the stretch may be (decode_ahead_start()).
 *
 * A never waits for WAL: it gets no page that ends behind the WAL known to be flushed.  During
 * recovery, where timelines may change at any time, A is not used.  After a promotion, R reads
 * historic timelines alone.
 *
 * If anything is wrong with the WAL, A says nothing and stops.  R will find the same, and
 * L reports it.  If decoding throws an error, R takes its place back, and A's file is closed
 * when the context's memory is freed; the walsender gives the context up.
 */
#include "postgres.h"

#include "access/rmgr.h"
#include "access/xlog.h"
#include "compat.h"
#include "guc.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "publish/decode_ahead.h"
#include "replication/decode.h"

/* The longest stretch, in microseconds: too short to show as lag, or in time-outs. */
#define RUN_TIME 10000

/*
 * The same where sessions may wait for replies, and the most WAL.  Still some hundred records, so
 * that L's checks do not cost much.
 */
#define BRIEF_TIME 1000
#define BRIEF_LENGTH (128 * 1024)

/* The clock is read after this many records, and after the end of a transaction. */
#define RECORDS_PER_CHECK 16

/* Static because a walsender decodes one slot at a time. */
static LogicalDecodingContext *context;
static XLogReaderState *ahead;	/* reader A; NULL until it is needed */
static XLogPageReadCB read_page;
static StretchAllowed (*allowed) (void);
static XLogRecPtr known_end;	/* of flushed WAL; A reads no further */
static XLogRecPtr turn_of_server;	/* Y: R reads this record itself */

/*
 * Called for each decoding context, before it reads anything.  A reads pages with "page_read",
 * and asks "ask" after each record whether it may go on.
 */
void
decode_ahead_start(LogicalDecodingContext *ctx, XLogPageReadCB page_read,
				   StretchAllowed (*ask) (void))
{
	context = ctx;
	ahead = NULL;				/* gone with the previous context */
	read_page = page_read;
	allowed = ask;
	turn_of_server = InvalidXLogRecPtr;
}

/* Gives reader A a page, without waiting for it. */
static int
read_available_page(XLogReaderState *reader, XLogRecPtr page, int length,
					XLogRecPtr record, char *buffer)
{
	if (page + length > known_end)
		return -1;
	return read_page(reader, page, length, record, buffer);
}

/* The context's memory is freed, perhaps after an error. */
static void
close_file(void *reader)
{
	XLogReaderState *state = reader;

	if (state->seg.ws_file >= 0)
		state->routine.segment_close(state);
}

static XLogReaderState *
make_reader(void)
{
	MemoryContext old = MemoryContextSwitchTo(context->context);
	MemoryContextCallback *callback = palloc0(sizeof(MemoryContextCallback));
	XLogReaderState *server = context->reader;
	XLogReaderState *reader = XLogReaderAllocate(server->segcxt.ws_segsize, NULL,
												 XL_ROUTINE(.page_read = read_available_page,
															.segment_open = server->routine.segment_open,
															.segment_close = server->routine.segment_close),
												 server->private_data);

	if (reader == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while allocating a WAL reading processor.")));
	callback->func = close_file;
	callback->arg = reader;
	MemoryContextRegisterResetCallback(context->context, callback);
	MemoryContextSwitchTo(old);
	return reader;
}

/* Has A decoded long enough? */
static bool
time_is_over(instr_time begin, StretchAllowed stretch)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, begin);
	return INSTR_TIME_GET_MICROSEC(now) >= (stretch == STRETCH_BRIEF ? BRIEF_TIME : RUN_TIME);
}

/* Is it time to look at the clock?  The end of a transaction may have taken long. */
static bool
check_time(int count)
{
	return count % RECORDS_PER_CHECK == 0 || XLogRecGetRmid(ahead) == RM_XACT_ID;
}

/*
 * Decodes records from "first" on, which end up to "last".  Returns the beginning of the
 * first one that is not decoded.
 */
static XLogRecPtr
decode_records(XLogRecPtr first, XLogRecPtr last)
{
	XLogRecPtr	next = first;
	instr_time	begin;
	char	   *problem;

	INSTR_TIME_SET_CURRENT(begin);
	XLogBeginRead(ahead, first);
	for (int count = 1;; count++)
	{
		StretchAllowed stretch;

		if (XLogReadRecord(ahead, &problem) == NULL)
			return next;
		if (ahead->EndRecPtr > last)
			return next;
		LogicalDecodingProcessRecord(context, ahead);
		compat_injection_point("weft-plugin-decodes-ahead");
		next = ahead->EndRecPtr;
		CHECK_FOR_INTERRUPTS();
		stretch = allowed();
		if (stretch == STRETCH_NONE || (check_time(count) && time_is_over(begin, stretch)))
			return next;
	}
}

/*
 * Called when the server's reader asks for a page to read "record", while all of the WAL
 * before "end" is flushed, and no record that ends behind "limit" may be decoded.  Returns true
 * if records have been decoded and the reader must not get the page, because it was moved behind
 * them.
 */
bool
decode_ahead(XLogRecPtr record, XLogRecPtr limit, XLogRecPtr end)
{
	XLogReaderState *server = context->reader;
	StretchAllowed stretch = allowed();
	uint64		length = (uint64) weft_decode_ahead * 1024;
	XLogRecPtr	last;
	XLogRecPtr	next;

	if (stretch == STRETCH_BRIEF)
		length = Min(length, BRIEF_LENGTH);
	last = Min(limit, record + length);
	if (stretch == STRETCH_NONE || length == 0 || record == turn_of_server || record >= last ||
		!XLogRecPtrIsInvalid(server->overwrittenRecPtr) ||
		server->currTLI != GetWALInsertionTimeLine())
		return false;
	if (ahead == NULL)
		ahead = make_reader();
	known_end = end;
	context->reader = ahead;
	PG_TRY();
	{
		next = decode_records(record, last);
	}
	PG_FINALLY();
	{
		context->reader = server;
	}
	PG_END_TRY();
	turn_of_server = next;
	if (next == record)
		return false;
	XLogBeginRead(server, next);
	ereport(DEBUG1,
			(errmsg_internal("decoded ahead from LSN " compat_lsn_format " to " compat_lsn_format,
							 LSN_FORMAT_ARGS(record), LSN_FORMAT_ARGS(next))));
	return true;
}
