/*
 * command.c
 *	  The COPY command that the server sends to the publisher, taken apart.
 *
 * The server has found out by then which columns and rows are to be copied, and
 * has put it into one of these (copy_table() in its tablesync.c):
 *
 *	  COPY name (column, ...) TO STDOUT
 *	  COPY (SELECT column, ... FROM [ONLY] name [WHERE filter]) TO STDOUT
 *
 * perhaps with "WITH (FORMAT binary)".  All is taken from there, so that what is
 * copied is what the server wanted.  What does not look exactly like one of them
 * is not understood, and left to the server.
 */
#include "postgres.h"

#include "copy/command.h"
#include "lib/stringinfo.h"
#include "nodes/value.h"
#include "utils/builtins.h"

#define TO_STDOUT " TO STDOUT"
#define WITH_BINARY " WITH (FORMAT binary)"

/* Goes on behind a text that must stand here. */
static bool
skip(const char **position, const char *expected)
{
	size_t		length = strlen(expected);

	if (strncmp(*position, expected, length) != 0)
		return false;
	*position += length;
	return true;
}

/* Reads one identifier, as quote_identifier() writes it. */
static char *
read_identifier(const char **position)
{
	StringInfoData name;
	const char *p = *position;
	bool		quoted = *p == '"';

	initStringInfo(&name);
	if (quoted)
		p++;
	for (;;)
	{
		if (quoted && p[0] == '"' && p[1] == '"')
			p++;
		else if (*p == '\0' ||
				 (quoted ? *p == '"' :
				  !((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || *p == '_')))
			break;
		appendStringInfoChar(&name, *p++);
	}
	if (quoted && *p++ != '"')
		return NULL;
	*position = p;
	return name.len > 0 ? name.data : NULL;
}

static bool
read_columns(const char **position, CopyCommand *command)
{
	const char *start = *position;

	command->columns = NIL;
	do
	{
		char	   *name = read_identifier(position);

		if (name == NULL)
			return false;
		command->columns = lappend(command->columns, makeString(name));
	} while (skip(position, ", "));
	command->column_list = pnstrdup(start, *position - start);
	return true;
}

/* Reads the filter, and what closes the query. */
static bool
read_filter(const char **position, CopyCommand *command)
{
	size_t		length;
	size_t		end = strlen(")" TO_STDOUT);

	command->filter = NULL;
	if (!skip(position, " WHERE "))
		return skip(position, ")" TO_STDOUT);

	length = strlen(*position);
	if (length <= end || strcmp(*position + length - end, ")" TO_STDOUT) != 0)
		return false;
	command->filter = pnstrdup(*position, length - end);
	*position += length;
	return true;
}

/*
 * Takes the server's command for a table apart; returns false if it does not
 * look as expected.
 */
bool
copy_command_parse(const char *text, const char *nspname, const char *relname,
				   CopyCommand *command)
{
	size_t		length = strlen(text);
	size_t		binary = strlen(WITH_BINARY);
	const char *position;

	command->relation = quote_qualified_identifier(nspname, relname);
	command->binary = length > binary && strcmp(text +length - binary, WITH_BINARY) == 0;
	if (command->binary)
		text = pnstrdup(text, length - binary);
	position = text;

	if (!skip(&position, "COPY "))
		return false;

	if (skip(&position, "(SELECT "))
	{
		if (!read_columns(&position, command) || !skip(&position, " FROM "))
			return false;
		command->only = skip(&position, "ONLY ");
		return skip(&position, command->relation) && read_filter(&position, command) &&
			*position == '\0';
	}

	command->only = true;
	command->filter = NULL;
	return skip(&position, command->relation) && skip(&position, " (") &&
		read_columns(&position, command) && skip(&position, ")" TO_STDOUT) &&
		*position == '\0';
}

/* A query for those rows of the table that meet a condition, too. */
char *
copy_command_select(const CopyCommand *command, const char *condition)
{
	StringInfoData query;

	initStringInfo(&query);
	appendStringInfo(&query, "SELECT %s FROM %s%s WHERE %s", command->column_list,
					 command->only ? "ONLY " : "", command->relation, condition);
	if (command->filter)
		appendStringInfo(&query, " AND (%s)", command->filter);
	return query.data;
}

static char *
copy_of(const CopyCommand *command, bool binary, const char *condition)
{
	return psprintf("COPY (%s)" TO_STDOUT "%s", copy_command_select(command, condition),
					binary ? WITH_BINARY : "");
}

/* The same command, but without any row. */
char *
copy_command_nothing(const CopyCommand *command)
{
	return copy_of(command, command->binary, "false");
}

/*
 * The same for the blocks from "first" to before "end", which is
 * InvalidBlockNumber for all that follow.  A row stands for the snapshot at one
 * place, so in one range, wherever it may have been moved since; in a partitioned
 * table, in the same range of blocks of its partition.  All blocks are not a range.
 */
char *
copy_command_range(const CopyCommand *command, bool binary,
				   BlockNumber first, BlockNumber end)
{
	StringInfoData condition;

	if (first == 0 && end == InvalidBlockNumber)
		return copy_of(command, binary, "true");
	initStringInfo(&condition);
	appendStringInfo(&condition, "ctid >= '(%u,0)'::pg_catalog.tid", first);
	if (end != InvalidBlockNumber)
		appendStringInfo(&condition, " AND ctid < '(%u,0)'::pg_catalog.tid", end);
	return copy_of(command, binary, condition.data);
}
