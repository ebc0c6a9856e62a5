/*
 * wire.h
 *	  Reads logical replication messages without trusting them.
 *
 * These functions read bytes only: they neither allocate nor raise errors.  A function
 * that can find a message damaged returns NULL if it is not, and otherwise what is
 * wrong, as a sentence without a full stop.
 *
 * "data" and "length" are a message from its type byte on.  Within a streamed
 * transaction ("streamed") a transaction ID follows the type byte.
 */
#ifndef WEFT_WIRE_H
#define WEFT_WIRE_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "port/pg_bswap.h"
#include "replication/logicalproto.h"

/* Marks a column of the replica identity in a RELATION message. */
#define WIRE_KEY_COLUMN 0x01

/*
 * Precedes a message in the streaming replication protocol: 'w', start of the data,
 * end of WAL, time of sending.
 */
#define DATA_TIME_OFFSET (1 + 8 + 8)
#define DATA_HEADER_LENGTH (DATA_TIME_OFFSET + 8)

typedef struct WireCursor
{
	const char *next;
	const char *end;
	bool		failed;			/* a read reached past the end */
} WireCursor;

typedef struct WireColumn
{
	char		status;			/* a LOGICALREP_COLUMN_* */
	int			length;
	const char *data;			/* not terminated */
} WireColumn;

/* An INSERT, UPDATE or DELETE, up to its tuples. */
typedef struct WireChange
{
	char		type;			/* a LogicalRepMsgType */
	LogicalRepRelId relid;
	char		old_kind;		/* 'K' key, 'O' all columns, 0 none */
	WireCursor	tuples;			/* stands on the first tuple's column count */
} WireChange;

typedef struct WireRelation
{
	LogicalRepRelId relid;
	const char *nspname;		/* empty means pg_catalog */
	const char *relname;
	char		replident;
	int			natts;
	WireCursor	attributes;		/* stands on the first column */
} WireRelation;

typedef struct WireAttribute
{
	bool		is_key;
	const char *name;
	Oid			type;
	int32		typmod;
} WireAttribute;

typedef struct WireBegin
{
	XLogRecPtr	final_lsn;
	TimestampTz commit_time;
	TransactionId xid;
} WireBegin;

/* A message of the stream itself, not of a transaction in it. */
typedef struct WireKeepalive
{
	XLogRecPtr	end_lsn;
	TimestampTz sent_time;
	bool		reply_requested;
} WireKeepalive;

typedef struct WireCommit
{
	XLogRecPtr	commit_lsn;
	XLogRecPtr	end_lsn;
	TimestampTz commit_time;
} WireCommit;

static inline void
wire_start(WireCursor *cursor, const char *data, int length)
{
	cursor->next = data;
	cursor->end = data + length;
	cursor->failed = false;
}

static inline const char *
wire_bytes(WireCursor *cursor, int length)
{
	const char *result = cursor->next;

	if (length < 0 || cursor->end - cursor->next < length)
	{
		cursor->failed = true;
		return NULL;
	}
	cursor->next += length;
	return result;
}

static inline uint8
wire_uint8(WireCursor *cursor)
{
	const char *bytes = wire_bytes(cursor, 1);

	return bytes ? (uint8) *bytes : 0;
}

static inline uint16
wire_uint16(WireCursor *cursor)
{
	const char *bytes = wire_bytes(cursor, 2);
	uint16		result = 0;

	if (bytes)
		memcpy(&result, bytes, sizeof(result));
	return pg_ntoh16(result);
}

static inline uint32
wire_uint32(WireCursor *cursor)
{
	const char *bytes = wire_bytes(cursor, 4);
	uint32		result = 0;

	if (bytes)
		memcpy(&result, bytes, sizeof(result));
	return pg_ntoh32(result);
}

static inline uint64
wire_uint64(WireCursor *cursor)
{
	const char *bytes = wire_bytes(cursor, 8);
	uint64		result = 0;

	if (bytes)
		memcpy(&result, bytes, sizeof(result));
	return pg_ntoh64(result);
}

/* Reads one column; returns false if the bytes are not a column. */
static inline bool
wire_column(WireCursor *cursor, WireColumn *column)
{
	column->status = (char) wire_uint8(cursor);
	column->length = 0;
	column->data = NULL;
	switch (column->status)
	{
		case LOGICALREP_COLUMN_NULL:
		case LOGICALREP_COLUMN_UNCHANGED:
			break;
		case LOGICALREP_COLUMN_TEXT:
		case LOGICALREP_COLUMN_BINARY:
			column->length = (int) wire_uint32(cursor);
			column->data = wire_bytes(cursor, column->length);
			break;
		default:
			return false;
	}
	return !cursor->failed;
}

extern const char *wire_read_keepalive(const char *message, int length, WireKeepalive *keepalive);
extern const char *wire_read_begin(const char *data, int length, WireBegin *begin);
extern const char *wire_read_commit(const char *data, int length, WireCommit *commit);
extern const char *wire_read_change(const char *data, int length, bool streamed,
									WireChange *change);
extern const char *wire_read_relation(const char *data, int length, bool streamed,
									  WireRelation *relation);
extern const char *wire_read_attribute(WireCursor *cursor, WireAttribute *attribute);
extern const char *wire_read_truncate(const char *data, int length, bool streamed,
									  int *nrelids, WireCursor *relids);
extern const char *wire_check_tuple(WireCursor *cursor, int natts);
extern const char *wire_check_tuples(WireChange *change, int natts);
extern const char *wire_check_other(const char *data, int length);

extern int	wire_invalid_text(WireCursor tuples);

#endif							/* WEFT_WIRE_H */
