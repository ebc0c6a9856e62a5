/*
 * program_secrets.c
 *	  Keeps the secrets of a connection string from the command line of a program.
 *
 * Everybody on this machine can see the arguments of a program in the list of processes.
 * Therefore secrets are left out of the connection string that the program gets, and are
 * written to files that only the server's user can read: the password to a password file,
 * and the few other secrets to a service file.
 *
 * The program makes a connection of its own, which may lead to another server than an
 * earlier one did: a connection string may name several hosts.  A role that must give a
 * password must also be asked for it by the server that answers; otherwise the role would
 * get in by what that server allows the operating-system user of this one.  For the same
 * reason no password from this server's environment or from a service file may be used in
 * its place.
 */
#include "postgres.h"

#include "program_secrets.h"
#include "temporary_file.h"
#include "utils/varlena.h"

#define SERVICE "weft"

/* libpq does not read longer lines of a service file. */
#define MAX_SERVICE_LINE 1000

/* By which a server may ask for a password. */
#define PASSWORD_METHODS "scram-sha-256,md5,password"

static char *
password_line(const char *program, const char *password)
{
	StringInfoData line;

	if (strpbrk(password, "\r\n"))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s cannot be given a password that contains a line break", program)));
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
append_service_line(StringInfo lines, const char *program, const PQconninfoOption *option)
{
	size_t		length = strlen(option->val);

	/* libpq removes blanks from both ends. */
	if (strpbrk(option->val, "\r\n") || strlen(option->keyword) + length > MAX_SERVICE_LINE ||
		isspace((unsigned char) option->val[length - 1]))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s cannot be given this value of connection option \"%s\"",
						program, option->keyword),
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

/*
 * Takes a connection string apart.  "whose" names it in messages, and nothing of the
 * string itself does: libpq's message may quote any part of it.
 */
void
program_secrets_parse(ProgramSecrets *secrets, const char *program, const char *conninfo,
					  const char *whose)
{
	secrets->program = program;
	secrets->options = PQconninfoParse(conninfo, NULL);
	if (secrets->options == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("invalid connection string for %s", whose)));
}

/*
 * Writes the secrets to files, and returns the connection string without them.  If
 * "must_use_password" is set, the caller must have given a password, and the server must
 * ask for it.
 */
char *
program_secrets_write(ProgramSecrets *secrets, bool must_use_password)
{
	const PQconninfoOption *options = secrets->options;
	const char *require_auth = must_use_password ?
		password_methods(options) : option_value(options, "require_auth");
	const char *password = option_value(options, "password");
	StringInfoData dsn;
	StringInfoData service;

	initStringInfo(&dsn);
	initStringInfo(&service);
	for (const PQconninfoOption *option = options; option->keyword != NULL; option++)
	{
		if (option->val == NULL || option->val[0] == '\0' ||
			strcmp(option->keyword, "password") == 0 ||
			strcmp(option->keyword, "require_auth") == 0 ||
			(password && strcmp(option->keyword, "passfile") == 0))
			continue;
		if (option->dispchar[0] == '*')
			append_service_line(&service, secrets->program, option);
		else
			append_option(&dsn, option->keyword, option->val);
	}

	if (password)
	{
		secrets->password_file = temporary_file_write("password",
													  password_line(secrets->program, password));
		append_option(&dsn, "passfile", secrets->password_file);
	}
	if (require_auth)
		append_option(&dsn, "require_auth", require_auth);
	if (service.len > 0)
	{
		if (option_value(options, "service"))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("connection option \"%s\" cannot be used with secrets other than the password",
							"service"),
					 errhint("Put them into the service file.")));
		secrets->service_file = temporary_file_write("service",
													 psprintf("[" SERVICE "]\n%s", service.data));
		append_option(&dsn, "service", SERVICE);
	}
	return dsn.data;
}

/* Appends the shell commands that prepare the program's environment. */
void
program_secrets_environment(const ProgramSecrets *secrets, bool must_use_password,
							StringInfo command)
{
	if (secrets->password_file)
		appendStringInfoString(command, "unset PGPASSWORD; ");
	if (must_use_password)
		appendStringInfoString(command, "unset PGSERVICE; ");
	if (secrets->service_file)
		appendStringInfo(command, "PGSERVICEFILE=%s; export PGSERVICEFILE; ",
						 secrets->service_file);
}

/* Removes the files; may be called when the process ends. */
void
program_secrets_remove(ProgramSecrets *secrets)
{
	temporary_file_remove(secrets->password_file);
	temporary_file_remove(secrets->service_file);
	PQconninfoFree(secrets->options);
}
