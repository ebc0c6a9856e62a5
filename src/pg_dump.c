/*
 * pg_dump.c
 *	  Running this server's pg_dump.
 *
 * What others must not see, and what must not meet a shell, goes to it in files
 * that only the server's user can read.  They are where the server removes what a
 * crash has left.
 */
#include "postgres.h"

#include "common/file_utils.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "pg_dump.h"
#include "storage/fd.h"

#define DIRECTORY "base/" PG_TEMP_FILES_DIR

/* Returns the program that belongs to this server. */
char *
pg_dump_path(void)
{
	char		directory[MAXPGPATH];

	strlcpy(directory, my_exec_path, MAXPGPATH);
	get_parent_directory(directory);
	return psprintf("%s/pg_dump", directory);
}

/* Returns the name of a file of this process. */
char *
pg_dump_file_name(const char *what)
{
	return psprintf("%s/%s_weft.%d.%s", DIRECTORY, PG_TEMP_FILE_PREFIX, MyProcPid, what);
}

/* Creates such a file; the caller removes it. */
void
pg_dump_write_file(const char *name, const char *contents)
{
	size_t		length = strlen(contents);
	int			fd;

	if (MakePGDirectory(DIRECTORY) < 0 && errno != EEXIST)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create directory \"%s\": %m", DIRECTORY)));
	fd = OpenTransientFilePerm(name, O_WRONLY | O_CREAT | O_EXCL | PG_BINARY, 0600);
	if (fd < 0 || write(fd, contents, length) != (ssize_t) length ||
		CloseTransientFile(fd) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", name)));
}

static char *
read_all(FILE *file)
{
	StringInfoData contents;
	char		buffer[8192];
	size_t		length;

	initStringInfo(&contents);
	while ((length = fread(buffer, 1, sizeof(buffer), file)) > 0)
	{
		CHECK_FOR_INTERRUPTS();
		appendBinaryStringInfo(&contents, buffer, length);
	}
	return contents.data;
}

char *
pg_dump_read_file(const char *name)
{
	FILE	   *file = AllocateFile(name, PG_BINARY_R);
	char	   *contents;

	if (file == NULL)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", name)));
	contents = read_all(file);
	FreeFile(file);
	return contents;
}

/* Replaces psql's own commands, which newer versions write, by blanks. */
static void
blank_psql_commands(char *script)
{
	for (char *line = script; line; line = strchr(line, '\n'))
	{
		if (*line == '\n')
			line++;
		if (strncmp(line, "\\restrict ", 10) == 0 || strncmp(line, "\\unrestrict ", 12) == 0)
			memset(line, ' ', strcspn(line, "\n"));
	}
}

/*
 * Runs a command line; returns the script that it writes, and in *status how it has
 * ended: 0, or what wait() says.
 */
char *
pg_dump_run(const char *command, int *status)
{
	FILE	   *pipe = OpenPipeStream(command, PG_BINARY_R);
	char	   *script;

	if (pipe == NULL)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not run pg_dump: %m")));
	script = read_all(pipe);
	*status = ClosePipeStream(pipe);
	blank_psql_commands(script);
	return script;
}
