/*
 * batch.c
 *	  Taking the publisher's batches apart (publish/batch.h).
 */
#include "postgres.h"

#include "publish/batch.h"
#include "receive/leader.h"

/*
 * Is this message a batch?  Then batch_next() gives what is in it.
 */
bool
batch_open(const char *message, int length)
{
	WireCursor	cursor;

	if (!leader.batches || message[0] != 'w' || length <= DATA_HEADER_LENGTH ||
		message[DATA_HEADER_LENGTH] != BATCH_TYPE)
		return false;

	wire_start(&cursor, message + 1, length - 1);
	leader.message_lsn = wire_uint64(&cursor);
	(void) wire_uint64(&cursor);
	leader.batch_time = wire_uint64(&cursor);
	(void) wire_uint8(&cursor);
	leader.publisher_holds = (wire_uint8(&cursor) & BATCH_MORE_HELD) != 0;
	if (cursor.failed)
		leader_damage(NULL, "a batch ends too early");
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
	uint64		time = pg_hton64(leader.batch_time);
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
	memcpy(*message + DATA_TIME_OFFSET, &time, sizeof(time));
	return length;
}
