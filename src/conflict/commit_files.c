/*
 * commit_files.c
 *	  Restores commit timestamps from the files of the server that this one was made of with pg_upgrade.
 *
 * pg_upgrade keeps transaction IDs.  It sets the oldest transaction whose commit timestamp is known, L, to the
 * first one of the new server.  The old server's timestamps are in files of its directory pg_commit_ts, in
 * segments; both majors have the same format: for each transaction ID its time, and its
 * replication origin.  Here, the segments of the new server are made like them:
 *	 - of segments before that of L, the whole file is copied.  The server does not read those pages, nor has it any in
 *	   its buffers, because it knows of no time before L.  Files that a new server's very first transactions
 *	   have left there are replaced.  Segments that the old server had not begun, because L is of a later
 *	   start of the new one, are made without times;
 *	 - in the segment of L, the times before L are set one by one, in the server's buffers.  If L is its first
 *	   transaction, there may be none.
 * Then L is set to the oldest transaction ID of what was copied.  The caller makes a checkpoint, which writes L and
 * the buffers.  After a crash before that, L is what it was, and all is done once more.
 *
 * VACUUM removes segments that no row needs, and then sets L.  It may not do so meanwhile: WrapLimitsVacuumLock
 * is held.  Nothing is copied that VACUUM would remove.
 *
 * Nothing of this is written to the WAL.  A standby of the new server that exists already does not get it.
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "access/commit_ts.h"
#include "access/slru.h"
#include "access/transam.h"
#include "compat.h"
#include "conflict/commit_files.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "storage/fd.h"
#include "storage/lwlock.h"

#define COMMIT_DIRECTORY "pg_commit_ts"
#define TEMPORARY_FILE COMMIT_DIRECTORY "/weft.tmp"

/* The format of the files: entries do not cross pages. */
#define ENTRY_SIZE (sizeof(TimestampTz) + sizeof(RepOriginId))
#define ENTRIES_PER_PAGE ((uint32) (BLCKSZ / ENTRY_SIZE))
#define ENTRIES_PER_SEGMENT (ENTRIES_PER_PAGE * SLRU_PAGES_PER_SEGMENT)
#define SEGMENT_SIZE (BLCKSZ * SLRU_PAGES_PER_SEGMENT)
#define LAST_SEGMENT (PG_UINT32_MAX / ENTRIES_PER_SEGMENT)

/* The beginning of pg_control, which all versions have in common. */
typedef struct ControlHead
{
	uint64		system_identifier;
	uint32		version;
	uint32		catalog_version;
	uint32		state;
} ControlHead;

#define STATE_SHUT_DOWN 1

StaticAssertDecl(ENTRY_SIZE == 10, "the format of the server's files");

/* Reads up to "size" bytes of a file; returns how many, or -1 if there is no such file. */
static ssize_t
read_file(const char *path, void *buffer, size_t size)
{
	int			fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	ssize_t		total = 0;
	ssize_t		count;

	if (fd < 0)
	{
		if (errno == ENOENT)
			return -1;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	}
	while (total < size && (count = read(fd, (char *) buffer + total, size - total)) != 0)
	{
		if (count < 0)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read file \"%s\": %m", path)));
		total += count;
	}
	CloseTransientFile(fd);
	return total;
}

/* Fails unless a directory is that of a server that was shut down and had this system identifier. */
static void
check_directory(const char *directory, uint64 server)
{
	ControlHead head;
	ssize_t		size = read_file(psprintf("%s/global/pg_control", directory), &head, sizeof(head));

	/* With links, pg_upgrade renames it. */
	if (size < 0)
		size = read_file(psprintf("%s/global/pg_control.old", directory), &head, sizeof(head));
	if (size < (ssize_t) sizeof(head))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FILE),
				 errmsg("directory \"%s\" is not the data directory of a server", directory)));
	if (head.system_identifier != server)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("directory \"%s\" is not that of the server from which this one was upgraded", directory),
				 errdetail("Its system identifier is " UINT64_FORMAT ", not " UINT64_FORMAT ".",
						   head.system_identifier, server)));
	if (head.state != STATE_SHUT_DOWN)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the server of directory \"%s\" has not been shut down", directory)));
}

static uint32
segment_of(TransactionId xid)
{
	return xid / ENTRIES_PER_SEGMENT;
}

static uint32
segment_before(uint32 segment)
{
	return segment == 0 ? LAST_SEGMENT : segment - 1;
}

/* Returns the first transaction of a segment. */
static TransactionId
first_of(uint32 segment)
{
	return Max(segment * ENTRIES_PER_SEGMENT, FirstNormalTransactionId);
}

static char *
path_of(const char *directory, uint32 segment)
{
	return psprintf("%s/" COMMIT_DIRECTORY "/%04X", directory, segment);
}

/* Writes a segment as a file of this server. */
static void
write_segment(uint32 segment, const char *contents)
{
	int			fd = OpenTransientFile(TEMPORARY_FILE, O_CREAT | O_TRUNC | O_WRONLY | PG_BINARY);

	errno = 0;
	if (fd < 0 || write(fd, contents, SEGMENT_SIZE) != SEGMENT_SIZE)
	{
		if (errno == 0)
			errno = ENOSPC;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", TEMPORARY_FILE)));
	}
	if (pg_fsync(fd) != 0 || CloseTransientFile(fd) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not fsync file \"%s\": %m", TEMPORARY_FILE)));
	durable_rename(TEMPORARY_FILE, path_of(".", segment), ERROR);
}

/*
 * Transactions of segments between two of them have no times, but may be asked for.  This server has
 * the later one already.
 */
static void
write_empty(uint32 segment, uint32 later)
{
	char	   *contents = palloc0(SEGMENT_SIZE);

	if (segment != later)
		for (later = segment_before(later); later != segment; later = segment_before(later))
			write_segment(later, contents);
	pfree(contents);
}

/* Sets the times of those transactions of a segment that are before a limit. */
static void
set_times(uint32 segment, const char *contents, TransactionId limit)
{
	for (TransactionId xid = first_of(segment); xid < limit; xid++)
	{
		uint32		number = xid - segment * ENTRIES_PER_SEGMENT;
		const char *entry = contents + number / ENTRIES_PER_PAGE * BLCKSZ +
			number % ENTRIES_PER_PAGE * ENTRY_SIZE;
		TimestampTz time;
		RepOriginId origin;

		memcpy(&time, entry, sizeof(time));
		memcpy(&origin, entry + sizeof(time), sizeof(origin));
		TransactionTreeSetCommitTsData(xid, 0, NULL, time, origin);
	}
}

/* Returns L; fails if commit timestamps are not recorded. */
static TransactionId
oldest_known(void)
{
	TransactionId result;

	LWLockAcquire(CommitTsLock, LW_SHARED);
	result = TransamVariables->oldestCommitTsXid;
	LWLockRelease(CommitTsLock);
	if (!track_commit_timestamp || !TransactionIdIsNormal(result))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this server does not record commit times"),
				 errhint("Set \"track_commit_timestamp\" to \"on\", and restart the server.")));
	return result;
}

/* Returns the oldest transaction that a row may have. */
static TransactionId
oldest_needed(void)
{
	TransactionId result;

	LWLockAcquire(XidGenLock, LW_SHARED);
	result = TransamVariables->oldestXid;
	LWLockRelease(XidGenLock);
	return result;
}

static void
set_oldest_known(TransactionId xid)
{
	LWLockAcquire(CommitTsLock, LW_EXCLUSIVE);
	if (TransactionIdPrecedes(xid, TransamVariables->oldestCommitTsXid))
		TransamVariables->oldestCommitTsXid = xid;
	LWLockRelease(CommitTsLock);
}

/*
 * Restores what is needed of the commit timestamps of the server with this system identifier, whose data
 * directory is given; returns how many segments had any.  The caller makes a checkpoint.
 */
int
commit_files_restore(const char *directory, uint64 server)
{
	char	   *contents = palloc(SEGMENT_SIZE);
	TransactionId known;
	TransactionId needed;
	TransactionId oldest;
	uint32		segment;
	int			count = 0;

	check_directory(directory, server);
	LWLockAcquire(WrapLimitsVacuumLock, LW_EXCLUSIVE);
	known = oldest = oldest_known();
	needed = oldest_needed();
	for (segment = segment_of(known);; segment = segment_before(segment))
	{
		memset(contents, 0, SEGMENT_SIZE);
		if (read_file(path_of(directory, segment), contents, SEGMENT_SIZE) < 0)
		{
			/*
			 * The old server may not have begun those of this server's first
			 * transactions.
			 */
			if (count > 0 || TransactionIdPrecedesOrEquals(first_of(segment), needed))
				break;
			continue;
		}
		if (count == 0)
			write_empty(segment, segment_of(known));
		if (segment == segment_of(known))
			set_times(segment, contents, known);
		else
			write_segment(segment, contents);
		count++;
		oldest = first_of(segment);
		if (TransactionIdPrecedesOrEquals(oldest, needed))
		{
			oldest = needed;
			break;
		}
	}
	if (count > 0)
		set_oldest_known(oldest);
	LWLockRelease(WrapLimitsVacuumLock);
	pfree(contents);
	if (count == 0 && TransactionIdPrecedes(needed, known))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("directory \"%s\" has no commit times", directory),
				 errhint("If the old server has not recorded any, call weft.finish_upgrade(NULL).")));
	return count;
}
