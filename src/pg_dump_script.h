/*
 * pg_dump_script.h
 *	  Takes the script of pg_dump apart.
 */
#ifndef WEFT_PG_DUMP_SCRIPT_H
#define WEFT_PG_DUMP_SCRIPT_H

#include "lib/stringinfo.h"
#include "nodes/parsenodes.h"
#include "nodes/pg_list.h"

/* A statement of a script. */
typedef struct PgDumpStatement
{
	Node	   *tree;			/* not analyzed yet */
	char	   *text;
} PgDumpStatement;

extern char *pg_dump_script_check(StringInfo script);
extern List *pg_dump_script_statements(const char *script);

#endif							/* WEFT_PG_DUMP_SCRIPT_H */
