/*
 * command.h
 *	  The COPY command that the server sends to the publisher, taken apart.
 */
#ifndef WEFT_COPY_COMMAND_H
#define WEFT_COPY_COMMAND_H

#include "nodes/pg_list.h"
#include "storage/block.h"

typedef struct CopyCommand
{
	List	   *columns;		/* of String: the publisher's names */
	char	   *column_list;	/* the same as text, quoted where needed */
	char	   *relation;		/* qualified name, quoted where needed */
	bool		only;			/* without tables that inherit from it */
	char	   *filter;			/* row filter, or NULL */
	bool		binary;
} CopyCommand;

extern bool copy_command_parse(const char *text, const char *nspname,
							   const char *relname, CopyCommand *command);
extern char *copy_command_select(const CopyCommand *command, const char *condition);
extern char *copy_command_nothing(const CopyCommand *command);
extern char *copy_command_range(const CopyCommand *command, bool binary,
								BlockNumber first, BlockNumber end);

#endif							/* WEFT_COPY_COMMAND_H */
