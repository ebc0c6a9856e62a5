/*
 * pg_dump.h
 *	  Running this server's pg_dump.
 */
#ifndef WEFT_PG_DUMP_H
#define WEFT_PG_DUMP_H

#include "nodes/parsenodes.h"
#include "nodes/pg_list.h"

typedef struct PgDump
{
	const char *conninfo;
	bool		must_use_password;	/* as walrcv_connect() wants it */
	List	   *arguments;		/* those that are not about the connection */
	const char *filter;			/* what a filter file is to contain, or NULL */
	const char *whose;			/* whose schema it is, for messages */
} PgDump;

/* A statement of a script. */
typedef struct PgDumpStatement
{
	Node	   *tree;			/* not analyzed yet */
	char	   *text;
} PgDumpStatement;

extern char *pg_dump_run(const PgDump *dump);
extern List *pg_dump_statements(const char *script);

#endif							/* WEFT_PG_DUMP_H */
