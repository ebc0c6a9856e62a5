/*
 * pg_dump.c
 *	  Runs this server's pg_dump.
 *
 * pg_dump may wait for a lock on the other server for a long time.  It is ended with the
 * call, so that a user can cancel it and the server can be shut down; its shell tells its
 * process ID first.
 */
#include "postgres.h"

#include <signal.h>
#include <unistd.h>

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pg_dump.h"
#include "pg_dump_script.h"
#include "program_secrets.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "temporary_file.h"
#include "wait_event.h"

/* What one call has to give back. */
typedef struct Call
{
	ProgramSecrets secrets;
	pid_t		pid;			/* of pg_dump, or 0 if it is not running */
	char	   *errors;			/* name of a file; NULL while there is none */
	char	   *filter;			/* the same */
} Call;

/* Ends pg_dump and removes the files; also called when this process ends. */
static void
clean_up(int code, Datum arg)
{
	Call	   *call = (Call *) DatumGetPointer(arg);

	/* It has not been waited for, so this is still its number. */
	if (call->pid > 0)
		(void) kill(call->pid, SIGTERM);
	temporary_file_remove(call->errors);
	temporary_file_remove(call->filter);
	program_secrets_remove(&call->secrets);
}

/* Appends a string in single quotes, for the shell. */
static void
append_shell_string(StringInfo command, const char *string)
{
	appendStringInfoString(command, " '");
	for (const char *p = string; *p; p++)
	{
		if (*p == '\'')
			appendStringInfoString(command, "'\\''");
		else
			appendStringInfoChar(command, *p);
	}
	appendStringInfoChar(command, '\'');
}

/* Returns the path of the pg_dump that belongs to this server. */
static char *
program(void)
{
	char		directory[MAXPGPATH];

	strlcpy(directory, my_exec_path, MAXPGPATH);
	get_parent_directory(directory);
	return psprintf("%s/pg_dump", directory);
}

static char *
command_line(const PgDump *dump, const char *conninfo, const Call *call)
{
	StringInfoData command;

	initStringInfo(&command);
	program_secrets_environment(&call->secrets, dump->must_use_password, &command);
	appendStringInfoString(&command, "echo $$; exec");
	append_shell_string(&command, program());
	appendStringInfo(&command, " --no-password --encoding=%s", GetDatabaseEncodingName());
	foreach_ptr(char, argument, dump->arguments)
		append_shell_string(&command, argument);
	if (call->filter)
		append_shell_string(&command, psprintf("--filter=%s", call->filter));
	append_shell_string(&command, psprintf("--dbname=%s", conninfo));
	append_shell_string(&command, "--");
	appendStringInfo(&command, " 2>%s </dev/null", call->errors);
	return command.data;
}

/* Waits until there is something to read. */
static void
wait_for_output(int fd, bool interruptible)
{
	int			events =
		WaitLatchOrSocket(MyLatch, WL_LATCH_SET | WL_SOCKET_READABLE | WL_EXIT_ON_PM_DEATH,
						  fd, -1L, wait_event_id(WEFT_WAIT_PG_DUMP));

	if (events & WL_LATCH_SET)
		ResetLatch(MyLatch);
	if (interruptible)
		CHECK_FOR_INTERRUPTS();
}

/* Reads the process ID, and then what pg_dump writes until it ends. */
static void
read_output(int fd, StringInfo script, Call *call)
{
	for (;;)
	{
		char		buffer[8192];
		ssize_t		length;
		char	   *end;

		wait_for_output(fd, call->pid > 0);
		length = read(fd, buffer, sizeof(buffer));
		if (length == 0)
			return;
		if (length < 0 && errno != EINTR)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read from pg_dump: %m")));
		if (length > 0)
			appendBinaryStringInfo(script, buffer, length);
		if (call->pid > 0 || (end = strchr(script->data, '\n')) == NULL)
			continue;

		call->pid = atoi(script->data);
		length = end + 1 - script->data;
		script->len -= length;
		memmove(script->data, script->data + length, script->len + 1);
	}
}

static char *
run(const PgDump *dump, Call *call)
{
	StringInfoData script;
	char	   *conninfo;
	FILE	   *pipe;
	int			status;
	char	   *errors;

	call->errors = temporary_file_write("errors", "");
	if (dump->filter)
		call->filter = temporary_file_write("filter", dump->filter);
	initStringInfo(&script);
	conninfo = program_secrets_write(&call->secrets, dump->must_use_password);
	pipe = OpenPipeStream(command_line(dump, conninfo, call), PG_BINARY_R);
	if (pipe == NULL)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not run pg_dump: %m")));
	read_output(fileno(pipe), &script, call);
	call->pid = 0;
	status = ClosePipeStream(pipe);
	if (status == 0)
		return pg_dump_script_check(&script);

	errors = temporary_file_read(call->errors);
	ereport(ERROR,
			(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
			 errmsg("could not read the schema of %s: pg_dump failed", dump->whose),
			 errdetail_internal("%s", errors[0] ? errors : wait_result_to_str(status)),
			 errhint("Install pg_dump in the directory of the server's programs.")));
}

/* Runs pg_dump and returns its script, in this database's encoding. */
char *
pg_dump_run(const PgDump *dump)
{
	Call	   *call = palloc0(sizeof(Call));
	char	   *script = NULL;

	program_secrets_parse(&call->secrets, "pg_dump", dump->conninfo, dump->whose);
	PG_ENSURE_ERROR_CLEANUP(clean_up, PointerGetDatum(call));
	{
		script = run(dump, call);
	}
	PG_END_ENSURE_ERROR_CLEANUP(clean_up, PointerGetDatum(call));
	clean_up(0, PointerGetDatum(call));
	return script;
}
