/*
 * broadcast_unit.c
 *	  Unit tests of ring/broadcast.c.
 *
 * An area can be attached once in a process, so a reader here shares that of the log.
 */
#include "postgres.h"

#include "ring/broadcast.h"
#include "unit.h"

static void
begin(BroadcastLog *log, BroadcastReader *reader)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, 1024, 1);

	/* Finds what the server has given to Weft in shared memory. */
	broadcast_startup();
	broadcast_create(log, ring);
	memset(reader, 0, sizeof(BroadcastReader));
	reader->ring = ring;
	reader->area = log->area;
	reader->last = InvalidDsaPointer;
}

static void
check_message(BroadcastReader *reader, uint64 version, const char *expected, Size expected_length)
{
	const char *data;
	Size		length;

	CHECK(broadcast_read(reader, version, &data, &length));
	CHECK_EQUAL(length, expected_length);
	CHECK(memcmp(data, expected, length) == 0);
}

static void
check_end(BroadcastReader *reader, uint64 version)
{
	const char *data;
	Size		length;

	CHECK(!broadcast_read(reader, version, &data, &length));
}

/* A reader gets the messages of a version that it is told of, and no others. */
static void
versions(void)
{
	BroadcastLog log;
	BroadcastReader reader;

	begin(&log, &reader);
	check_end(&reader, 0);
	CHECK_EQUAL(broadcast_append(&log, "one", 3), 1);
	check_end(&reader, 0);
	CHECK_EQUAL(broadcast_append(&log, "two", 3), 2);
	CHECK_EQUAL(broadcast_append(&log, "", 0), 3);
	CHECK_EQUAL(broadcast_append(&log, "four", 4), 4);
	CHECK_EQUAL(log.bytes, 10);

	check_message(&reader, 1, "one", 3);
	check_end(&reader, 1);
	check_end(&reader, 0);
	check_message(&reader, 3, "two", 3);
	check_message(&reader, 3, "", 0);
	check_end(&reader, 3);
	CHECK_EQUAL(broadcast_append(&log, "five", 4), 5);
	check_message(&reader, 5, "four", 4);
	check_message(&reader, 5, "five", 4);
	check_end(&reader, 5);
	CHECK_EQUAL(reader.version, 5);
	broadcast_detach(log.area);
}

/* Messages may be of any size, and the log grows as needed. */
static void
many_messages(void)
{
	BroadcastLog log;
	BroadcastReader reader;
	int			lengths[2000];
	char	   *data = palloc(100000);

	for (int i = 0; i < 100000; i++)
		data[i] = (char) (i * 7);
	begin(&log, &reader);
	for (int i = 0; i < lengthof(lengths); i++)
	{
		lengths[i] = unit_random(i % 100 == 0 ? 100000 : 300);
		data[0] = (char) i;
		CHECK_EQUAL(broadcast_append(&log, data, lengths[i]), i + 1);
	}
	for (int i = 0; i < lengthof(lengths); i++)
	{
		data[0] = (char) i;
		check_message(&reader, i + 1, data, lengths[i]);
		check_end(&reader, i + 1);
	}
	broadcast_detach(log.area);
}

static const UnitTest tests[] = {
	{"versions", versions},
	{"many_messages", many_messages},
	{NULL, NULL}
};

const Unit	broadcast_unit = {"broadcast", tests};
