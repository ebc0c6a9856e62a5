/*
 * message_builder.c
 *	  Writes messages of the streaming protocol, with numbers in network byte order.
 */
#include "postgres.h"

#include "message_builder.h"

static char *
reserve(MessageBuilder *builder, int length)
{
	char	   *place = builder->data + builder->length;

	if (length < 0 || length > builder->size - builder->length)
		elog(ERROR, "a message of type \"%c\" needs more than %d bytes",
			 builder->data[0], builder->size);
	builder->length += length;
	return place;
}

/* Begins a message in memory of "size" bytes. */
void
message_start(MessageBuilder *builder, char *memory, int size, char type)
{
	Assert(size > 0);
	builder->data = memory;
	builder->size = size;
	builder->length = 1;
	memory[0] = type;
}

void
message_bytes(MessageBuilder *builder, const char *bytes, int length)
{
	memcpy(reserve(builder, length), bytes, length);
}

void
message_byte(MessageBuilder *builder, char value)
{
	*reserve(builder, 1) = value;
}

void
message_uint32(MessageBuilder *builder, uint32 value)
{
	(void) message_put_uint32(reserve(builder, sizeof(value)), value);
}

void
message_uint64(MessageBuilder *builder, uint64 value)
{
	(void) message_put_uint64(reserve(builder, sizeof(value)), value);
}

/* With its terminating null byte. */
void
message_string(MessageBuilder *builder, const char *string)
{
	message_bytes(builder, string, strlen(string) + 1);
}

/*
 * Writes a keepalive that asks for no reply into MESSAGE_KEEPALIVE_LENGTH bytes of memory; returns its
 * length.
 */
int
message_keepalive(char *memory, XLogRecPtr end_lsn, TimestampTz sent_time)
{
	MessageBuilder keepalive;

	message_start(&keepalive, memory, MESSAGE_KEEPALIVE_LENGTH, 'k');
	message_uint64(&keepalive, end_lsn);
	message_uint64(&keepalive, sent_time);
	message_byte(&keepalive, false);
	return keepalive.length;
}
