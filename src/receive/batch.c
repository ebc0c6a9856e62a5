/*
 * batch.c
 *	  Taking the publisher's batches apart (publish/batch_format.h).
 *
 * What is in a batch lies in libpq's buffer, or, if it was compressed, in one of
 * ours, until the next batch comes.
 */
#include "postgres.h"

#include "message_builder.h"
#include "publish/batch_format.h"
#include "receive/batch.h"
#include "receive/leader.h"
#include "utils/memutils.h"

#ifdef WEFT_LZ4
#include <lz4.h>

/*
 * The usual size of our buffer, which is that of a batch, 64 kB, and of one row
 * more.  A larger one is given back when the next compressed batch comes.
 */
#define BUFFER_SIZE (1024 * 1024)

/* No LZ4 block holds more than so many times its own length. */
#define MAX_RATIO 255

static char *
buffer_for(int length)
{
	if (length > leader.buffer_size || leader.buffer_size > BUFFER_SIZE)
	{
		if (leader.buffer)
			pfree(leader.buffer);
		leader.buffer = NULL;
		leader.buffer_size = 0;
		leader.buffer = MemoryContextAlloc(leader.context, Max(length, BUFFER_SIZE));
		leader.buffer_size = Max(length, BUFFER_SIZE);
	}
	return leader.buffer;
}

/*
 * Puts the cursor, which stands behind the flags, on the decompressed messages.
 *
 * They may be one message of nearly 1 GB, the most that a publisher can put
 * together.  But whatever is claimed, no more memory is taken than MAX_RATIO
 * times what has really come.
 */
static void
decompress(WireCursor *cursor)
{
	uint32		length = wire_uint32(cursor);
	int			compressed = cursor->end - cursor->next;
	char	   *buffer;

	if (cursor->failed)
		leader_damage(NULL, "a batch ends too early");
	if (!AllocSizeIsValid(length) || length / MAX_RATIO > compressed)
		leader_damage(NULL, "a compressed batch cannot be as long as it claims");
	buffer = buffer_for(length);
	if (LZ4_decompress_safe(cursor->next, buffer, compressed, length) != (int) length)
		leader_damage(NULL, "a compressed batch is damaged");
	wire_start(cursor, buffer, length);
}
#endif

/*
 * Is this message a batch?  Then batch_next() gives what is in it.
 */
bool
batch_open(const char *message, int length)
{
	WireCursor	cursor;
	uint8		known = BATCH_MORE_HELD;
	uint8		flags;

	if (!leader.batches || message[0] != 'w' || length <= DATA_HEADER_LENGTH ||
		message[DATA_HEADER_LENGTH] != BATCH_TYPE)
		return false;

	wire_start(&cursor, message + 1, length - 1);
	leader.message_lsn = wire_uint64(&cursor);
	(void) wire_uint64(&cursor);
	leader.batch_time = wire_uint64(&cursor);
	(void) wire_uint8(&cursor);
	flags = wire_uint8(&cursor);
	if (cursor.failed)
		leader_damage(NULL, "a batch ends too early");
	if (leader.compression == COMPRESSION_LZ4)
		known |= BATCH_LZ4;
	if (flags & ~known)
		leader_damage(NULL, "a batch has flags that were not asked for");
	leader.publisher_holds = (flags & BATCH_MORE_HELD) != 0;
#ifdef WEFT_LZ4
	if (flags & BATCH_LZ4)
		decompress(&cursor);
#endif
	leader.batch = cursor;
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

	if (leader.batch.next == leader.batch.end)
		return 0;
	length = wire_uint32(&leader.batch);
	if (length > PG_INT32_MAX)
		length = PG_INT32_MAX;
	data = wire_bytes(&leader.batch, length);
	if (data == NULL || length <= DATA_HEADER_LENGTH || data[0] != 'w')
		leader_damage(NULL, "a batch is damaged");

	/* It was sent when the batch was. */
	*message = unconstify(char *, data);
	(void) message_put_uint64(*message + DATA_TIME_OFFSET, leader.batch_time);
	return length;
}
