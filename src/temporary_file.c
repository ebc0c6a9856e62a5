/*
 * temporary_file.c
 *	  Small files that only the server's user can read.
 *
 * They are in a directory that the server empties when it starts, in case it crashed.
 */
#include "postgres.h"

#include <unistd.h>

#include "common/file_utils.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "temporary_file.h"

#define DIRECTORY "base/" PG_TEMP_FILES_DIR

/*
 * Writes a file and returns its name, which has the purpose in it: this process has one
 * file for each purpose at a time.
 */
char *
temporary_file_write(const char *purpose, const char *contents)
{
	char	   *name = psprintf("%s/%s_weft.%d.%s", DIRECTORY, PG_TEMP_FILE_PREFIX,
								MyProcPid, purpose);
	size_t		length = strlen(contents);
	int			fd;

	if (MakePGDirectory(DIRECTORY) < 0 && errno != EEXIST)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create directory \"%s\": %m", DIRECTORY)));
	/* A process that had this one's number may have crashed. */
	(void) unlink(name);
	fd = OpenTransientFilePerm(name, O_WRONLY | O_CREAT | O_EXCL | PG_BINARY, 0600);
	if (fd < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create file \"%s\": %m", name)));
	if (write(fd, contents, length) != (ssize_t) length || CloseTransientFile(fd) != 0)
	{
		int			save_errno = errno;

		(void) unlink(name);
		errno = save_errno ? save_errno : ENOSPC;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", name)));
	}
	return name;
}

/* Returns the contents of such a file. */
char *
temporary_file_read(const char *name)
{
	FILE	   *file = AllocateFile(name, PG_BINARY_R);
	StringInfoData contents;
	char		buffer[8192];
	size_t		length;

	if (file == NULL)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", name)));
	initStringInfo(&contents);
	while ((length = fread(buffer, 1, sizeof(buffer), file)) > 0)
		appendBinaryStringInfo(&contents, buffer, length);
	FreeFile(file);
	return contents.data;
}

/* May be called with NULL. */
void
temporary_file_remove(const char *name)
{
	if (name != NULL)
		(void) unlink(name);
}
