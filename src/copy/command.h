/*
 * command.h
 *	  Takes the server's COPY command apart, and writes the commands of helpers.
 */
#ifndef WEFT_COPY_COMMAND_H
#define WEFT_COPY_COMMAND_H

#include "nodes/pg_list.h"
#include "storage/block.h"

typedef struct CopyCommand
{
	List	   *columns;		/* of String: the publisher's names */
	char	   *column_list;	/* as text, quoted where needed */
	char	   *relation;		/* qualified name, quoted where needed */
	bool		only;			/* without tables that inherit from it */
	char	   *filter;			/* row filter, or NULL */
	bool		binary;
	const char *whole;			/* the command without the format */
} CopyCommand;

/* Identifies the publisher's table, which may have been renamed. */
typedef struct CopyTarget
{
	const char *relid;			/* its OID */
	const char *leaves;			/* the OIDs of its partitions, separated by
								 * commas; empty if it has none */
} CopyTarget;

extern bool copy_command_parse(const char *text, const char *nspname,
							   const char *relname, CopyCommand *command);
extern char *copy_command_partitioned(const CopyCommand *command);
extern char *copy_command_nothing(const CopyCommand *command);
extern char *copy_command_range(const CopyCommand *command, const CopyTarget *target,
								bool binary, BlockNumber first, BlockNumber end);

#endif							/* WEFT_COPY_COMMAND_H */
