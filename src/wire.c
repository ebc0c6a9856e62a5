/*
 * wire.c
 *	  Reads logical replication messages without trusting them.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "mb/pg_wchar.h"
#include "wire.h"

#define TOO_SHORT "the message ends too early"
#define TOO_LONG "there are bytes behind the end of the message"

/* Returns what is wrong with a message that should end at the cursor, or NULL. */
static const char *
finish(const WireCursor *cursor)
{
	if (cursor->failed)
		return TOO_SHORT;
	if (cursor->next != cursor->end)
		return TOO_LONG;
	return NULL;
}

/* Reads a terminated string, which must be valid in the encoding of the database. */
static const char *
read_string(WireCursor *cursor, const char **string)
{
	const char *terminator = memchr(cursor->next, '\0', cursor->end - cursor->next);

	*string = cursor->next;
	if (terminator == NULL)
	{
		cursor->failed = true;
		return "a name is not terminated";
	}
	if (!pg_verify_mbstr(GetDatabaseEncoding(), cursor->next,
						 terminator - cursor->next, true))
		return "a name is not valid in the encoding of the database";
	if (terminator - cursor->next >= NAMEDATALEN)
		return "a name is too long";
	cursor->next = terminator + 1;
	return NULL;
}

/* Puts a cursor behind the type byte and, if streamed, behind the transaction ID. */
static void
start_behind_type(WireCursor *cursor, const char *data, int length, bool streamed)
{
	wire_start(cursor, data + 1, length - 1);
	if (streamed)
		wire_bytes(cursor, sizeof(TransactionId));
}

/* Reads a BEGIN message. */
const char *
wire_read_begin(const char *data, int length, WireBegin *begin)
{
	WireCursor	cursor;

	wire_start(&cursor, data + 1, length - 1);
	begin->final_lsn = wire_uint64(&cursor);
	begin->commit_time = wire_uint64(&cursor);
	begin->xid = wire_uint32(&cursor);
	if (!cursor.failed && XLogRecPtrIsInvalid(begin->final_lsn))
		return "the final LSN is missing";
	return finish(&cursor);
}

/* Reads a keepalive; what may follow is ignored, as by the server. */
const char *
wire_read_keepalive(const char *message, int length, WireKeepalive *keepalive)
{
	WireCursor	cursor;

	wire_start(&cursor, message + 1, length - 1);
	keepalive->end_lsn = wire_uint64(&cursor);
	keepalive->sent_time = wire_uint64(&cursor);
	keepalive->reply_requested = wire_uint8(&cursor) != 0;
	return cursor.failed ? "a keepalive ends too early" : NULL;
}

/* Reads a COMMIT message. */
const char *
wire_read_commit(const char *data, int length, WireCommit *commit)
{
	WireCursor	cursor;
	uint8		flags;

	wire_start(&cursor, data + 1, length - 1);
	flags = wire_uint8(&cursor);
	commit->commit_lsn = wire_uint64(&cursor);
	commit->end_lsn = wire_uint64(&cursor);
	commit->commit_time = wire_uint64(&cursor);
	if (!cursor.failed && flags != 0)
		return "the flags are unknown";
	if (!cursor.failed && commit->end_lsn < commit->commit_lsn)
		return "the end is before the commit";
	return finish(&cursor);
}

/* Checks a TYPE message. */
static const char *
check_type(WireCursor *cursor)
{
	const char *name;
	const char *problem;

	wire_bytes(cursor, 4);
	if (cursor->failed)
		return TOO_SHORT;
	if ((problem = read_string(cursor, &name)) != NULL ||
		(problem = read_string(cursor, &name)) != NULL)
		return problem;
	return finish(cursor);
}

/*
 * Reads an INSERT, UPDATE or DELETE up to its first tuple; the caller or
 * wire_check_tuples() continues from there.
 */
const char *
wire_read_change(const char *data, int length, bool streamed, WireChange *change)
{
	WireCursor *cursor = &change->tuples;
	char		kind;

	start_behind_type(cursor, data, length, streamed);
	change->type = data[0];
	change->relid = wire_uint32(cursor);
	change->old_kind = 0;
	kind = (char) wire_uint8(cursor);
	if (cursor->failed)
		return TOO_SHORT;
	if (kind == 'K' || kind == 'O')
	{
		if (change->type == LOGICAL_REP_MSG_INSERT)
			return "an inserted row has an old tuple";
		change->old_kind = kind;
	}
	else if (kind != 'N' || change->type == LOGICAL_REP_MSG_DELETE)
		return "the kind of the tuple is unknown";
	return NULL;
}

/*
 * Checks the form of one tuple and moves behind it.  With natts = -1, any number of
 * columns is accepted.
 */
const char *
wire_check_tuple(WireCursor *cursor, int natts)
{
	WireColumn	column;
	int			found = wire_uint16(cursor);

	if (cursor->failed)
		return TOO_SHORT;
	if (natts >= 0 && found != natts)
		return "the number of columns is not the relation's";
	for (int i = 0; i < found; i++)
		if (!wire_column(cursor, &column))
			return cursor->failed ? "a column is longer than the message" :
				"the kind of a column is unknown";
	return NULL;
}

/*
 * Checks all tuples of a change that wire_read_change() has read, to the end of the
 * message.  With natts = -1, any number of columns is accepted.
 */
const char *
wire_check_tuples(WireChange *change, int natts)
{
	const char *problem = wire_check_tuple(&change->tuples, natts);

	if (problem == NULL && change->old_kind != 0 && change->type == LOGICAL_REP_MSG_UPDATE)
		problem = wire_uint8(&change->tuples) != 'N' ? "the new tuple is missing" :
			wire_check_tuple(&change->tuples, natts);
	return problem ? problem : finish(&change->tuples);
}

/* Reads a RELATION message up to its columns, and checks these. */
const char *
wire_read_relation(const char *data, int length, bool streamed, WireRelation *relation)
{
	WireCursor	cursor;
	WireAttribute attribute;
	const char *problem;

	start_behind_type(&cursor, data, length, streamed);
	relation->relid = wire_uint32(&cursor);
	if (cursor.failed)
		return TOO_SHORT;
	if ((problem = read_string(&cursor, &relation->nspname)) != NULL ||
		(problem = read_string(&cursor, &relation->relname)) != NULL)
		return problem;
	relation->replident = (char) wire_uint8(&cursor);
	relation->natts = wire_uint16(&cursor);
	if (cursor.failed)
		return TOO_SHORT;
	if (relation->natts > MaxTupleAttributeNumber)
		return "there are more columns than a table can have";
	relation->attributes = cursor;
	for (int i = 0; i < relation->natts; i++)
		if ((problem = wire_read_attribute(&cursor, &attribute)) != NULL)
			return problem;
	return finish(&cursor);
}

/* Reads one column of a RELATION message. */
const char *
wire_read_attribute(WireCursor *cursor, WireAttribute *attribute)
{
	const char *problem;

	attribute->is_key = (wire_uint8(cursor) & WIRE_KEY_COLUMN) != 0;
	if (cursor->failed)
		return TOO_SHORT;
	if ((problem = read_string(cursor, &attribute->name)) != NULL)
		return problem;
	attribute->type = wire_uint32(cursor);
	attribute->typmod = (int32) wire_uint32(cursor);
	return cursor->failed ? TOO_SHORT : NULL;
}

/* Reads a TRUNCATE message; leaves the cursor on the first relation. */
const char *
wire_read_truncate(const char *data, int length, bool streamed,
				   int *nrelids, WireCursor *relids)
{
	start_behind_type(relids, data, length, streamed);
	*nrelids = (int) wire_uint32(relids);
	(void) wire_uint8(relids);	/* flags */
	if (relids->failed)
		return TOO_SHORT;
	if (*nrelids < 0 || relids->end - relids->next != (int64) *nrelids * 4)
		return "the number of relations does not fit the length of the message";
	return NULL;
}

/* Checks that a terminated string follows "bytes" bytes. */
static const char *
check_string_behind(WireCursor *cursor, int bytes)
{
	wire_bytes(cursor, bytes);
	if (cursor->failed)
		return TOO_SHORT;
	if (memchr(cursor->next, '\0', cursor->end - cursor->next) == NULL)
		return "a name is not terminated";
	return NULL;
}

/*
 * Checks the form of a message that the server's own code is going to read.  The
 * server's code checks what is not checked here.
 */
const char *
wire_check_other(const char *data, int length)
{
	WireCursor	cursor;

	wire_start(&cursor, data + 1, length - 1);
	switch (data[0])
	{
		case LOGICAL_REP_MSG_TYPE:
			return check_type(&cursor);
		case LOGICAL_REP_MSG_ORIGIN:
			return check_string_behind(&cursor, 8);
		case LOGICAL_REP_MSG_BEGIN_PREPARE:
			return check_string_behind(&cursor, 28);
		case LOGICAL_REP_MSG_PREPARE:
		case LOGICAL_REP_MSG_COMMIT_PREPARED:
		case LOGICAL_REP_MSG_STREAM_PREPARE:
			return check_string_behind(&cursor, 29);
		case LOGICAL_REP_MSG_ROLLBACK_PREPARED:
			return check_string_behind(&cursor, 37);
		case LOGICAL_REP_MSG_STREAM_START:
			wire_bytes(&cursor, 5);
			return finish(&cursor);
		case LOGICAL_REP_MSG_STREAM_STOP:
			return finish(&cursor);
		case LOGICAL_REP_MSG_STREAM_COMMIT:
			wire_bytes(&cursor, 29);
			return finish(&cursor);
		case LOGICAL_REP_MSG_STREAM_ABORT:
			/* With streaming = parallel, the LSN and the time follow. */
			wire_bytes(&cursor, length - 1 > 8 ? 24 : 8);
			return finish(&cursor);
		default:
			return NULL;
	}
}

/*
 * Looks for a value in an INSERT, UPDATE or DELETE, whose form has been checked, that is
 * not valid text in the encoding of the database.  "tuples" stands on the first tuple's
 * column count.  Returns the number of the value's column, from 1, or 0 if there is none.
 */
int
wire_invalid_text(WireCursor tuples)
{
	int			encoding = GetDatabaseEncoding();

	for (;;)
	{
		int			natts = wire_uint16(&tuples);

		for (int i = 0; i < natts; i++)
		{
			WireColumn	value;

			if (!wire_column(&tuples, &value))
				return 0;
			if (value.status == LOGICALREP_COLUMN_TEXT &&
				!pg_verify_mbstr(encoding, value.data, value.length, true))
				return i + 1;
		}

		/* The new tuple of an UPDATE follows the old one. */
		if (tuples.next == tuples.end || wire_uint8(&tuples) != 'N')
			return 0;
	}
}
