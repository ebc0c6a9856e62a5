/*
 * pg_dump.c
 *	  Running this server's pg_dump.
 *
 * The connection string reaches pg_dump as an argument, which everybody on this
 * machine can see in the list of processes.  Secrets are therefore left out of it and
 * put into files that only the server's user can read: the password into a password
 * file, and the few other secrets into a service file.  The files are in a directory
 * that the server empties when it starts, in case it has crashed.
 *
 * pg_dump makes a connection of its own, which need not lead to where an earlier one
 * led: a connection string may name several hosts.  Whoever must give a password must
 * also be asked for it by whichever server answers, so that nobody gets in by what
 * that server allows the operating-system user of this one.  Nor may a password from
 * this server's environment or a service file be used in its place.
 *
 * pg_dump may wait long for a lock there.  It is ended with the call, so that a user can
 * cancel that, and the server can be shut down; its shell tells its process id first.
 *
 * The script is cut into statements by the server's own parser, and by nothing else:
 * owners of tables choose what names and literals contain.
 */
#include "postgres.h"

#include <signal.h>
#include <unistd.h>

#include "common/file_utils.h"
#include "lib/stringinfo.h"
#include "libpq-fe.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pg_dump.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/varlena.h"
#include "utils/wait_event.h"

#define DIRECTORY "base/" PG_TEMP_FILES_DIR
#define SERVICE "weft"

/* libpq does not read longer lines of a service file. */
#define MAX_SERVICE_LINE 1000

/* By which a server may ask for a password. */
#define PASSWORD_METHODS "scram-sha-256,md5,password"

/* What one call has to give back: files, NULL where there is no need for one. */
typedef struct Files
{
	PQconninfoOption *options;
	pid_t		pid;			/* of pg_dump, or 0 if it is not running */
	char	   *errors;
	char	   *filter;
	char	   *password;
	char	   *service;
} Files;

/*
 * Files
 */

static char *
write_file(const char *what, const char *contents)
{
	char	   *name = psprintf("%s/%s_weft.%d.%s", DIRECTORY, PG_TEMP_FILE_PREFIX,
								MyProcPid, what);
	size_t		length = strlen(contents);
	int			fd;

	if (MakePGDirectory(DIRECTORY) < 0 && errno != EEXIST)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create directory \"%s\": %m", DIRECTORY)));
	/* Another process with our number may have crashed. */
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

/* Ends pg_dump and removes the files; called when this process ends, too. */
static void
clean_up(int code, Datum arg)
{
	Files	   *files = (Files *) DatumGetPointer(arg);
	char	   *names[] = {files->errors, files->filter, files->password, files->service};

	/* It has not been waited for, so this is still its number. */
	if (files->pid > 0)
		(void) kill(files->pid, SIGTERM);
	for (int i = 0; i < lengthof(names); i++)
		if (names[i])
			(void) unlink(names[i]);
	PQconninfoFree(files->options);
}

static char *
read_file(const char *name)
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

/*
 * The connection
 */

static char *
password_line(const char *password)
{
	StringInfoData line;

	if (strpbrk(password, "\r\n"))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("pg_dump cannot be given a password that contains a line break")));
	initStringInfo(&line);
	appendStringInfoString(&line, "*:*:*:*:");
	for (const char *p = password; *p; p++)
	{
		if (*p == ':' || *p == '\\')
			appendStringInfoChar(&line, '\\');
		appendStringInfoChar(&line, *p);
	}
	appendStringInfoChar(&line, '\n');
	return line.data;
}

static void
append_service_line(StringInfo lines, const PQconninfoOption *option)
{
	size_t		length = strlen(option->val);

	/* libpq removes blanks from both ends. */
	if (strpbrk(option->val, "\r\n") || strlen(option->keyword) + length > MAX_SERVICE_LINE ||
		isspace((unsigned char) option->val[length - 1]))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("pg_dump cannot be given this value of connection option \"%s\"",
						option->keyword),
				 errdetail("It is too long, contains a line break, or ends with a space.")));
	appendStringInfo(lines, "%s=%s\n", option->keyword, option->val);
}

/* keyword='value', for a connection string. */
static void
append_option(StringInfo dsn, const char *keyword, const char *value)
{
	appendStringInfo(dsn, "%s='", keyword);
	for (const char *p = value; *p; p++)
	{
		if (*p == '\'' || *p == '\\')
			appendStringInfoChar(dsn, '\\');
		appendStringInfoChar(dsn, *p);
	}
	appendStringInfoString(dsn, "' ");
}

/* Returns an option's value, or NULL. */
static const char *
option_value(const PQconninfoOption *options, const char *keyword)
{
	for (const PQconninfoOption *option = options; option->keyword != NULL; option++)
		if (strcmp(option->keyword, keyword) == 0 && option->val && option->val[0])
			return option->val;
	return NULL;
}

/* Does the user's own value of require_auth allow passwords alone? */
static bool
allows_passwords_alone(const char *require_auth)
{
	char	   *copy = pstrdup(require_auth);
	List	   *methods;

	if (!SplitIdentifierString(copy, ',', &methods) || methods == NIL)
		return false;
	foreach_ptr(char, method, methods)
	{
		if (strcmp(method, "scram-sha-256") != 0 && strcmp(method, "md5") != 0 &&
			strcmp(method, "password") != 0)
			return false;
	}
	return true;
}

/*
 * Checks what a caller who must give a password has given; returns the value of
 * require_auth to use.
 */
static const char *
password_methods(const PQconninfoOption *options)
{
	const char *given = option_value(options, "require_auth");

	if (option_value(options, "password") == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED),
				 errmsg("password is required"),
				 errdetail("Non-superusers must provide a password in the connection string.")));
	/* A password in the service file would be used before that of the caller. */
	if (option_value(options, "service"))
		ereport(ERROR,
				(errcode(ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED),
				 errmsg("non-superusers cannot use connection option \"%s\" here", "service")));
	return given && allows_passwords_alone(given) ? given : PASSWORD_METHODS;
}

/* Returns the connection string without secrets; writes these to files. */
static char *
public_conninfo(const PgDump *dump, Files *files)
{
	const PQconninfoOption *options = files->options;
	const char *require_auth = dump->must_use_password ?
		password_methods(options) : option_value(options, "require_auth");
	const char *password = option_value(options, "password");
	StringInfoData dsn;
	StringInfoData secrets;

	initStringInfo(&dsn);
	initStringInfo(&secrets);
	for (const PQconninfoOption *option = options; option->keyword != NULL; option++)
	{
		if (option->val == NULL || option->val[0] == '\0' ||
			strcmp(option->keyword, "password") == 0 ||
			strcmp(option->keyword, "require_auth") == 0 ||
			(password && strcmp(option->keyword, "passfile") == 0))
			continue;
		if (option->dispchar[0] == '*')
			append_service_line(&secrets, option);
		else
			append_option(&dsn, option->keyword, option->val);
	}

	if (password)
	{
		files->password = write_file("password", password_line(password));
		append_option(&dsn, "passfile", files->password);
	}
	if (require_auth)
		append_option(&dsn, "require_auth", require_auth);
	if (secrets.len > 0)
	{
		if (option_value(options, "service"))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("connection option \"%s\" cannot be used with secrets other than the password",
							"service"),
					 errhint("Put them into the service file.")));
		files->service = write_file("service", psprintf("[" SERVICE "]\n%s", secrets.data));
		append_option(&dsn, "service", SERVICE);
	}
	return dsn.data;
}

/*
 * Running it
 */

/* In single quotes, for the shell. */
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

/* Returns the program that belongs to this server. */
static char *
program(void)
{
	char		directory[MAXPGPATH];

	strlcpy(directory, my_exec_path, MAXPGPATH);
	get_parent_directory(directory);
	return psprintf("%s/pg_dump", directory);
}

static char *
command_line(const PgDump *dump, const char *dsn, const Files *files)
{
	StringInfoData command;

	initStringInfo(&command);
	if (files->password)
		appendStringInfoString(&command, "unset PGPASSWORD; ");
	if (dump->must_use_password)
		appendStringInfoString(&command, "unset PGSERVICE; ");
	if (files->service)
		appendStringInfo(&command, "PGSERVICEFILE=%s; export PGSERVICEFILE; ", files->service);
	appendStringInfoString(&command, "echo $$; exec");
	append_shell_string(&command, program());
	appendStringInfo(&command, " --no-password --encoding=%s", GetDatabaseEncodingName());
	foreach_ptr(char, argument, dump->arguments)
		append_shell_string(&command, argument);
	if (files->filter)
		append_shell_string(&command, psprintf("--filter=%s", files->filter));
	append_shell_string(&command, psprintf("--dbname=%s", dsn));
	append_shell_string(&command, "--");
	appendStringInfo(&command, " 2>%s </dev/null", files->errors);
	return command.data;
}

/*
 * Replaces psql's own commands, with which newer versions begin and end a script, by
 * blanks.  A line that looks like one of them may also be part of a literal; but
 * nothing but comments is before the first, and the other has the same key, which is
 * random.
 */
static void
blank_psql_commands(char *script)
{
	static const char restrict_command[] = "\\restrict ";
	char	   *line = script;
	char	   *other;
	size_t		length;

	while (*line == '\n' || strncmp(line, "--", 2) == 0)
		line += strcspn(line, "\n") + (line[strcspn(line, "\n")] ? 1 : 0);
	if (strncmp(line, restrict_command, strlen(restrict_command)) != 0)
		return;
	length = strcspn(line, "\n");
	other = strstr(line, psprintf("\n\\un%s\n", pnstrdup(line + 1, length - 1)));
	memset(line, ' ', length);
	if (other)
		memset(other + 1, ' ', strcspn(other + 1, "\n"));
}

/* The script must be in this database's encoding, as it was asked for. */
static char *
check_script(StringInfo script)
{
	if (memchr(script->data, '\0', script->len))
		ereport(ERROR,
				(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
				 errmsg("pg_dump's script contains a null byte")));
	(void) pg_verifymbstr(script->data, script->len, false);
	blank_psql_commands(script->data);
	return script->data;
}

/* Waits until there is something to read; may be interrupted. */
static void
wait_for_output(int fd, bool interruptible)
{
	static uint32 wait_event = 0;
	int			events;

	if (wait_event == 0)
		wait_event = WaitEventExtensionNew("WeftPgDump");
	events = WaitLatchOrSocket(MyLatch, WL_LATCH_SET | WL_SOCKET_READABLE | WL_EXIT_ON_PM_DEATH,
							   fd, -1L, wait_event);
	if (events & WL_LATCH_SET)
		ResetLatch(MyLatch);
	if (interruptible)
		CHECK_FOR_INTERRUPTS();
}

/* Reads the process id, and what pg_dump writes until it ends. */
static void
read_output(int fd, StringInfo script, Files *files)
{
	for (;;)
	{
		char		buffer[8192];
		ssize_t		length;
		char	   *end;

		wait_for_output(fd, files->pid > 0);
		length = read(fd, buffer, sizeof(buffer));
		if (length == 0)
			return;
		if (length < 0 && errno != EINTR)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read from pg_dump: %m")));
		if (length > 0)
			appendBinaryStringInfo(script, buffer, length);
		if (files->pid > 0 || (end = strchr(script->data, '\n')) == NULL)
			continue;

		files->pid = atoi(script->data);
		length = end + 1 - script->data;
		script->len -= length;
		memmove(script->data, script->data + length, script->len + 1);
	}
}

static char *
run(const PgDump *dump, Files *files)
{
	StringInfoData script;
	FILE	   *pipe;
	int			status;
	char	   *errors;

	files->errors = write_file("errors", "");
	if (dump->filter)
		files->filter = write_file("filter", dump->filter);
	initStringInfo(&script);
	pipe = OpenPipeStream(command_line(dump, public_conninfo(dump, files), files),
						  PG_BINARY_R);
	if (pipe == NULL)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not run pg_dump: %m")));
	read_output(fileno(pipe), &script, files);
	files->pid = 0;
	status = ClosePipeStream(pipe);
	if (status == 0)
		return check_script(&script);

	errors = read_file(files->errors);
	ereport(ERROR,
			(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
			 errmsg("could not read the schema of %s: pg_dump failed", dump->whose),
			 errdetail_internal("%s", errors[0] ? errors : wait_result_to_str(status)),
			 errhint("pg_dump must be installed beside the server's programs.")));
}

/* Runs pg_dump and returns its script, in this database's encoding. */
char *
pg_dump_run(const PgDump *dump)
{
	Files	   *files = palloc0(sizeof(Files));
	char	   *script = NULL;

	/* libpq's message may quote any part of it. */
	files->options = PQconninfoParse(dump->conninfo, NULL);
	if (files->options == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("invalid connection string for %s", dump->whose)));
	PG_ENSURE_ERROR_CLEANUP(clean_up, PointerGetDatum(files));
	{
		script = run(dump, files);
	}
	PG_END_ENSURE_ERROR_CLEANUP(clean_up, PointerGetDatum(files));
	clean_up(0, PointerGetDatum(files));
	return script;
}

/*
 * The script
 */

/* Sets a parameter as SET would: the script may do so, too. */
static void
set_parameter(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SET,
							 true, 0, false);
}

/* Does the script begin by setting standard_conforming_strings to off? */
static bool
has_backslash_escapes(List *statements)
{
	foreach_node(RawStmt, raw, statements)
	{
		VariableSetStmt *setting = (VariableSetStmt *) raw->stmt;

		if (IsA(setting, SelectStmt))
			continue;
		if (!IsA(setting, VariableSetStmt))
			break;
		if (setting->name && strcmp(setting->name, "standard_conforming_strings") == 0)
			return setting->kind == VAR_SET_VALUE &&
				strcmp(ExtractSetVariableArgs(setting), "off") == 0;
	}
	return false;
}

/*
 * Returns the statements of a script, as a list of PgDumpStatement.  Parameters are set
 * so that their texts mean the same when they are run; the caller sees to it that this
 * ends.
 */
List *
pg_dump_statements(const char *script)
{
	List	   *parsed;
	List	   *result = NIL;

	set_parameter("standard_conforming_strings", "on");
	set_parameter("escape_string_warning", "off");
	parsed = pg_parse_query(script);
	if (has_backslash_escapes(parsed))
	{
		set_parameter("standard_conforming_strings", "off");
		parsed = pg_parse_query(script);
	}

	foreach_node(RawStmt, raw, parsed)
	{
		PgDumpStatement *statement = palloc(sizeof(PgDumpStatement));
		const char *start = script + raw->stmt_location;

		statement->tree = raw->stmt;
		statement->text = pnstrdup(start, raw->stmt_len ? raw->stmt_len : strlen(start));
		result = lappend(result, statement);
	}
	return result;
}
