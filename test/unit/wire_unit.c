/*
 * wire_unit.c
 *	  Unit tests of wire.c: every kind of message, whole, cut at every byte, and with
 *	  random bytes.
 *
 * A message is put at the end of a page that no page follows, so that reading behind its
 * end crashes the server.
 */
#include "postgres.h"

#include <sys/mman.h>
#include <unistd.h>

#include "access/htup_details.h"
#include "libpq/pqformat.h"
#include "unit.h"
#include "wire.h"

/* How a kind of message is read.  Returns what is wrong with it, or NULL. */
typedef const char *(*ReadMessage) (const char *data, int length, bool streamed);

/* The page, and where it ends. */
static char *page = NULL;
static char *page_end;

/* Returns a copy of the bytes behind which nothing can be read. */
static char *
guarded(const char *data, int length)
{
	if (page == NULL)
	{
		long		size = sysconf(_SC_PAGESIZE);

		page = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (page == MAP_FAILED || mprotect(page + size, size, PROT_NONE) != 0)
			elog(ERROR, "could not map memory: %m");
		page_end = page + size;
	}
	CHECK(length <= page_end - page);
	return memcpy(page_end - length, data, length);
}

static const char *
read_begin(const char *data, int length, bool streamed)
{
	WireBegin	begin;

	return wire_read_begin(data, length, &begin);
}

static const char *
read_commit(const char *data, int length, bool streamed)
{
	WireCommit	commit;

	return wire_read_commit(data, length, &commit);
}

static const char *
read_change(const char *data, int length, bool streamed)
{
	WireChange	change;
	const char *problem = wire_read_change(data, length, streamed, &change);

	if (problem)
		return problem;

	/* This may read tuples that have not been checked, too. */
	(void) wire_invalid_text(change.tuples);
	return wire_check_tuples(&change, -1);
}

static const char *
read_relation(const char *data, int length, bool streamed)
{
	WireRelation relation;

	return wire_read_relation(data, length, streamed, &relation);
}

static const char *
read_truncate(const char *data, int length, bool streamed)
{
	WireCursor	relids;
	int			count;
	const char *problem = wire_read_truncate(data, length, streamed, &count, &relids);

	for (int i = 0; problem == NULL && i < count; i++)
		(void) wire_uint32(&relids);
	CHECK(problem != NULL || (!relids.failed && relids.next == relids.end));
	return problem;
}

static const char *
read_other(const char *data, int length, bool streamed)
{
	return wire_check_other(data, length);
}

/*
 * The whole message is accepted, and none that ends earlier; a message of a fixed form
 * is not accepted with a byte more either.  Whatever its bytes are, nothing behind its
 * end is read.
 */
static void
check_message(ReadMessage read, StringInfo message, bool streamed, bool fixed)
{
	CHECK_TEXT(read(guarded(message->data, message->len), message->len, streamed), NULL);
	for (int length = 1; length < message->len; length++)
		if (read(guarded(message->data, length), length, streamed) == NULL)
			elog(ERROR, "message \"%c\" of %d bytes is accepted when cut after %d",
				 message->data[0], message->len, length);
	if (fixed)
	{
		appendStringInfoCharMacro(message, 0);
		CHECK(read(guarded(message->data, message->len), message->len, streamed) != NULL);
		message->data[--message->len] = '\0';
	}
	for (int i = 0; i < 2000; i++)
	{
		int			length = 1 + unit_random(message->len);
		char	   *bytes = guarded(message->data, length);

		for (int j = unit_random(4); j >= 0; j--)
			if (length > 1)
				bytes[1 + unit_random(length - 1)] = unit_random(2) ? unit_random(256) : unit_random(5);
		(void) read(bytes, length, streamed);
	}
}

/* Begins a message: its type and, in a streamed transaction, the transaction ID. */
static StringInfo
start(char type, bool streamed)
{
	StringInfo	message = makeStringInfo();

	pq_sendbyte(message, type);
	if (streamed)
		pq_sendint32(message, 1000);
	return message;
}

static void
put_text(StringInfo message, const char *value)
{
	pq_sendbyte(message, LOGICALREP_COLUMN_TEXT);
	pq_sendint32(message, strlen(value));
	appendStringInfoString(message, value);
}

/* A tuple with a column of each kind. */
static void
put_tuple(StringInfo message, char kind)
{
	pq_sendbyte(message, kind);
	pq_sendint16(message, 4);
	put_text(message, "value");
	pq_sendbyte(message, LOGICALREP_COLUMN_NULL);
	pq_sendbyte(message, LOGICALREP_COLUMN_UNCHANGED);
	pq_sendbyte(message, LOGICALREP_COLUMN_BINARY);
	pq_sendint32(message, 2);
	pq_sendint16(message, 0x0102);
}

static StringInfo
make_change(char type, bool streamed, char old_kind, bool new)
{
	StringInfo	message = start(type, streamed);

	pq_sendint32(message, 16384);
	if (old_kind)
		put_tuple(message, old_kind);
	if (new)
		put_tuple(message, 'N');
	return message;
}

static void
put_name(StringInfo message, const char *name)
{
	appendBinaryStringInfo(message, name, strlen(name) + 1);
}

static StringInfo
make_relation(bool streamed, const char *name, const char *column)
{
	StringInfo	message = start(LOGICAL_REP_MSG_RELATION, streamed);

	pq_sendint32(message, 16384);
	put_name(message, "public");
	put_name(message, name);
	pq_sendbyte(message, 'd');
	pq_sendint16(message, 2);
	for (int i = 0; i < 2; i++)
	{
		pq_sendbyte(message, i == 0 ? WIRE_KEY_COLUMN : 0);
		put_name(message, column);
		pq_sendint32(message, 23);
		pq_sendint32(message, -1);
	}
	return message;
}

static StringInfo
make_begin(uint64 final_lsn)
{
	StringInfo	message = start(LOGICAL_REP_MSG_BEGIN, false);

	pq_sendint64(message, final_lsn);
	pq_sendint64(message, 200);
	pq_sendint32(message, 300);
	return message;
}

static StringInfo
make_commit(uint8 flags, uint64 commit_lsn, uint64 end_lsn)
{
	StringInfo	message = start(LOGICAL_REP_MSG_COMMIT, false);

	pq_sendbyte(message, flags);
	pq_sendint64(message, commit_lsn);
	pq_sendint64(message, end_lsn);
	pq_sendint64(message, 400);
	return message;
}

static void
begins(void)
{
	StringInfo	message = make_begin(100);
	WireBegin	begin;

	CHECK_TEXT(wire_read_begin(message->data, message->len, &begin), NULL);
	CHECK_EQUAL(begin.final_lsn, 100);
	CHECK_EQUAL(begin.commit_time, 200);
	CHECK_EQUAL(begin.xid, 300);
	check_message(read_begin, message, false, true);
	message = make_begin(0);
	CHECK_TEXT(read_begin(message->data, message->len, false), "the final LSN is missing");
}

static void
commits(void)
{
	StringInfo	message = make_commit(0, 100, 200);
	WireCommit	commit;

	CHECK_TEXT(wire_read_commit(message->data, message->len, &commit), NULL);
	CHECK_EQUAL(commit.commit_lsn, 100);
	CHECK_EQUAL(commit.end_lsn, 200);
	CHECK_EQUAL(commit.commit_time, 400);
	check_message(read_commit, message, false, true);
	message = make_commit(1, 100, 200);
	CHECK_TEXT(read_commit(message->data, message->len, false), "the flags are unknown");
	message = make_commit(0, 200, 199);
	CHECK_TEXT(read_commit(message->data, message->len, false), "the end is before the commit");
}

static void
changes(void)
{
	for (int streamed = 0; streamed <= 1; streamed++)
	{
		check_message(read_change, make_change(LOGICAL_REP_MSG_INSERT, streamed, 0, true),
					  streamed, true);
		check_message(read_change, make_change(LOGICAL_REP_MSG_UPDATE, streamed, 0, true),
					  streamed, true);
		check_message(read_change, make_change(LOGICAL_REP_MSG_UPDATE, streamed, 'K', true),
					  streamed, true);
		check_message(read_change, make_change(LOGICAL_REP_MSG_UPDATE, streamed, 'O', true),
					  streamed, true);
		check_message(read_change, make_change(LOGICAL_REP_MSG_DELETE, streamed, 'K', false),
					  streamed, true);
		check_message(read_change, make_change(LOGICAL_REP_MSG_DELETE, streamed, 'O', false),
					  streamed, true);
	}
}

static void
columns(void)
{
	StringInfo	message = make_change(LOGICAL_REP_MSG_UPDATE, true, 'K', true);
	WireChange	change;
	WireColumn	column;

	CHECK_TEXT(wire_read_change(message->data, message->len, true, &change), NULL);
	CHECK_EQUAL(change.type, LOGICAL_REP_MSG_UPDATE);
	CHECK_EQUAL(change.relid, 16384);
	CHECK_EQUAL(change.old_kind, 'K');
	CHECK_EQUAL(wire_uint16(&change.tuples), 4);
	CHECK(wire_column(&change.tuples, &column));
	CHECK_EQUAL(column.status, LOGICALREP_COLUMN_TEXT);
	CHECK_EQUAL(column.length, 5);
	CHECK(memcmp(column.data, "value", 5) == 0);
	CHECK(wire_column(&change.tuples, &column));
	CHECK_EQUAL(column.status, LOGICALREP_COLUMN_NULL);
	CHECK(column.data == NULL);
	CHECK(wire_column(&change.tuples, &column));
	CHECK_EQUAL(column.status, LOGICALREP_COLUMN_UNCHANGED);
	CHECK(wire_column(&change.tuples, &column));
	CHECK_EQUAL(column.status, LOGICALREP_COLUMN_BINARY);
	CHECK_EQUAL(column.length, 2);
	CHECK_EQUAL(wire_uint8(&change.tuples), 'N');
	CHECK_TEXT(wire_check_tuple(&change.tuples, 4), NULL);
	CHECK(change.tuples.next == change.tuples.end);
}

/* Changes that are not cut, but wrong. */
static void
wrong_changes(void)
{
	StringInfo	message = make_change(LOGICAL_REP_MSG_INSERT, false, 'O', true);
	WireChange	change;

	CHECK_TEXT(read_change(message->data, message->len, false),
			   "an inserted row has an old tuple");
	message = make_change(LOGICAL_REP_MSG_DELETE, false, 0, true);
	CHECK_TEXT(read_change(message->data, message->len, false),
			   "the kind of the tuple is unknown");
	message = make_change(LOGICAL_REP_MSG_UPDATE, false, 'X', true);
	CHECK_TEXT(read_change(message->data, message->len, false),
			   "the kind of the tuple is unknown");
	message = make_change(LOGICAL_REP_MSG_UPDATE, false, 'K', false);
	put_tuple(message, 'X');
	CHECK_TEXT(read_change(message->data, message->len, false), "the new tuple is missing");

	message = make_change(LOGICAL_REP_MSG_INSERT, false, 0, true);
	CHECK_TEXT(wire_read_change(message->data, message->len, false, &change), NULL);
	CHECK_TEXT(wire_check_tuples(&change, 3), "the number of columns is not the relation's");
	CHECK_TEXT(wire_read_change(message->data, message->len, false, &change), NULL);
	CHECK_TEXT(wire_check_tuples(&change, 4), NULL);

	/* A kind of column, and lengths, that cannot be. */
	message->data[8] = 'x';
	CHECK_TEXT(read_change(message->data, message->len, false), "the kind of a column is unknown");
	message->data[8] = LOGICALREP_COLUMN_TEXT;
	memcpy(message->data + 9, "\xff\xff\xff\xff", 4);
	CHECK_TEXT(read_change(message->data, message->len, false),
			   "a column is longer than the message");
	memcpy(message->data + 9, "\x7f\xff\xff\xff", 4);
	CHECK_TEXT(read_change(message->data, message->len, false),
			   "a column is longer than the message");
}

static void
relations(void)
{
	StringInfo	message = make_relation(false, "table", "column");
	char		long_name[NAMEDATALEN + 1] = {0};
	WireRelation relation;
	WireAttribute attribute;

	CHECK_TEXT(wire_read_relation(message->data, message->len, false, &relation), NULL);
	CHECK_EQUAL(relation.relid, 16384);
	CHECK_TEXT(relation.nspname, "public");
	CHECK_TEXT(relation.relname, "table");
	CHECK_EQUAL(relation.replident, 'd');
	CHECK_EQUAL(relation.natts, 2);
	CHECK_TEXT(wire_read_attribute(&relation.attributes, &attribute), NULL);
	CHECK(attribute.is_key);
	CHECK_TEXT(attribute.name, "column");
	CHECK_EQUAL(attribute.type, 23);
	CHECK_EQUAL(attribute.typmod, -1);
	CHECK_TEXT(wire_read_attribute(&relation.attributes, &attribute), NULL);
	CHECK(!attribute.is_key);
	CHECK(relation.attributes.next == relation.attributes.end);

	check_message(read_relation, message, false, true);
	check_message(read_relation, make_relation(true, "table", "column"), true, true);

	/* The longest name, and one that is longer. */
	memset(long_name, 'n', NAMEDATALEN - 1);
	message = make_relation(false, long_name, long_name);
	CHECK_TEXT(read_relation(message->data, message->len, false), NULL);
	long_name[NAMEDATALEN - 1] = 'n';
	message = make_relation(false, long_name, "column");
	CHECK_TEXT(read_relation(message->data, message->len, false), "a name is too long");
	message = make_relation(false, "table", long_name);
	CHECK_TEXT(read_relation(message->data, message->len, false), "a name is too long");

	message = make_relation(false, "tab\xffle", "column");
	CHECK_TEXT(read_relation(message->data, message->len, false),
			   "a name is not valid in the encoding of the database");

	/* The number of columns is behind two names and a byte. */
	message = make_relation(false, "table", "column");
	message->data[19] = (MaxTupleAttributeNumber + 1) >> 8;
	message->data[20] = (char) (MaxTupleAttributeNumber + 1);
	CHECK_TEXT(read_relation(message->data, message->len, false),
			   "there are more columns than a table can have");
}

static StringInfo
make_truncate(bool streamed, uint32 announced, int relations)
{
	StringInfo	message = start(LOGICAL_REP_MSG_TRUNCATE, streamed);

	pq_sendint32(message, announced);
	pq_sendbyte(message, 0);
	for (int i = 0; i < relations; i++)
		pq_sendint32(message, 16384 + i);
	return message;
}

static void
truncates(void)
{
	static const uint32 wrong[] = {0, 2, 4, 0x80000003, 0x40000003, 0xFFFFFFFF};
	StringInfo	message;

	check_message(read_truncate, make_truncate(false, 3, 3), false, true);
	check_message(read_truncate, make_truncate(true, 3, 3), true, true);
	for (int i = 0; i < lengthof(wrong); i++)
	{
		message = make_truncate(false, wrong[i], 3);
		CHECK_TEXT(read_truncate(message->data, message->len, false),
				   "the number of relations does not fit the length of the message");
	}
}

/*
 * A message of so many bytes, maybe with a string behind them.  The bytes are zero, so a
 * string that is looked for too early is found.
 */
static StringInfo
make_other(char type, int bytes, const char *string)
{
	StringInfo	message = start(type, false);

	for (int i = 0; i < bytes; i++)
		pq_sendbyte(message, 0);
	if (string)
		put_name(message, string);
	return message;
}

/* What the server reads; the lengths are those of its proto.c. */
static void
others(void)
{
	StringInfo	message = make_other(LOGICAL_REP_MSG_TYPE, 4, "pg_catalog");

	put_name(message, "mood");
	check_message(read_other, message, false, true);
	check_message(read_other, make_other(LOGICAL_REP_MSG_ORIGIN, 8, "origin"), false, false);
	check_message(read_other, make_other(LOGICAL_REP_MSG_BEGIN_PREPARE, 8 + 8 + 8 + 4, "gid"),
				  false, false);
	check_message(read_other, make_other(LOGICAL_REP_MSG_PREPARE, 1 + 8 + 8 + 8 + 4, "gid"),
				  false, false);
	check_message(read_other, make_other(LOGICAL_REP_MSG_COMMIT_PREPARED, 1 + 8 + 8 + 8 + 4, "gid"),
				  false, false);
	check_message(read_other, make_other(LOGICAL_REP_MSG_ROLLBACK_PREPARED,
										 1 + 8 + 8 + 8 + 8 + 4, "gid"), false, false);
	check_message(read_other, make_other(LOGICAL_REP_MSG_STREAM_PREPARE, 1 + 8 + 8 + 8 + 4, "gid"),
				  false, false);
	check_message(read_other, make_other(LOGICAL_REP_MSG_STREAM_START, 4 + 1, NULL), false, true);
	check_message(read_other, make_other(LOGICAL_REP_MSG_STREAM_STOP, 0, NULL), false, true);
	check_message(read_other, make_other(LOGICAL_REP_MSG_STREAM_COMMIT, 4 + 1 + 8 + 8 + 8, NULL),
				  false, true);
	check_message(read_other, make_other(LOGICAL_REP_MSG_STREAM_ABORT, 4 + 4, NULL), false, true);

	/*
	 * One with LSN and time is not accepted if it is cut, but for the short
	 * form.
	 */
	message = make_other(LOGICAL_REP_MSG_STREAM_ABORT, 4 + 4 + 8 + 8, NULL);
	for (int length = 1; length < message->len; length++)
		CHECK((read_other(guarded(message->data, length), length, false) == NULL) == (length == 9));
	CHECK_TEXT(read_other(message->data, message->len, false), NULL);
}

/* Text that is not valid in the encoding, of any value. */
static void
invalid_text(void)
{
	for (int streamed = 0; streamed <= 1; streamed++)
	{
		StringInfo	message = make_change(LOGICAL_REP_MSG_UPDATE, streamed, 'K', true);
		int			first = streamed ? 4 + 13 : 13;
		WireChange	change;

		CHECK_TEXT(wire_read_change(message->data, message->len, streamed, &change), NULL);
		CHECK_EQUAL(wire_invalid_text(change.tuples), 0);

		/* In the old tuple, then in the new one. */
		CHECK(memcmp(message->data + first, "value", 5) == 0);
		message->data[first + 2] = '\xff';
		CHECK_EQUAL(wire_invalid_text(change.tuples), 1);
		message->data[first + 2] = 'l';
		first += 5 + 1 + 1 + 7 + 1 + 2 + 5;
		CHECK(memcmp(message->data + first, "value", 5) == 0);
		message->data[first + 4] = '\0';
		CHECK_EQUAL(wire_invalid_text(change.tuples), 1);
	}
}

/* What a cursor does at the end of its bytes, and behind it. */
static void
cursors(void)
{
	WireCursor	cursor;
	char	   *bytes = guarded("\x01\x02\x03", 3);

	wire_start(&cursor, bytes, 3);
	CHECK_EQUAL(wire_uint16(&cursor), 0x0102);
	CHECK_EQUAL(wire_uint16(&cursor), 0);
	CHECK(cursor.failed);
	CHECK(cursor.next == bytes + 2);
	wire_start(&cursor, bytes, 3);
	CHECK(wire_bytes(&cursor, -1) == NULL);
	CHECK(cursor.failed);
	wire_start(&cursor, bytes, 3);
	CHECK(wire_bytes(&cursor, 3) == bytes);
	CHECK(!cursor.failed);
	CHECK_EQUAL(wire_uint8(&cursor), 0);
	CHECK(cursor.failed);
	wire_start(&cursor, bytes, 3);
	CHECK_EQUAL(wire_uint32(&cursor), 0);
	CHECK_EQUAL(wire_uint64(&cursor), 0);
	CHECK(cursor.failed);
}

static const UnitTest tests[] = {
	{"cursors", cursors},
	{"begins", begins},
	{"commits", commits},
	{"changes", changes},
	{"columns", columns},
	{"wrong_changes", wrong_changes},
	{"relations", relations},
	{"truncates", truncates},
	{"others", others},
	{"invalid_text", invalid_text},
	{NULL, NULL}
};

const Unit	wire_unit = {"wire", tests};
