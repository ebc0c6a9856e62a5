/*
 * pg_dump_script.c
 *	  Takes the script of pg_dump apart.
 *
 * Only the server's own parser cuts it into statements: owners of tables choose what names
 * and literals contain.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "pg_dump_script.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"

/*
 * Replaces psql's own commands, with which newer versions begin and end a script, with
 * blanks.  A line that looks like one of them may also be part of a literal.  But only
 * comments precede the first command, and the other has the same key, which is random.
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

/*
 * Checks that the output of pg_dump is text in this database's encoding, which it was
 * asked for, and returns it as a script for pg_dump_script_statements().
 */
char *
pg_dump_script_check(StringInfo script)
{
	if (memchr(script->data, '\0', script->len))
		ereport(ERROR,
				(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
				 errmsg("pg_dump's script contains a null byte")));
	(void) pg_verifymbstr(script->data, script->len, false);
	blank_psql_commands(script->data);
	return script->data;
}

/* Sets a parameter as SET would, since the script may do so, too. */
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
 * Returns the statements of a script, as a list of PgDumpStatement.  Sets parameters so that
 * the texts have the same meaning when they are run; the caller makes sure that these
 * settings end.
 */
List *
pg_dump_script_statements(const char *script)
{
	List	   *parsed;
	List	   *result = NIL;

	set_parameter("standard_conforming_strings", "on");
	/* From 19 on, there are no other strings to warn of. */
	if (GetConfigOption("escape_string_warning", true, false) != NULL)
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
