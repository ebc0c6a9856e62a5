/*
 * schema.c
 *	  The schema of the member that is copied: pg_dump's script, run here.
 *
 * pg_dump is the one that belongs to this server.  Its connection string is seen
 * by everybody in the list of processes, so the password is left out of it, and
 * put into a file that only the server's user may read.
 */
#include "postgres.h"

#include <unistd.h>

#include "group/join.h"
#include "libpq-fe.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pg_dump.h"
#include "tcop/tcopprot.h"

/* In single quotes, for the shell. */
static void
append_shell_string(StringInfo command, const char *string)
{
	appendStringInfoChar(command, '\'');
	for (const char *p = string; *p; p++)
	{
		if (*p == '\'')
			appendStringInfoString(command, "'\\''");
		else
			appendStringInfoChar(command, *p);
	}
	appendStringInfoChar(command, '\'');
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

static void
write_password_file(const char *name, const char *password)
{
	StringInfoData line;

	initStringInfo(&line);
	appendStringInfoString(&line, "*:*:*:*:");
	for (const char *p = password; *p; p++)
	{
		if (*p == ':' || *p == '\\')
			appendStringInfoChar(&line, '\\');
		appendStringInfoChar(&line, *p);
	}
	appendStringInfoChar(&line, '\n');

	pg_dump_write_file(name, line.data);
}

/*
 * The connection string without its password; that is written to the file.
 * Returns whether there is one.
 */
static bool
split_dsn(const char *dsn, StringInfo without_password, const char *file)
{
	PQconninfoOption *options = PQconninfoParse(dsn, NULL);
	bool		result = false;

	if (options == NULL)
		elog(ERROR, "invalid connection string");
	PG_TRY();
	{
		for (PQconninfoOption *option = options; option->keyword != NULL; option++)
		{
			if (option->val == NULL || option->val[0] == '\0')
				continue;
			if (strcmp(option->keyword, "password") == 0)
			{
				write_password_file(file, option->val);
				result = true;
			}
			else if (option->dispchar[0] != '*')
				append_option(without_password, option->keyword, option->val);
		}
	}
	PG_FINALLY();
	{
		PQconninfoFree(options);
	}
	PG_END_TRY();
	if (result)
		append_option(without_password, "passfile", file);
	return result;
}

/*
 * Returns a section of the schema of another member, as a script: "pre-data" or
 * "post-data".
 */
char *
schema_dump(const char *dsn, const char *node, const char *snapshot, const char *section)
{
	StringInfoData without_password;
	StringInfoData command;
	char	   *file = pg_dump_file_name("password");
	char	   *script = NULL;
	int			status = 0;

	initStringInfo(&without_password);
	initStringInfo(&command);
	PG_TRY();
	{
		(void) split_dsn(dsn, &without_password, file);
		append_shell_string(&command, pg_dump_path());
		appendStringInfo(&command, " --schema-only --no-publications --no-subscriptions"
						 " --exclude-schema=weft --exclude-extension=weft --no-password"
						 " --quote-all-identifiers --section=%s --snapshot=", section);
		append_shell_string(&command, snapshot);
		appendStringInfoString(&command, " --dbname=");
		append_shell_string(&command, without_password.data);
		script = pg_dump_run(command.data, &status);
	}
	PG_FINALLY();
	{
		(void) unlink(file);
	}
	PG_END_TRY();
	if (status != 0)
		ereport(ERROR,
				(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
				 errmsg("could not read the schema of node \"%s\": pg_dump failed", node),
				 errdetail_internal("%s", wait_result_to_str(status)),
				 errhint("The server log has pg_dump's messages. It must be installed beside the server's programs.")));
	return script;
}

/* pg_dump writes the comment that every database has; only its owner may make it. */
static bool
is_comment_on_public(Node *statement)
{
	CommentStmt *comment = (CommentStmt *) statement;

	return IsA(statement, CommentStmt) && comment->objtype == OBJECT_SCHEMA &&
		strcmp(strVal(comment->object), "public") == 0;
}

/*
 * Runs such a script, statement by statement, in the transaction that is in
 * progress.
 */
void
schema_run(const char *script)
{
	List	   *statements = pg_parse_query(script);

	foreach_node(RawStmt, statement, statements)
	{
		int			len = statement->stmt_len ? statement->stmt_len :
			(int) strlen(script + statement->stmt_location);

		CHECK_FOR_INTERRUPTS();
		if (is_comment_on_public(statement->stmt))
			continue;
		local_run(pnstrdup(script + statement->stmt_location, len));
	}
}
