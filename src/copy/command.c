/*
 * command.c
 *	  Takes the server's COPY command apart, and writes the commands of helpers.
 *
 * By then the server has determined the columns and rows to copy, and has put them into
 * one of these forms (copy_table() in its tablesync.c):
 *
 *	  COPY name (column, ...) TO STDOUT
 *	  COPY (SELECT column, ... FROM [ONLY] name [WHERE filter]) TO STDOUT
 *
 * the first of them also for a partitioned table if both servers are of version 19 or later;
 * followed by "WITH (FORMAT binary)" or nothing.  Everything is taken from that command, so
 * that the rows copied are those that the server wanted.  A command that does not look
 * exactly like one of these is not understood, and is left to the server.
 */
#include "postgres.h"

#include "copy/command.h"
#include "lib/stringinfo.h"
#include "nodes/value.h"
#include "utils/builtins.h"

#define TO_STDOUT " TO STDOUT"
#define WITH_BINARY " WITH (FORMAT binary)"

/* Skips a text; returns false if another one is at the position. */
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

/* Reads the filter, and the end of the query. */
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

/* Takes the server's command for a table apart; returns false if it has another form. */
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
	command->whole = text;
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

/* Returns the second form of a command of the first form, for a partitioned table. */
char *
copy_command_partitioned(const CopyCommand *command)
{
	return psprintf("COPY (SELECT %s FROM %s)" TO_STDOUT "%s", command->column_list,
					command->relation, command->binary ? WITH_BINARY : "");
}

/* Returns a command of the same format that sends no row and reads no table. */
char *
copy_command_nothing(const CopyCommand *command)
{
	return psprintf("COPY (SELECT WHERE false)" TO_STDOUT "%s",
					command->binary ? WITH_BINARY : "");
}

/*
 * Appends a condition that throws an error if the name now belongs to another table.  It is
 * evaluated when the command is planned, and costs nothing per row.
 */
static void
append_identity(StringInfo query, const CopyCommand *command, const CopyTarget *target)
{
	appendStringInfo(query,
					 "CASE WHEN %s::pg_catalog.regclass::pg_catalog.oid"
					 " OPERATOR(pg_catalog.=) %s::pg_catalog.oid THEN true"
					 " ELSE ('another table now has the name '"
					 " OPERATOR(pg_catalog.||) %s)::pg_catalog.bool END",
					 quote_literal_cstr(command->relation), target->relid,
					 quote_literal_cstr(command->relation));
}

/*
 * Returns the command for the blocks from "first" up to, but not including, "end", which is
 * InvalidBlockNumber for all that follow.  For the snapshot a row is at one place, and
 * therefore in one range, wherever an update may have put its next version; in a partitioned
 * table, in the same range of blocks of its partition.
 *
 * Each range is a query of its own, so each must name what a single query would determine
 * once: the table, and its partitions.  A copy of all blocks uses the server's own command,
 * which determines them once.
 */
char *
copy_command_range(const CopyCommand *command, const CopyTarget *target, bool binary,
				   BlockNumber first, BlockNumber end)
{
	StringInfoData query;

	initStringInfo(&query);
	if (first == 0 && end == InvalidBlockNumber)
		appendStringInfoString(&query, command->whole);
	else
	{
		appendStringInfo(&query, "COPY (SELECT %s FROM %s%s"
						 " WHERE ctid OPERATOR(pg_catalog.>=) '(%u,0)'::pg_catalog.tid AND ",
						 command->column_list, command->only ? "ONLY " : "",
						 command->relation, first);
		if (end != InvalidBlockNumber)
			appendStringInfo(&query,
							 "ctid OPERATOR(pg_catalog.<) '(%u,0)'::pg_catalog.tid AND ", end);
		append_identity(&query, command, target);
		if (!command->only)
			appendStringInfo(&query,
							 " AND tableoid OPERATOR(pg_catalog.=) ANY ('{%s}'::pg_catalog.oid[])",
							 target->leaves);
		if (command->filter)
			appendStringInfo(&query, " AND (%s)", command->filter);
		appendStringInfoString(&query, ")" TO_STDOUT);
	}
	if (binary)
		appendStringInfoString(&query, WITH_BINARY);
	return query.data;
}
