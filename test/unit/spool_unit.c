/*
 * spool_unit.c
 *	  Unit tests of ring/spool.c.
 */
#include "postgres.h"

#include "ring/spool.h"
#include "unit.h"

/* Of the writer's buffer and the reader's; see spool.c. */
#define BUFFER_SIZE (256 * 1024)
#define HEADER ((int) sizeof(SpoolRecord))

static FileSet files;

static void
begin(SpoolWriter *writer)
{
	FileSetInit(&files);
	memset(writer, 0, sizeof(SpoolWriter));
	spool_create(writer, &files, 1);
}

/* Which record it is tells what is in it. */
static char *
payload_for(int number, int length)
{
	char	   *payload = palloc(Max(length, 1));

	for (int i = 0; i < length; i++)
		payload[i] = (char) (number * 37 + i / 7);
	return payload;
}

/* Appends record "number", in two pieces. */
static void
append(SpoolWriter *writer, int number, int length)
{
	char	   *payload = payload_for(number, length);
	int			start = length == 0 ? 0 : unit_random(length + 1);
	uint64		position = spool_position(writer);

	spool_append(writer, number % 4, number + 1, payload, start, payload + start, length - start);
	CHECK_EQUAL(spool_position(writer), position + HEADER + length);
	pfree(payload);
}

/* Reads record "number", which must be there. */
static void
check_record(SpoolReader *reader, uint64 limit, int number, int length)
{
	SpoolRecord record;
	char	   *payload;
	char	   *expected = payload_for(number, length);

	CHECK(spool_read(reader, limit, &record, &payload));
	CHECK_EQUAL(record.length, length);
	CHECK_EQUAL(record.kind, number % 4);
	CHECK_EQUAL(record.xid, number + 1);
	CHECK(memcmp(payload, expected, length) == 0);
	pfree(expected);

	/* The reader may overwrite it. */
	memset(payload, 0xEE, length);
}

static void
check_end(SpoolReader *reader, uint64 limit)
{
	SpoolRecord record;
	char	   *payload;

	CHECK(!spool_read(reader, limit, &record, &payload));
}

static void
records(void)
{
	SpoolWriter writer;
	SpoolReader reader;

	begin(&writer);
	CHECK_EQUAL(spool_position(&writer), 0);
	append(&writer, 0, 10);
	append(&writer, 1, 0);
	append(&writer, 2, 1);
	CHECK_EQUAL(writer.written, 0);

	/* What is not flushed is not in the file. */
	spool_read_open(&reader, &files, 1);
	check_end(&reader, writer.written);
	spool_flush(&writer);
	CHECK_EQUAL(writer.written, 3 * HEADER + 11);
	check_record(&reader, writer.written, 0, 10);
	check_record(&reader, writer.written, 1, 0);
	check_record(&reader, writer.written, 2, 1);
	check_end(&reader, writer.written);

	/* The reader follows. */
	append(&writer, 3, 5);
	spool_flush(&writer);
	check_record(&reader, writer.written, 3, 5);
	check_end(&reader, writer.written);
	spool_flush(&writer);
	CHECK_EQUAL(writer.written, 4 * HEADER + 16);
	spool_read_close(&reader);
	spool_close();
}

/* The leader opens the file anew for each block. */
static void
reopened(void)
{
	SpoolWriter writer;
	SpoolReader reader;
	uint64		written;

	begin(&writer);
	append(&writer, 0, 100);
	spool_flush(&writer);
	spool_close();
	written = writer.written;
	for (int i = 1; i < 20; i++)
	{
		spool_open(&writer, &files, 1, written);
		CHECK_EQUAL(spool_position(&writer), written);
		append(&writer, i, 100);
		spool_flush(&writer);
		spool_close();
		written = writer.written;
	}
	spool_read_open(&reader, &files, 1);
	for (int i = 0; i < 20; i++)
		check_record(&reader, written, i, 100);
	check_end(&reader, written);
	spool_read_close(&reader);
}

/* Lengths around that of the buffers; what is in the file is complete records. */
static void
buffer_boundaries(void)
{
	static const int lengths[] = {BUFFER_SIZE - 2 * HEADER, 0, 0, 1,
		BUFFER_SIZE - HEADER, 5, BUFFER_SIZE - HEADER - 1, 0, BUFFER_SIZE - HEADER + 1, 3,
		BUFFER_SIZE, BUFFER_SIZE + 1, 3 * BUFFER_SIZE, BUFFER_SIZE / 2, BUFFER_SIZE / 2,
	BUFFER_SIZE / 2 - HEADER, BUFFER_SIZE / 2 - HEADER, 7, 2 * BUFFER_SIZE - HEADER, 1};
	SpoolWriter writer;
	SpoolReader reader;
	SpoolReader follower;
	int			followed = 0;
	uint64		end = 0;

	begin(&writer);
	spool_read_open(&follower, &files, 1);
	for (int i = 0; i < lengthof(lengths); i++)
	{
		append(&writer, i, lengths[i]);
		end += HEADER + lengths[i];
		while (follower.position < writer.written)
		{
			check_record(&follower, writer.written, followed, lengths[followed]);
			followed++;
		}
		CHECK_EQUAL(follower.position, writer.written);
	}
	spool_flush(&writer);
	CHECK_EQUAL(writer.written, end);

	spool_read_open(&reader, &files, 1);
	for (int i = 0; i < lengthof(lengths); i++)
		check_record(&reader, end, i, lengths[i]);
	check_end(&reader, end);

	/* The buffer of a long record is given back. */
	CHECK_EQUAL(reader.size, BUFFER_SIZE);
	spool_read_close(&reader);
	spool_read_close(&follower);
	spool_close();
}

/* Records of any length, flushed and read at any time. */
static void
random_records(void)
{
	SpoolWriter writer;
	SpoolReader reader;
	int			lengths[3000];
	int			followed = 0;

	begin(&writer);
	spool_read_open(&reader, &files, 1);
	for (int i = 0; i < lengthof(lengths); i++)
	{
		lengths[i] = unit_random(unit_random(50) == 0 ? 600000 : 3000);
		append(&writer, i, lengths[i]);
		if (unit_random(10) == 0)
			spool_flush(&writer);
		if (unit_random(10) != 0)
			continue;
		while (reader.position < writer.written)
		{
			check_record(&reader, writer.written, followed, lengths[followed]);
			followed++;
		}
	}
	spool_flush(&writer);
	while (followed < lengthof(lengths))
	{
		check_record(&reader, writer.written, followed, lengths[followed]);
		followed++;
	}
	check_end(&reader, writer.written);
	spool_read_close(&reader);
	spool_close();
}

/* Ranges stand behind the last record; the reader may go back to the records. */
static void
void_ranges(void)
{
	SpoolWriter writer;
	SpoolReader reader;
	int			count = 3 * BUFFER_SIZE / sizeof(SpoolRange);
	SpoolRange *ranges = palloc(sizeof(SpoolRange) * count);
	SpoolRange *found;
	uint64		end;

	for (int i = 0; i < count; i++)
	{
		ranges[i].start = i * 1000;
		ranges[i].end = i * 1000 + 500;
	}
	begin(&writer);
	for (int i = 0; i < 10; i++)
		append(&writer, i, 1000);
	end = spool_position(&writer);
	spool_append_ranges(&writer, ranges, count);
	CHECK_EQUAL(writer.written, end + count * sizeof(SpoolRange));

	spool_read_open(&reader, &files, 1);
	found = spool_read_ranges(&reader, end, count);
	CHECK(memcmp(found, ranges, count * sizeof(SpoolRange)) == 0);
	for (int i = 0; i < 10; i++)
		check_record(&reader, end, i, 1000);
	check_end(&reader, end);
	(void) spool_read_ranges(&reader, end, 0);
	spool_read_close(&reader);
	spool_close();
}

/* What is behind the limit may change, as when a leader has failed to write there. */
static void
limit(void)
{
	SpoolWriter writer;
	SpoolReader reader;
	uint64		written;

	begin(&writer);
	append(&writer, 0, 100);
	spool_flush(&writer);
	written = writer.written;
	append(&writer, 7, 5000);
	spool_flush(&writer);
	spool_close();
	spool_read_open(&reader, &files, 1);
	check_record(&reader, written, 0, 100);
	check_end(&reader, written);

	spool_open(&writer, &files, 1, written);
	append(&writer, 1, 3000);
	spool_flush(&writer);
	check_record(&reader, writer.written, 1, 3000);
	check_end(&reader, writer.written);
	spool_read_close(&reader);
	spool_close();
}

/* A reader skips what is void, within what it has read already, and far behind that. */
static void
skipping(void)
{
	static const int skipped[] = {3, 40, 3000, 2, 1};
	SpoolWriter writer;
	SpoolReader reader;
	uint64		positions[4000];
	int			next = 0;

	begin(&writer);
	for (int i = 0; i < lengthof(positions); i++)
	{
		positions[i] = spool_position(&writer);
		append(&writer, i, i % 1000);
	}
	spool_flush(&writer);
	spool_read_open(&reader, &files, 1);
	for (int i = 0; i < lengthof(skipped); i++)
	{
		check_record(&reader, writer.written, next, next % 1000);
		next += skipped[i];
		reader.position = positions[next];
	}
	check_record(&reader, writer.written, next, next % 1000);

	/* And back to the beginning. */
	reader.position = 0;
	check_record(&reader, writer.written, 0, 0);
	check_record(&reader, writer.written, 1, 1);
	spool_read_close(&reader);
	spool_close();
}

/* A reader goes on with a file that is deleted; a new file has nothing of an old one. */
static void
deleted(void)
{
	SpoolWriter writer;
	SpoolReader reader;
	volatile bool failed = false;

	begin(&writer);
	append(&writer, 0, 1000);
	spool_flush(&writer);
	spool_read_open(&reader, &files, 1);
	spool_close();
	spool_delete(&files, 1);
	check_record(&reader, writer.written, 0, 1000);
	spool_read_close(&reader);

	PG_TRY();
	{
		spool_read_open(&reader, &files, 1);
	}
	PG_CATCH();
	{
		failed = true;
		FlushErrorState();
	}
	PG_END_TRY();
	CHECK(failed);
}

/* A limit behind the end of the file is an error, not an endless loop. */
static void
too_short(void)
{
	SpoolWriter writer;
	SpoolReader reader;
	SpoolRecord record;
	char	   *payload;
	MemoryContext context = CurrentMemoryContext;
	char	   *volatile message = NULL;

	begin(&writer);
	append(&writer, 0, 1000);
	spool_flush(&writer);
	spool_read_open(&reader, &files, 1);
	check_record(&reader, writer.written, 0, 1000);
	PG_TRY();
	{
		(void) spool_read(&reader, writer.written + 100, &record, &payload);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		message = error->message;
		FlushErrorState();
	}
	PG_END_TRY();
	CHECK(message != NULL && strstr(message, "could not read from temporary file") != NULL);
	spool_read_close(&reader);
	spool_close();
}

/*
 * The leader runs a local transaction of its own within a block.  The first call leaves the file open, and the next one,
 * in another transaction, goes on.
 */
static void
block_goes_on(void)
{
	static SpoolWriter writer;
	static bool begun = false;
	SpoolReader reader;

	if (!begun)
	{
		begin(&writer);
		append(&writer, 0, 100);
		spool_flush(&writer);
		append(&writer, 1, 200);
		begun = true;
		return;
	}
	begun = false;
	append(&writer, 2, 300);
	spool_flush(&writer);
	spool_read_open(&reader, &files, 1);
	for (int i = 0; i < 3; i++)
		check_record(&reader, writer.written, i, 100 * (i + 1));
	check_end(&reader, writer.written);
	spool_read_close(&reader);
	spool_close();
}

static const UnitTest tests[] = {
	{"records", records},
	{"reopened", reopened},
	{"limit", limit},
	{"buffer_boundaries", buffer_boundaries},
	{"random_records", random_records},
	{"void_ranges", void_ranges},
	{"skipping", skipping},
	{"deleted", deleted},
	{"too_short", too_short},
	{NULL, NULL}
};

const Unit	spool_unit = {"spool", tests};

static const UnitTest transaction_tests[] = {
	{"block_goes_on", block_goes_on},
	{NULL, NULL}
};

const Unit	spool_transactions_unit = {"spool_transactions", transaction_tests};
