/*
 * plugin.c
 *	  The output plugin "weft": pgoutput, with its messages sent in batches.
 *
 * All callbacks are pgoutput's own.  If the subscriber asks for batches, Weft replaces the
 * functions that pgoutput's output goes through: it gathers messages, and sends them
 * together, compressed if the subscriber asks for that, too, at the end of a transaction.
 * Then rows.c, and not pgoutput, writes the rows of ordinary tables.  Without that option
 * everything is as pgoutput makes it.
 *
 * While decoding is far behind the end of the WAL, transactions are held back until there
 * is a good amount of them.  Three rules apply to that:
 *
 * 1. Nothing is held back while the walsender waits.  It waits when the decoder asks for a
 *	  page: for WAL that does not exist yet, and, if its slot is synchronized to standbys,
 *	  for those in synchronized_standby_slots.  Therefore that request goes through Weft,
 *	  too, which first sends what is held.  The server does not tell which request is one
 *	  that waits for standbys; for such slots, any of them may be.  (The walsender also
 *	  waits for the socket, but then the subscriber has something to read.  It may wait for
 *	  a lock on a catalog that a session rewrites; what is held then waits with it.)
 *
 * 2. Nothing is held back for long.  Little of what is decoded may be published, or nothing
 *	  for a while.  Therefore Weft checks the clock with each page, and after every
 *	  few changes of a transaction.  After HOLD_TIME nothing is held any more, and the
 *	  subscriber believes keepalives again until the next transaction.
 *
 * 3. The subscriber does not believe that it has received what is held back.  The walsender
 *	  may send a keepalive between any two records, with the position up to which it has
 *	  decoded.  Therefore the subscriber is told before (BATCH_MORE_HELD): the first
 *	  transaction that is far behind is sent at once, with that flag, and only later ones
 *	  are held.  The batch that leaves nothing held takes the flag back.
 *
 * If the walsender dies while something is held back, the subscriber has not confirmed it,
 * and it is sent again.
 *
 * A large row is sent as pgoutput would, in a message of its own.  A batch would save
 * nothing there, and the row might be too large for one: no message can have more than 1 GB.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "access/xlogutils.h"
#include "commands/defrem.h"
#include "compat.h"
#include "fmgr.h"
#include "guc.h"
#include "lib/stringinfo.h"
#include "libpq/pqformat.h"
#include "message_builder.h"
#include "portability/instr_time.h"
#include "port/pg_bswap.h"
#include "postmaster/interrupt.h"
#include "publish/batch_format.h"
#include "publish/decode_ahead.h"
#include "publish/row_message.h"
#include "publish/rows.h"
#include "publish/sent_commits.h"
#include "replication/logical.h"
#include "replication/logicalproto.h"
#include "replication/output_plugin.h"
#include "replication/slot.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "utils/builtins.h"
#include "wire.h"

#ifdef WEFT_LZ4
#include <lz4.h>
#endif

/* A batch is sent when it has this size: enough to make the cost of sending small. */
#define BATCH_BYTES (64 * 1024)

/* Transactions are held back while more WAL than this, in bytes, is waiting to be decoded. */
#define FAR_BEHIND (64 * 1024)

/*
 * For how long transactions are held back, in milliseconds.  Much longer than it takes to
 * decode BATCH_BYTES where all of the WAL is published, and too short to show as lag.
 */
#define HOLD_TIME 10

/*
 * Rows with more bytes than this are sent on their own.  If batches are compressed, only
 * those are for which there might not be room in one.
 */
#define LARGE_ROW (1024 * 1024)
#define LARGE_COMPRESSED_ROW (128 * 1024 * 1024)

PGDLLEXPORT void _PG_output_plugin_init(OutputPluginCallbacks *callbacks);

static LogicalDecodeStartupCB pgoutput_startup;

/* The functions that Weft has replaced in the decoding context. */
typedef struct Replaced
{
	LogicalOutputPluginWriterPrepareWrite prepare_write;
	LogicalOutputPluginWriterWrite write;
	LogicalOutputPluginWriterUpdateProgress update_progress;
	XLogPageReadCB read_page;
	LogicalDecodeChangeCB change;
	LogicalDecodeStreamChangeCB stream_change;
} Replaced;

/* The messages that are gathered, and how they are to be sent. */
typedef struct Gathering
{
	LogicalDecodingContext *context;
	StringInfo	outer;			/* the message to be sent */
	StringInfo	batch;			/* what pgoutput writes to instead */
	int			complete;		/* bytes of it that are whole messages */
	XLogRecPtr	last_lsn;
	TransactionId last_xid;
	bool		more_held;		/* the subscriber has been told that more may
								 * be held */
	instr_time	held_since;		/* valid while something may be held */
	bool		alone;			/* messages are sent at once, as they are */
	Compression compression;	/* as the subscriber has asked */
	int			version;		/* of batches, that both sides know */
} Gathering;

/*
 * Static because the functions that take their place have no argument for these.  A
 * walsender decodes one slot at a time.
 */
static Replaced replaced;
static Gathering gathering;

/* Returns where the WAL that can be decoded ends. */
static XLogRecPtr
end_of_wal(void)
{
	return RecoveryInProgress() ? GetXLogReplayRecPtr(NULL) : GetFlushRecPtr(NULL);
}

static bool
far_behind(void)
{
	return gathering.context->reader->EndRecPtr + FAR_BEHIND < end_of_wal();
}

/* Has something been held back for too long? */
static bool
held_too_long(void)
{
	instr_time	now;

	if (gathering.complete == 0 && !gathering.more_held)
		return false;
	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, gathering.held_since);
	return INSTR_TIME_GET_MILLISEC(now) >= HOLD_TIME;
}

/* May the walsender wait for standbys, now or after it has reloaded its configuration? */
static bool
may_wait_for_standbys(void)
{
	return MyReplicationSlot->data.failover &&
		(ConfigReloadPending ||
		 (synchronized_standby_slots != NULL && synchronized_standby_slots[0] != '\0'));
}

/*
 * Appends the batch to the message to be sent, compressed.  Returns false, with nothing
 * appended, if it would not get smaller.
 */
static bool
append_compressed(void)
{
#ifdef WEFT_LZ4
	StringInfo	outer = gathering.outer;
	StringInfo	batch = gathering.batch;
	int			room = batch->len - (int) sizeof(uint32) - 1;
	int			length;

	if (room <= 0)
		return false;
	enlargeStringInfo(outer, batch->len);
	length = LZ4_compress_default(batch->data, outer->data + outer->len + sizeof(uint32),
								  batch->len, room);
	if (length <= 0)
		return false;
	pq_sendint32(outer, batch->len);
	outer->len += length;
	return true;
#else
	return false;
#endif
}

/* Does this server count the walsender among its synchronous standbys? */
static bool
is_synchronous(void)
{
	/* Only this process writes it. */
	return MyWalSnd != NULL && MyWalSnd->sync_standby_priority > 0;
}

/* Sends the batch; with "hold", more may be held back from now on. */
static void
send_batch(bool hold)
{
	StringInfo	outer = gathering.outer;
	StringInfo	batch = gathering.batch;
	int			flags_offset;
	uint8		flags = hold ? BATCH_MORE_HELD : 0;

	/*
	 * An error in a transaction that was aborted meanwhile may have left half
	 * a message.
	 */
	batch->len = gathering.complete;
	if (gathering.complete == 0 && gathering.more_held == hold)
		return;

	gathering.more_held = hold;
	gathering.context->out = outer;
	replaced.prepare_write(gathering.context, gathering.last_lsn, gathering.last_xid, true);
	pq_sendbyte(outer, BATCH_TYPE);
	flags_offset = outer->len;
	if (gathering.version >= BATCH_SYNCHRONOUS_VERSION && is_synchronous())
		flags |= BATCH_SYNCHRONOUS;
	pq_sendbyte(outer, flags);
	if (gathering.compression == COMPRESSION_LZ4 && append_compressed())
		outer->data[flags_offset] |= BATCH_LZ4;
	else
		appendBinaryStringInfo(outer, batch->data, batch->len);
	resetStringInfo(batch);
	gathering.complete = 0;
	replaced.write(gathering.context, gathering.last_lsn, gathering.last_xid, true);
	gathering.context->out = batch;
	if (hold)
		INSTR_TIME_SET_CURRENT(gathering.held_since);
}

/* In place of the walsender's: pgoutput is going to write a message. */
static void
gather_prepare(LogicalDecodingContext *ctx, XLogRecPtr lsn, TransactionId xid,
			   bool last_write)
{
	StringInfo	batch = gathering.batch;
	XLogRecPtr	shown = last_write ? lsn : InvalidXLogRecPtr;
	char	   *start;

	if (gathering.alone)
	{
		send_batch(gathering.more_held);
		ctx->out = gathering.outer;
		replaced.prepare_write(ctx, lsn, xid, last_write);
		return;
	}

	ctx->out = batch;			/* which an error may have prevented */
	batch->len = gathering.complete;
	enlargeStringInfo(batch, sizeof(uint32) + DATA_HEADER_LENGTH);
	start = batch->data + batch->len;
	batch->len += sizeof(uint32) + DATA_HEADER_LENGTH;

	/* the length, which is set once it is known, and the time are zero */
	memset(start, 0, sizeof(uint32) + DATA_HEADER_LENGTH);
	start += sizeof(uint32);
	*start++ = 'w';
	start = message_put_uint64(start, shown);
	(void) message_put_uint64(start, shown);
}

/* Does a message of this type leave a transaction, or its block, unfinished? */
static bool
more_follows(char type)
{
	switch (type)
	{
		case LOGICAL_REP_MSG_BEGIN:
		case LOGICAL_REP_MSG_BEGIN_PREPARE:
		case LOGICAL_REP_MSG_STREAM_START:
		case LOGICAL_REP_MSG_ORIGIN:
		case LOGICAL_REP_MSG_RELATION:
		case LOGICAL_REP_MSG_TYPE:
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:
		case LOGICAL_REP_MSG_TRUNCATE:
			return true;
		default:
			return false;
	}
}

/* A message has been written that must be sent on its own. */
static void
write_alone(LogicalDecodingContext *ctx, XLogRecPtr lsn, TransactionId xid,
			bool last_write)
{
	StringInfo	message = gathering.outer;

	if (rows_message(message->data + DATA_HEADER_LENGTH, message->len - DATA_HEADER_LENGTH))
		replaced.write(ctx, lsn, xid, last_write);
	ctx->out = gathering.batch;
}

/* A COMMIT message has been written: flags, the position of the record, and where it ends. */
static void
note_commit(const char *message, int length)
{
	uint64		end;

	if (length < 1 + 1 + 8 + 8)
		return;
	memcpy(&end, message + 1 + 1 + 8, sizeof(end));
	sent_commits_note(pg_ntoh64(end));
}

/* In place of the walsender's: pgoutput has written the message. */
static void
gather_write(LogicalDecodingContext *ctx, XLogRecPtr lsn, TransactionId xid,
			 bool last_write)
{
	StringInfo	batch = gathering.batch;
	char	   *start = batch->data + gathering.complete;
	char	   *message = start + sizeof(uint32) + DATA_HEADER_LENGTH;
	int			length = batch->data + batch->len - start - (int) sizeof(uint32);
	char		type = *message;

	if (gathering.alone)
	{
		write_alone(ctx, lsn, xid, last_write);
		return;
	}
	if (!rows_message(message, length - DATA_HEADER_LENGTH))
	{
		batch->len = gathering.complete;
		return;
	}
	if (gathering.complete == 0 && !gathering.more_held)
		INSTR_TIME_SET_CURRENT(gathering.held_since);
	(void) message_put_uint32(start, length);
	gathering.complete = batch->len;
	gathering.last_lsn = lsn;
	gathering.last_xid = xid;
	if (type == LOGICAL_REP_MSG_COMMIT)
		note_commit(message, length - DATA_HEADER_LENGTH);

	if (batch->len >= BATCH_BYTES)
		send_batch(gathering.more_held);
	else if (!more_follows(type))
	{
		bool		hold = far_behind();

		/* The subscriber must know before the first one is held back. */
		if (!hold || !gathering.more_held)
			send_batch(hold);
	}
}

/* Must the change be sent on its own? */
static bool
is_large(Relation relation, ReorderBufferChange *change)
{
	Size		limit = gathering.compression == COMPRESSION_OFF ?
		LARGE_ROW : LARGE_COMPRESSED_ROW;

	return row_message_larger_than(relation, change, limit);
}

/* In place of pgoutput's, or that of rows.c. */
static void
gather_change(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation,
			  ReorderBufferChange *change)
{
	gathering.alone = is_large(relation, change);
	replaced.change(ctx, txn, relation, change);
	gathering.alone = false;
}

/* The same for transactions in progress. */
static void
gather_stream_change(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation,
					 ReorderBufferChange *change)
{
	gathering.alone = is_large(relation, change);
	replaced.stream_change(ctx, txn, relation, change);
	gathering.alone = false;
}

/*
 * In place of the walsender's: a transaction, or a part of one, was decoded.  If nothing of
 * it is sent, the subscriber may get a keepalive instead, which it should believe if it is
 * up to date otherwise.
 */
static void
gather_progress(LogicalDecodingContext *ctx, XLogRecPtr lsn, TransactionId xid,
				bool skipped_xact)
{
	if ((skipped_xact && !far_behind()) || held_too_long())
		send_batch(false);
	ctx->out = gathering.outer;
	replaced.update_progress(ctx, lsn, xid, skipped_xact);
	ctx->out = gathering.batch;
}

/* A page is read; the walsender may wait for it. */
static int
read_page(XLogReaderState *reader, XLogRecPtr page, int length,
		  XLogRecPtr record, char *buffer)
{
	compat_injection_point("weft-plugin-page");
	if (page + length > end_of_wal() || may_wait_for_standbys() || held_too_long())
		send_batch(false);
	return replaced.read_page(reader, page, length, record, buffer);
}

/*
 * How much WAL may be decoded in one go?  None on a standby, or if this walsender may wait for
 * standbys; little if somebody may wait for the subscriber's replies.  All that may change.
 */
static StretchAllowed
stretch_allowed(void)
{
	if (RecoveryInProgress() || ConfigReloadPending || may_wait_for_standbys())
		return STRETCH_NONE;
	return is_synchronous() ? STRETCH_BRIEF : STRETCH_LONG;
}

/* In place of the walsender's: the decoder needs a page. */
static int
gather_read_page(XLogReaderState *reader, XLogRecPtr page, int length,
				 XLogRecPtr record, char *buffer)
{
	if (stretch_allowed() != STRETCH_NONE)
	{
		XLogRecPtr	end = GetFlushRecPtr(NULL);

		if (decode_ahead(record, end - Min(end, FAR_BEHIND), end))
			return -1;
	}
	return read_page(reader, page, length, record, buffer);
}

/*
 * Removes Weft's options, which pgoutput does not know.  Returns the version of batches that
 * the subscriber asks for, or zero, and the compression method.
 */
static int
take_options(List **options, const char **method)
{
	ListCell   *cell;
	int			version = 0;

	*method = NULL;
	foreach(cell, *options)
	{
		DefElem    *option = lfirst(cell);

		if (strcmp(option->defname, BATCH_OPTION) == 0)
			version = pg_strtoint32(defGetString(option));
		else if (strcmp(option->defname, BATCH_COMPRESSION_OPTION) == 0)
			*method = defGetString(option);
		else
			continue;
		*options = foreach_delete_current(*options, cell);
	}
	return version;
}

/* Returns the compression to use: none if the two sides do not both know the method. */
static Compression
choose_compression(int version, const char *method)
{
	if (method == NULL)
		return COMPRESSION_OFF;
#ifdef WEFT_LZ4
	if (strcmp(method, "lz4") == 0 && version >= BATCH_LZ4_VERSION)
		return COMPRESSION_LZ4;
#endif
	ereport(LOG,
			(errmsg("changes of replication slot \"%s\" are sent uncompressed",
					NameStr(MyReplicationSlot->data.name)),
			 errdetail("This server does not know compression \"%s\" in batches of version %d.",
					   method, Min(version, BATCH_VERSION))));
	return COMPRESSION_OFF;
}

/*
 * Is the output sent by START_REPLICATION?  SQL functions, which a walsender may call, too, have
 * no function that is told of progress; and they stop where they like, and advance the slot past
 * what would be held back.
 */
static bool
streams(LogicalDecodingContext *ctx)
{
	return am_walsender && ctx->reader->routine.page_read != read_local_xlog_page;
}

static void
startup(LogicalDecodingContext *ctx, OutputPluginOptions *options, bool is_init)
{
	const char *method;
	int			version = take_options(&ctx->output_plugin_options, &method);
	bool		in_batches = !is_init && version >= BATCH_FIRST_VERSION && streams(ctx);

	if (in_batches)
		rows_take_options(&ctx->output_plugin_options);
	pgoutput_startup(ctx, options, is_init);
	if (!in_batches)
		return;

	rows_start(ctx);
	gathering.context = ctx;
	gathering.outer = ctx->out;
	gathering.batch = makeStringInfo();
	gathering.complete = 0;
	gathering.more_held = false;
	gathering.alone = false;
	gathering.version = Min(version, BATCH_VERSION);
	gathering.compression = choose_compression(version, method);
	replaced.prepare_write = ctx->prepare_write;
	replaced.write = ctx->write;
	replaced.update_progress = ctx->update_progress;
	replaced.read_page = ctx->reader->routine.page_read;
	replaced.change = ctx->callbacks.change_cb;
	replaced.stream_change = ctx->callbacks.stream_change_cb;

	ctx->out = gathering.batch;
	ctx->prepare_write = gather_prepare;
	ctx->write = gather_write;
	ctx->update_progress = gather_progress;
	ctx->reader->routine.page_read = gather_read_page;
	decode_ahead_start(ctx, read_page, stretch_allowed);
	ctx->callbacks.change_cb = gather_change;
	ctx->callbacks.stream_change_cb = gather_stream_change;
	ereport(DEBUG1,
			(errmsg_internal("messages are sent in batches of version %d%s",
							 gathering.version,
							 gathering.compression == COMPRESSION_LZ4 ? ", compressed with LZ4" : "")));
}

/* Entry point of the output plugin. */
void
_PG_output_plugin_init(OutputPluginCallbacks *callbacks)
{
	LogicalOutputPluginInit init = (LogicalOutputPluginInit)
		load_external_function("pgoutput", "_PG_output_plugin_init", true, NULL);

	init(callbacks);
	pgoutput_startup = callbacks->startup_cb;
	callbacks->startup_cb = startup;
}
