/*
 * ranges.c
 *	  Copies ranges of rows from the publisher into the table.
 *
 * The server's COPY FROM stores the rows.  A process runs one COPY FROM for all the ranges
 * that it takes: COPY FROM asks for data, and gets the data of one COPY TO after another
 * as if it were a single one.  In text format, the data needs no change; in binary format,
 * each COPY TO has a header and an end mark of its own.  The publisher sends each row as
 * one message, the header in the message of the first row, and the end mark as a message
 * by itself.
 */
#include "postgres.h"

#include "access/table.h"
#include "commands/copy.h"
#include "compat.h"
#include "copy/copy_reader.h"
#include "copy/progress.h"
#include "copy/ranges.h"
#include "copy/source.h"
#include "nodes/makefuncs.h"
#include "nodes/value.h"
#include "parser/parse_node.h"
#include "parser/parse_relation.h"

/* A binary COPY begins with this, a word of flags, and more for the future. */
static const char signature[11] = "PGCOPY\n\377\r\n";

#define HEADER_LEN (sizeof(signature) + 2 * sizeof(uint32))

/* Progress is reported each time this many bytes were copied: rarely enough to cost nothing. */
#define PROGRESS_STEP (256 * 1024)

typedef struct RangeReader
{
	CopyReader	data;
	CopyTask   *task;
	const CopyCommand *command;
	CopyProgress *progress;
	bool		helper;			/* it is a helper's */

	bool		in_range;		/* a COPY TO is running */
	bool		at_header;		/* nothing has arrived from it yet */
	bool		any_header;		/* COPY FROM has received one */
	BlockNumber range_blocks;	/* for progress */

	/* Not reported yet. */
	uint64		bytes;
	uint64		rows;
} RangeReader;

/* Static because COPY FROM calls read_data() without an argument. */
static RangeReader reader;

static void
report_progress(void)
{
	pg_atomic_fetch_add_u64(&reader.progress->bytes, reader.bytes);
	pg_atomic_fetch_add_u64(&reader.progress->rows, reader.rows);
	reader.bytes = 0;
	reader.rows = 0;
}

/*
 * Takes the next range; returns false if none is left.  Ranges get smaller towards the
 * end, so that all processes finish at about the same time.
 */
static bool
take_range(BlockNumber *first, BlockNumber *end)
{
	CopyTask   *task = reader.task;
	bool		result;

	SpinLockAcquire(&task->mutex);
	result = !task->all_taken;
	if (result)
	{
		BlockNumber left = task->num_blocks - task->next_block;
		BlockNumber share = left / (2 * Max(task->num_helpers, 1));
		BlockNumber size = Max(Min(share, task->max_range), task->min_range);

		*first = task->next_block;
		if (size >= left)
		{
			reader.range_blocks = left;
			*end = InvalidBlockNumber;
			task->all_taken = true;
		}
		else
		{
			reader.range_blocks = size;
			*end = task->next_block += size;
		}
		task->ranges_taken++;
	}
	SpinLockRelease(&task->mutex);
	return result;
}

static bool
begin_range(void)
{
	CopyTarget	target = {
		.relid = reader.task->source_relid,
		.leaves = reader.task->texts + reader.task->leaves
	};
	BlockNumber first;
	BlockNumber end;
	char	   *query;

	if (!take_range(&first, &end))
		return false;
	query = copy_command_range(reader.command, &target, reader.task->binary, first, end);
	copy_source_range(reader.data.conn, reader.command, query, reader.helper);
	pfree(query);
	reader.in_range = true;
	reader.at_header = true;
	return true;
}

static void
end_range(void)
{
	CopyTask   *task = reader.task;

	if (reader.at_header && task->binary)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("initial contents of table %s end without a header",
						reader.command->relation)));
	reader.in_range = false;
	report_progress();
	pg_atomic_fetch_add_u64(&reader.progress->blocks_done, reader.range_blocks);
	compat_injection_point("weft-copy-range-done");
	SpinLockAcquire(&task->mutex);
	task->ranges_done++;
	SpinLockRelease(&task->mutex);
}

/*
 * Checks the header with which the first message of a range begins, and removes it unless
 * it is the first one for COPY FROM; returns the length of what remains of it.
 */
static int
take_header(void)
{
	if (reader.data.length < HEADER_LEN ||
		memcmp(reader.data.data, signature, sizeof(signature)) != 0 ||
		memcmp(reader.data.data + sizeof(signature), "\0\0\0\0\0\0\0\0", 2 * sizeof(uint32)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("initial contents of table %s begin with an unknown header",
						reader.command->relation)));
	if (!reader.any_header)
	{
		reader.any_header = true;
		return HEADER_LEN;
	}
	reader.data.data += HEADER_LEN;
	reader.data.length -= HEADER_LEN;
	return 0;
}

/* Removes the end mark, if that is what the message consists of. */
static bool
take_end_mark(int header)
{
	static const char mark[2] = {'\377', '\377'};

	if (reader.data.length != header + sizeof(mark) ||
		memcmp(reader.data.data + header, mark, sizeof(mark)) != 0)
		return false;
	reader.data.length -= sizeof(mark);
	return true;
}

/* A message has arrived. */
static void
take_message(void)
{
	reader.bytes += reader.data.length;
	if (reader.bytes > PROGRESS_STEP)
		report_progress();
	if (!reader.task->binary || !take_end_mark(reader.at_header ? take_header() : 0))
		reader.rows++;
	reader.at_header = false;
}

/*
 * Makes the next message the current one.  Returns false at the end of the last
 * range, and, unless it may wait, if nothing has arrived yet.
 */
static bool
next_message(bool may_wait)
{
	for (;;)
	{
		if (!reader.in_range && !begin_range())
			return false;
		switch (copy_reader_receive(&reader.data, may_wait))
		{
			case COPY_READ_MESSAGE:
				take_message();
				if (reader.data.length > 0)
					return true;
				break;
			case COPY_READ_NOTHING_YET:
				return false;
			case COPY_READ_END:
				end_range();
				break;
		}
	}
}

/* What COPY FROM calls for data. */
static int
read_data(void *buffer, int min_read, int max_read)
{
	return copy_reader_read(&reader.data, next_message, buffer, min_read, max_read);
}

/*
 * Copies ranges until none is left.  The table is locked, and the caller's transaction may
 * write.
 */
void
copy_ranges(CopyTask *task, const CopyCommand *command, WalReceiverConn *conn, bool helper)
{
	CopyProgress *progress = copy_progress_get(task->progress);
	Relation	rel = table_open(task->relid, RowExclusiveLock);
	ParseState *pstate = make_parsestate(NULL);
	List	   *options = NIL;
	CopyFromState state;

	memset(&reader, 0, sizeof(reader));
	reader.task = task;
	reader.command = command;
	reader.progress = progress;
	copy_reader_start(&reader.data, conn);
	reader.helper = helper;
	copy_source_begin_ranges(conn);
	if (!begin_range())
	{
		copy_source_end_ranges(conn);
		table_close(rel, NoLock);
		return;
	}

	pg_atomic_fetch_add_u32(&progress->helpers_used, 1);
	if (task->binary)
		options = list_make1(makeDefElem("format", (Node *) makeString("binary"), -1));
	(void) addRangeTableEntryForRelation(pstate, rel, RowExclusiveLock, NULL, false, false);
	state = BeginCopyFrom(pstate, rel, NULL, NULL, false, read_data, command->columns, options);
	(void) CopyFrom(state);
	EndCopyFrom(state);

	if (reader.in_range || !task->all_taken)
		elog(ERROR, "COPY of table %s ended too early", command->relation);
	copy_source_end_ranges(conn);
	copy_reader_end(&reader.data);
	free_parsestate(pstate);
	table_close(rel, NoLock);
}
