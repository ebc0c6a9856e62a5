/*
 * batch.c
 *	  Taking the publisher's batches apart (publish/batch_format.h).
 *
 * The messages of a batch stay in libpq's buffer, or, if the batch was compressed, in
 * one of this module, until the next batch comes.
 */
#include "postgres.h"

#include "message_builder.h"
#include "publish/batch_format.h"
#include "receive/batch.h"
#include "receive/connection.h"
#include "receive/damage.h"
#include "receive/feedback.h"
#include "receive/led_subscription.h"
#include "receive/reception.h"
#include "utils/memutils.h"
#include "wire.h"

#ifdef WEFT_LZ4
#include <lz4.h>
#endif

static WireCursor batch;		/* what is left of the current batch */
static TimestampTz batch_time;	/* when it was sent */
static bool publisher_holds;	/* keepalives tell more than has been sent */

#ifdef WEFT_LZ4

/*
 * The usual size of the buffer: enough for a batch, 64 kB, and one more row.  A larger
 * buffer is freed when the next compressed batch comes.
 */
#define BUFFER_SIZE (1024 * 1024)

/* An LZ4 block expands to at most this many times its length. */
#define MAX_RATIO 255

static char *buffer = NULL;
static int	buffer_size = 0;

static char *
buffer_for(int length)
{
	if (length > buffer_size || buffer_size > BUFFER_SIZE)
	{
		if (buffer)
			pfree(buffer);
		buffer = NULL;
		buffer_size = 0;
		buffer = MemoryContextAlloc(led.context, Max(length, BUFFER_SIZE));
		buffer_size = Max(length, BUFFER_SIZE);
	}
	return buffer;
}

/*
 * Moves the cursor from behind the flags to the decompressed messages.
 *
 * These may be one message of nearly 1 GB, the most that a publisher can build.  But
 * whatever length the publisher claims, the buffer is never larger than MAX_RATIO times
 * what has arrived.
 */
static void
decompress(WireCursor *cursor)
{
	uint32		length = wire_uint32(cursor);
	int			compressed = cursor->end - cursor->next;
	char	   *messages;

	if (cursor->failed)
		damage_report(NULL, "a batch ends too early");
	if (!AllocSizeIsValid(length) || length / MAX_RATIO > compressed)
		damage_report(NULL, "a compressed batch claims more bytes than it can hold");
	messages = buffer_for(length);
	if (LZ4_decompress_safe(cursor->next, messages, compressed, length) != (int) length)
		damage_report(NULL, "a compressed batch is damaged");
	wire_start(cursor, messages, length);
}
#endif

/* Is this message a batch?  If so, batch_next() returns its messages. */
bool
batch_open(const char *message, int length)
{
	WireCursor	cursor;
	uint8		known = BATCH_MORE_HELD | BATCH_SYNCHRONOUS;
	uint8		flags;

	if (!connection_sends_batches() || message[0] != 'w' || length <= DATA_HEADER_LENGTH ||
		message[DATA_HEADER_LENGTH] != BATCH_TYPE)
		return false;

	wire_start(&cursor, message + 1, length - 1);
	reception.message_lsn = wire_uint64(&cursor);
	(void) wire_uint64(&cursor);
	batch_time = wire_uint64(&cursor);
	(void) wire_uint8(&cursor);
	flags = wire_uint8(&cursor);
	if (cursor.failed)
		damage_report(NULL, "a batch ends too early");
	if (connection_compression() == COMPRESSION_LZ4)
		known |= BATCH_LZ4;
	feedback_publisher_waits((flags & BATCH_SYNCHRONOUS) != 0);
	if (flags & ~known)
		damage_report(NULL, "a batch has flags that were not requested");
	publisher_holds = (flags & BATCH_MORE_HELD) != 0;
#ifdef WEFT_LZ4
	if (flags & BATCH_LZ4)
		decompress(&cursor);
#endif
	batch = cursor;
	return true;
}

/*
 * Returns the length of the next message of the batch, and where it is, or zero
 * if there is none left.
 */
int
batch_next(char **message)
{
	uint32		length;
	const char *data;

	if (batch.next == batch.end)
		return 0;
	length = wire_uint32(&batch);
	if (length > PG_INT32_MAX)
		length = PG_INT32_MAX;
	data = wire_bytes(&batch, length);
	if (data == NULL || length <= DATA_HEADER_LENGTH || data[0] != 'w')
		damage_report(NULL, "a batch is damaged");

	/* It was sent when the batch was. */
	*message = unconstify(char *, data);
	(void) message_put_uint64(*message + DATA_TIME_OFFSET, batch_time);
	return length;
}

/* Does the publisher hold transactions back that end before its keepalives say? */
bool
batch_publisher_holds(void)
{
	return publisher_holds;
}
