/*
 * pg_dump.h
 *	  Runs this server's pg_dump.
 */
#ifndef WEFT_PG_DUMP_H
#define WEFT_PG_DUMP_H

#include "nodes/pg_list.h"

typedef struct PgDump
{
	const char *conninfo;
	bool		must_use_password;	/* as walrcv_connect() wants it */
	List	   *arguments;		/* those that are not about the connection */
	const char *filter;			/* what a filter file is to contain, or NULL */
	const char *whose;			/* whose schema it is, for messages */
} PgDump;

extern char *pg_dump_run(const PgDump *dump);

#endif							/* WEFT_PG_DUMP_H */
