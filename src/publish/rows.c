/*
 * rows.c
 *	  Writes the rows of ordinary tables in place of pgoutput.
 *
 * pgoutput looks up the type and the output function of each value that it sends, and
 * takes each row through slots and filters.  For tables with neither filters nor anything
 * else to decide, Weft writes the same messages with less work: all that depends on the
 * table is looked up once (row_relation.c).  Everything else is left to pgoutput:
 * TRUNCATE, messages, begin and end of transactions and of their streamed parts, RELATION
 * and TYPE, and rows of all other tables.
 *
 * What is learned.  Weft does not decide what is published.  The first change of each kind
 * (insert, update, delete) of a table goes to pgoutput, and the row that pgoutput writes is
 * compared with the one that Weft would write.  If they are the same, Weft writes the next
 * changes of that kind; if pgoutput writes none, or another one, they are left to pgoutput.
 * Therefore Weft never leaves a row out.  This holds for the next rows, too: without a row
 * filter nothing in pgoutput's decision depends on the row, and row_relation_is_plain()
 * makes sure that there is none.
 *
 * Why RELATION always precedes.  pgoutput sends RELATION with the first row outside of
 * streaming after it has forgotten the table.  Weft writes a row only if pgoutput has
 * written one outside of streaming since then, and Weft forgets a table whenever pgoutput
 * does (row_relation.c).
 *
 * For each transaction that is streamed while in progress, pgoutput sends RELATION again,
 * since nobody knows when the subscriber will apply it; and once more after a part of any
 * such transaction has been aborted, because the subscriber may have dropped the message
 * with that part.  Therefore pgoutput writes the first row of a table in each streamed
 * transaction, and again after each abort.  Streamed transactions do not take back what has
 * been sent outside of streaming: they can only add to those to whom pgoutput has sent
 * RELATION, or bring invalidations, of which Weft is told, too.
 *
 * Why BEGIN always precedes.  pgoutput sends BEGIN with the first thing of a transaction
 * that it publishes, and COMMIT if it has sent BEGIN.  If that thing is a row that Weft
 * writes, Weft first gives pgoutput an empty message for the subscriber, of the kind that
 * pg_logical_emit_message() writes.  That makes pgoutput send BEGIN, and ORIGIN where there
 * is one; the message itself is not sent.  For this, pgoutput must believe that the
 * subscriber wants such messages.  If the subscriber does not, real ones do not get as far
 * as pgoutput.  A prepared transaction has its BEGIN PREPARE before everything else.
 */
#include "postgres.h"

#include "commands/defrem.h"
#include "nodes/makefuncs.h"
#include "nodes/value.h"
#include "publish/row_message.h"
#include "publish/row_relation.h"
#include "publish/rows.h"
#include "replication/logicalproto.h"
#include "replication/output_plugin.h"
#include "utils/memutils.h"

/* A change that pgoutput writes, for Weft to compare. */
typedef struct Lesson
{
	RowRelation *entry;
	Relation	relation;
	ReorderBufferChange *change;
	TransactionId streamed;		/* as row_message_write() needs it */
	bool		seen;			/* it has been written */
	bool		same;			/* as Weft would write it */
} Lesson;

/* Static because pgoutput's callbacks, and Weft's in their place, have no argument for it. */
static LogicalDecodeBeginCB pgoutput_begin;
static LogicalDecodeChangeCB pgoutput_change;
static LogicalDecodeMessageCB pgoutput_message;
static LogicalDecodeStreamChangeCB pgoutput_stream_change;
static LogicalDecodeStreamAbortCB pgoutput_stream_abort;

static MemoryContext row_context;	/* reset for each row */
static RowRelation *recent[64]; /* by the last bits of "relid" */
static bool binary;				/* as the subscriber has asked */
static bool messages_wanted;	/* the same */
static bool begun;				/* BEGIN has been written for the transaction */
static bool only_begin;			/* the next message is not to be sent */
static Lesson *lesson;

/* pgoutput has written a change: compares it with what Weft would write. */
static void
compare(const char *data, int length)
{
	MemoryContext caller = MemoryContextSwitchTo(row_context);
	StringInfoData own;

	initStringInfo(&own);
	row_message_write(&own, lesson->entry, lesson->relation, lesson->change, lesson->streamed);
	lesson->seen = true;
	lesson->same = own.len == length && memcmp(own.data, data, length) == 0;
	MemoryContextSwitchTo(caller);
	MemoryContextReset(row_context);
}

/* A message has been written; returns whether it must be sent. */
bool
rows_message(const char *data, int length)
{
	switch (data[0])
	{
		case LOGICAL_REP_MSG_BEGIN:
		case LOGICAL_REP_MSG_BEGIN_PREPARE:
			begun = true;
			break;
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:

			/*
			 * If the table was forgotten meanwhile, the columns may not
			 * match.
			 */
			if (lesson && lesson->entry->writers[lesson->change->action] == WRITER_LEARNING)
				compare(data, length);
			break;
		case LOGICAL_REP_MSG_MESSAGE:
			return !only_begin;
	}
	return true;
}

/* Where a change is written. */
typedef struct Place
{
	LogicalDecodeChangeCB callback; /* pgoutput's */
	TransactionId stream_xid;	/* of the top-level transaction that is
								 * streamed, otherwise invalid */
} Place;

/* Lets pgoutput write a change, and decides who writes the next ones of its kind. */
static void
learn(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation,
	  ReorderBufferChange *change, RowRelation *entry, Place place)
{
	RowWriter  *writer = &entry->writers[change->action];
	bool		streamed = TransactionIdIsValid(place.stream_xid);
	TransactionId xid = streamed ? change->txn->xid : InvalidTransactionId;
	Lesson		here = {entry, relation, change, xid, false, false};
	bool		plain;

	*writer = WRITER_LEARNING;
	plain = row_relation_is_plain(relation);
	if (plain)
		row_relation_look_up(entry, relation);

	PG_TRY();
	{
		lesson = plain ? &here : NULL;
		place.callback(ctx, txn, relation, change);
	}
	PG_FINALLY();
	{
		lesson = NULL;
	}
	PG_END_TRY();

	/* If the table was forgotten meanwhile, the next change decides. */
	if (*writer == WRITER_LEARNING)
	{
		*writer = here.same ? WRITER_OURS : WRITER_PGOUTPUT;
		if (here.same)
			row_relation_set_announced(entry, place.stream_xid);
		ereport(DEBUG1,
				(errmsg_internal("table \"%s\", change %d%s: rows are written by %s%s",
								 RelationGetRelationName(relation), (int) change->action,
								 streamed ? " in a stream" : "",
								 here.same ? "Weft" : "pgoutput",
								 here.seen && !here.same ? ", since ours differ" : "")));
	}
}

/* Does the change contain what a message of its kind needs? */
static bool
is_complete(Relation relation, ReorderBufferChange *change)
{
	bool		identified = relation->rd_rel->relreplident != REPLICA_IDENTITY_NOTHING;

	switch (change->action)
	{
		case REORDER_BUFFER_CHANGE_INSERT:
			return change->data.tp.newtuple != NULL;
		case REORDER_BUFFER_CHANGE_UPDATE:
			return change->data.tp.newtuple != NULL && identified;
		case REORDER_BUFFER_CHANGE_DELETE:
			return change->data.tp.oldtuple != NULL && identified;
		default:
			return false;
	}
}

static RowRelation *
find_entry(Oid relid)
{
	RowRelation **found_last = &recent[relid % lengthof(recent)];

	if (*found_last == NULL || (*found_last)->relid != relid)
		*found_last = row_relation_find(relid);
	return *found_last;
}

/* In place of pgoutput's. */
static void
rows_begin(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	begun = false;
	only_begin = false;
	pgoutput_begin(ctx, txn);
}

/* Makes pgoutput write BEGIN if it has not done so yet. */
static void
ensure_begun(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	if (begun)
		return;
	only_begin = true;
	pgoutput_message(ctx, txn, InvalidXLogRecPtr, true, "", 0, "");
	only_begin = false;
}

static void
write_row(LogicalDecodingContext *ctx, Relation relation, ReorderBufferChange *change,
		  RowRelation *entry, TransactionId streamed)
{
	MemoryContext caller;

	OutputPluginPrepareWrite(ctx, true);
	caller = MemoryContextSwitchTo(row_context);
	row_message_write(ctx->out, entry, relation, change, streamed);
	MemoryContextSwitchTo(caller);
	MemoryContextReset(row_context);
	OutputPluginWrite(ctx, true);
}

/* Writes a change, or has pgoutput write it. */
static void
write_change(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation,
			 ReorderBufferChange *change, Place place)
{
	bool		streamed = TransactionIdIsValid(place.stream_xid);
	RowRelation *entry;
	RowWriter  *writer;

	if (!is_complete(relation, change))
	{
		place.callback(ctx, txn, relation, change);
		return;
	}

	entry = find_entry(RelationGetRelid(relation));
	writer = &entry->writers[change->action];
	if (*writer < WRITER_PGOUTPUT)
	{
		learn(ctx, txn, relation, change, entry, place);
		return;
	}
	if (*writer == WRITER_OURS && !row_relation_is_announced(entry, place.stream_xid))
	{
		place.callback(ctx, txn, relation, change);
		if (*writer == WRITER_OURS)
			row_relation_set_announced(entry, place.stream_xid);
		return;
	}

	/* Each of these may learn that the table has changed. */
	if (*writer == WRITER_OURS && !streamed)
		ensure_begun(ctx, txn);
	if (*writer == WRITER_OURS && entry->types_seen != row_relation_types)
		row_relation_look_up(entry, relation);

	if (*writer == WRITER_OURS && streamed)
		write_row(ctx, relation, change, entry, change->txn->xid);
	else if (*writer == WRITER_OURS && begun)
		write_row(ctx, relation, change, entry, InvalidTransactionId);
	else
		place.callback(ctx, txn, relation, change);
}

/* In place of pgoutput's. */
static void
rows_change(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation,
			ReorderBufferChange *change)
{
	Place		place = {pgoutput_change, InvalidTransactionId};

	write_change(ctx, txn, relation, change, place);
}

/*
 * The same for a transaction in progress.  STREAM START has been written; each row names the
 * subtransaction that it belongs to.
 */
static void
rows_stream_change(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation,
				   ReorderBufferChange *change)
{
	Place		place = {pgoutput_stream_change, rbtxn_get_toptxn(txn)->xid};

	write_change(ctx, txn, relation, change, place);
}

/* In place of pgoutput's: a transaction in progress, or a part of it, has been aborted. */
static void
rows_stream_abort(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr abort_lsn)
{
	row_relation_aborts++;
	pgoutput_stream_abort(ctx, txn, abort_lsn);
}

/* Reads the options that concern Weft, too, and makes pgoutput accept messages. */
void
rows_take_options(List **options)
{
	ListCell   *cell;
	DefElem    *messages = NULL;

	binary = false;
	foreach(cell, *options)
	{
		DefElem    *option = lfirst(cell);

		if (strcmp(option->defname, "binary") == 0)
			binary = defGetBoolean(option);
		else if (strcmp(option->defname, "messages") == 0)
			messages = option;
	}

	messages_wanted = messages != NULL && defGetBoolean(messages);
	if (messages == NULL)
	{
		messages = makeDefElem("messages", NULL, -1);
		*options = lappend(*options, messages);
	}
	messages->arg = (Node *) makeString("true");
}

void
rows_start(LogicalDecodingContext *ctx)
{
	row_relation_start(ctx->context, binary);
	row_message_start(ctx->context);
	row_context = AllocSetContextCreate(ctx->context, "weft row", ALLOCSET_DEFAULT_SIZES);
	memset(recent, 0, sizeof(recent));
	begun = false;
	only_begin = false;
	lesson = NULL;

	pgoutput_begin = ctx->callbacks.begin_cb;
	pgoutput_change = ctx->callbacks.change_cb;
	pgoutput_message = ctx->callbacks.message_cb;
	pgoutput_stream_change = ctx->callbacks.stream_change_cb;
	pgoutput_stream_abort = ctx->callbacks.stream_abort_cb;
	ctx->callbacks.begin_cb = rows_begin;
	ctx->callbacks.change_cb = rows_change;
	ctx->callbacks.stream_change_cb = rows_stream_change;
	ctx->callbacks.stream_abort_cb = rows_stream_abort;
	if (!messages_wanted)
	{
		ctx->callbacks.message_cb = NULL;
		ctx->callbacks.stream_message_cb = NULL;
	}
}
