/*
 * message_builder.h
 *	  Writes messages of the streaming protocol, with numbers in network byte order.
 *
 * A builder fills memory of its caller; nothing is allocated.  What does not fit is an
 * error.  Code that runs for each row or message uses message_put_*() on memory that it
 * has made room in itself.
 */
#ifndef WEFT_MESSAGE_BUILDER_H
#define WEFT_MESSAGE_BUILDER_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "port/pg_bswap.h"

/* 'k', end of WAL, time, reply requested. */
#define MESSAGE_KEEPALIVE_LENGTH (1 + 8 + 8 + 1)

typedef struct MessageBuilder
{
	char	   *data;
	int			length;			/* so far */
	int			size;			/* of the memory at "data" */
} MessageBuilder;

extern void message_start(MessageBuilder *builder, char *memory, int size, char type);
extern void message_bytes(MessageBuilder *builder, const char *bytes, int length);
extern void message_byte(MessageBuilder *builder, char value);
extern void message_uint32(MessageBuilder *builder, uint32 value);
extern void message_uint64(MessageBuilder *builder, uint64 value);
extern void message_string(MessageBuilder *builder, const char *string);
extern int	message_keepalive(char *memory, XLogRecPtr end_lsn, TimestampTz sent_time);

/* These write one number at a place, which may be unaligned, and return what is behind. */
static inline char *
message_put_uint16(char *place, uint16 value)
{
	uint16		wire = pg_hton16(value);

	memcpy(place, &wire, sizeof(wire));
	return place + sizeof(wire);
}

static inline char *
message_put_uint32(char *place, uint32 value)
{
	uint32		wire = pg_hton32(value);

	memcpy(place, &wire, sizeof(wire));
	return place + sizeof(wire);
}

static inline char *
message_put_uint64(char *place, uint64 value)
{
	uint64		wire = pg_hton64(value);

	memcpy(place, &wire, sizeof(wire));
	return place + sizeof(wire);
}

#endif							/* WEFT_MESSAGE_BUILDER_H */
