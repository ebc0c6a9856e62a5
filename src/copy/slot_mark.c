/*
 * slot_mark.c
 *	  Marks for slots on the publisher that may be left behind by weft.resync_table().
 *
 * F is the function, K the slot that it creates for a table, L the leader of the subscription.
 *
 * F creates K before its transaction commits.  If that is rolled back after F has returned, if
 * the server crashes, or if F is interrupted while it waits for the publisher's answer, then K stays
 * there for a table that is READY.  It could also be the slot of a clone of this server
 * (slots.c).  Therefore F writes a mark, a small file, and flushes it before it creates K.  The next
 * L, which F's locks keep from starting before F's transaction ends, finds the mark (slots.c):
 *	 - The table is READY: the request was not stored.  L drops K and removes the mark.  If there
 *	   is no K, then the publisher may be about to create it, and L looks again, until the mark
 *	   is old.
 *	 - Otherwise K is needed, and the mark is not.
 * F drops such a slot, too, before it creates K again.
 *
 * A mark is valid only in the timeline in which it was written: a promoted clone that was
 * copied together with its marks must not drop slots of the original.
 */
#include "postgres.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "access/xlog.h"
#include "copy/slot_mark.h"
#include "storage/fd.h"

#define DIRECTORY "pg_logical"
#define NAME "weft_resync_%u_%u"	/* the OIDs of subscription and table */

/* For how long the publisher may take to create a slot, in seconds. */
#define RECENT 60

static const char *
file_name(Oid subid, Oid relid)
{
	return psprintf(DIRECTORY "/" NAME, subid, relid);
}

/* Marks a slot that is about to be created; the mark is on disk. */
void
slot_mark_write(Oid subid, Oid relid)
{
	const char *name = file_name(subid, relid);
	char	   *contents = psprintf("%u\n", GetWALInsertionTimeLine());
	ssize_t		length = strlen(contents);
	int			fd = OpenTransientFile(name, O_WRONLY | O_CREAT | O_TRUNC | PG_BINARY);

	if (fd < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create file \"%s\": %m", name)));
	errno = 0;
	if (write(fd, contents, length) != length || pg_fsync(fd) != 0 || CloseTransientFile(fd) != 0)
	{
		if (errno == 0)
			errno = ENOSPC;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", name)));
	}
	fsync_fname(DIRECTORY, true);
}

/* Is there a mark of this server's timeline? */
bool
slot_mark_found(Oid subid, Oid relid)
{
	FILE	   *file = AllocateFile(file_name(subid, relid), PG_BINARY_R);
	TimeLineID	timeline = 0;
	bool		found;

	if (file == NULL)
		return false;
	found = fscanf(file, "%u", &timeline) == 1 && timeline == GetWALInsertionTimeLine();
	FreeFile(file);
	return found;
}

/* May the publisher be about to create the slot of a mark that is there? */
bool
slot_mark_recent(Oid subid, Oid relid)
{
	struct stat status;

	return slot_mark_found(subid, relid) && stat(file_name(subid, relid), &status) == 0 &&
		time(NULL) - status.st_mtime < RECENT;
}

/* The OIDs of the tables of a subscription for which there are marks, valid or not. */
List *
slot_mark_tables(Oid subid)
{
	List	   *result = NIL;
	DIR		   *directory = AllocateDir(DIRECTORY);
	struct dirent *entry;

	while ((entry = ReadDir(directory, DIRECTORY)) != NULL)
	{
		Oid			found_subid;
		Oid			relid;

		if (sscanf(entry->d_name, NAME, &found_subid, &relid) == 2 && found_subid == subid)
			result = lappend_oid(result, relid);
	}
	FreeDir(directory);
	return result;
}

/* If the mark survives a crash, the next leader removes it. */
void
slot_mark_remove(Oid subid, Oid relid)
{
	(void) unlink(file_name(subid, relid));
}
