/*
 * spool.c
 *	  The file that keeps a streamed transaction until it ends.
 *
 * A spool is a temporary file in the leader's FileSet.  The leader removes it when the
 * transaction has ended, or when the leader itself ends; after a crash, the server
 * removes it when it starts.
 *
 * The server closes files of a FileSet at the end of a local transaction, with a warning.
 * The leader opens the file for each block that arrives.  It may run a short local
 * transaction of its own within a block, too; therefore this module closes the file
 * before that ends, and opens it again when there is more to write.  A reader keeps the
 * file open for one local transaction.
 *
 * Readers need no lock.  The leader only appends, and announces only complete records;
 * bytes that have been announced never change.
 */
#include "postgres.h"

#include "access/xact.h"
#include "ring/spool.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/wait_event.h"

/*
 * Size of the leader's buffer, and of a reader's unless a record is longer.  Large enough
 * to make the price of a system call small compared with that of the changes.
 */
#define BUFFER_SIZE (256 * 1024)

/*
 * Owns the leader's open file, which stays open between local transactions, too.  Made
 * once in a process, like the buffer, and used for one file at a time.
 */
static ResourceOwner file_owner = NULL;
static File open_file = 0;		/* zero: none, or closed by the end of a local
								 * transaction */

/* Closes the writer's file, if it is open. */
void
spool_close(void)
{
	ResourceOwner old = CurrentResourceOwner;

	if (open_file <= 0)
		return;
	CurrentResourceOwner = file_owner;
	FileClose(open_file);
	CurrentResourceOwner = old;
	open_file = 0;
}

static void
transaction_event(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
		spool_close();
}

static void
file_name(char *name, uint32 number)
{
	snprintf(name, MAXPGPATH, "weft-stream-%u", number);
}

/* Prepares for writing behind "written" bytes of a file. */
static void
begin_writing(SpoolWriter *writer, FileSet *files, uint32 number, uint64 written)
{
	static char *buffer = NULL;

	if (file_owner == NULL)
	{
		file_owner = ResourceOwnerCreate(NULL, "weft streams");
		RegisterXactCallback(transaction_event, NULL);
	}
	if (buffer == NULL)
		buffer = MemoryContextAlloc(TopMemoryContext, BUFFER_SIZE);
	writer->files = files;
	writer->number = number;
	writer->buffer = buffer;
	writer->used = 0;
	writer->written = written;
}

/* Opens the file for writing, and creates it if "create". */
static void
open_for_writing(const SpoolWriter *writer, bool create)
{
	char		name[MAXPGPATH];
	ResourceOwner old = CurrentResourceOwner;

	file_name(name, writer->number);
	CurrentResourceOwner = file_owner;
	open_file = create ? FileSetCreate(writer->files, name) :
		FileSetOpen(writer->files, name, O_RDWR);
	CurrentResourceOwner = old;
	if (open_file <= 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open temporary file \"%s\": %m", name)));
}

/* Creates an empty file and opens it for writing.  One file is open at a time. */
void
spool_create(SpoolWriter *writer, FileSet *files, uint32 number)
{
	begin_writing(writer, files, number, 0);
	open_for_writing(writer, true);
}

/* Opens a file in order to append to its first "written" bytes. */
void
spool_open(SpoolWriter *writer, FileSet *files, uint32 number, uint64 written)
{
	begin_writing(writer, files, number, written);
	open_for_writing(writer, false);
}

static void
write_out(SpoolWriter *writer, const char *data, int length)
{
	int			done = 0;

	if (open_file <= 0)
		open_for_writing(writer, false);
	while (done < length)
	{
		int			bytes = FileWrite(open_file, data + done, length - done,
									  writer->written + done, WAIT_EVENT_BUFFILE_WRITE);

		if (bytes <= 0)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not write to temporary file \"%s\": %m",
							FilePathName(open_file)),
					 errdetail("The file keeps the changes of a streamed transaction until it ends.")));
		done += bytes;
	}
	writer->written += length;
}

/* Writes the buffer to the file; afterwards the caller may announce "written". */
void
spool_flush(SpoolWriter *writer)
{
	int			used = writer->used;

	writer->used = 0;
	if (used > 0)
		write_out(writer, writer->buffer, used);
}

/* Returns the position of the next record. */
uint64
spool_position(const SpoolWriter *writer)
{
	return writer->written + writer->used;
}

static void
put(SpoolWriter *writer, const void *data, int length)
{
	if (length > BUFFER_SIZE - writer->used)
		spool_flush(writer);
	if (length > BUFFER_SIZE)
		write_out(writer, data, length);
	else if (length > 0)
	{
		memcpy(writer->buffer + writer->used, data, length);
		writer->used += length;
	}
}

/* Appends a record.  Its payload is given in two pieces. */
void
spool_append(SpoolWriter *writer, SpoolRecordKind kind, TransactionId xid,
			 const char *start, int start_length, const char *rest, int rest_length)
{
	SpoolRecord record = {start_length + rest_length, kind, xid};

	/* The file must end with a complete record whenever it is read. */
	if (sizeof(record) + record.length > BUFFER_SIZE - writer->used)
		spool_flush(writer);
	put(writer, &record, sizeof(record));
	put(writer, start, start_length);
	put(writer, rest, rest_length);
	if (sizeof(record) + record.length > BUFFER_SIZE)
		spool_flush(writer);
}

/*
 * Appends the void ranges, which are not a record, behind the last record.  Flushes the
 * buffer.
 */
void
spool_append_ranges(SpoolWriter *writer, const SpoolRange *ranges, int count)
{
	for (int i = 0; i < count; i++)
		put(writer, &ranges[i], sizeof(SpoolRange));
	spool_flush(writer);
}

/* Removes a file.  A process that has it open can still read it to its end. */
void
spool_delete(FileSet *files, uint32 number)
{
	char		name[MAXPGPATH];

	file_name(name, number);
	FileSetDelete(files, name, false);
}

/* Opens a file for reading; it stays open until the local transaction ends. */
void
spool_read_open(SpoolReader *reader, FileSet *files, uint32 number)
{
	char		name[MAXPGPATH];
	ResourceOwner old = CurrentResourceOwner;

	file_name(name, number);
	CurrentResourceOwner = TopTransactionResourceOwner;
	reader->file = FileSetOpen(files, name, O_RDONLY);
	CurrentResourceOwner = old;
	if (reader->file <= 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open temporary file \"%s\": %m", name)));
	reader->position = 0;
	reader->size = BUFFER_SIZE;
	reader->buffer = MemoryContextAlloc(TopTransactionContext, reader->size);
	reader->buffer_start = 0;
	reader->filled = 0;
}

/*
 * Makes sure that the buffer holds "length" bytes of the file from "position" on, and
 * returns where they are.  Up to "limit", the file may be read.
 */
static char *
need(SpoolReader *reader, uint64 position, int length, uint64 limit)
{
	int			offset;

	if (position < reader->buffer_start || position > reader->buffer_start + reader->filled)
	{
		reader->buffer_start = position;
		reader->filled = 0;
	}
	offset = position - reader->buffer_start;
	if (length <= reader->filled - offset)
		return reader->buffer + offset;

	/* Moves the rest to the front; the buffer grows for a long record only. */
	memmove(reader->buffer, reader->buffer + offset, reader->filled - offset);
	reader->buffer_start += offset;
	reader->filled -= offset;
	if (length > reader->size || (reader->size > BUFFER_SIZE && length <= BUFFER_SIZE &&
								  reader->filled <= BUFFER_SIZE))
	{
		reader->size = Max(length, BUFFER_SIZE);
		reader->buffer = repalloc_huge(reader->buffer, reader->size);
	}
	while (reader->filled < length)
	{
		uint64		start = reader->buffer_start + reader->filled;
		int			bytes = FileRead(reader->file, reader->buffer + reader->filled,
									 Min(reader->size - reader->filled, limit - start),
									 start, WAIT_EVENT_BUFFILE_READ);

		if (bytes <= 0)
			ereport(ERROR,
					(errcode_for_file_access(),
					 bytes < 0 ?
					 errmsg("could not read from temporary file \"%s\": %m",
							FilePathName(reader->file)) :
					 errmsg("could not read from temporary file \"%s\": it is too short",
							FilePathName(reader->file))));
		reader->filled += bytes;
	}
	return reader->buffer;
}

/*
 * Reads the next record.  Returns false if there is none before the limit.  The payload
 * stays in place until the next call; the caller may overwrite it.
 */
bool
spool_read(SpoolReader *reader, uint64 limit, SpoolRecord *record, char **payload)
{
	if (reader->position >= limit)
		return false;
	memcpy(record, need(reader, reader->position, sizeof(SpoolRecord), limit),
		   sizeof(SpoolRecord));
	*payload = need(reader, reader->position + sizeof(SpoolRecord), record->length, limit);
	reader->position += sizeof(SpoolRecord) + record->length;
	return true;
}

/*
 * Reads the void ranges behind the last record.  The result lives as long as the local
 * transaction.
 */
SpoolRange *
spool_read_ranges(SpoolReader *reader, uint64 position, int count)
{
	Size		length = mul_size(count, sizeof(SpoolRange));
	SpoolRange *ranges = MemoryContextAllocHuge(TopTransactionContext, Max(length, 1));

	for (int i = 0; i < count; i++)
		memcpy(&ranges[i],
			   need(reader, position + i * sizeof(SpoolRange), sizeof(SpoolRange),
					position + length),
			   sizeof(SpoolRange));
	return ranges;
}

void
spool_read_close(SpoolReader *reader)
{
	ResourceOwner old = CurrentResourceOwner;

	CurrentResourceOwner = TopTransactionResourceOwner;
	FileClose(reader->file);
	CurrentResourceOwner = old;
	pfree(reader->buffer);
}
