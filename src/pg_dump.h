/*
 * pg_dump.h
 *	  Running this server's pg_dump.
 */
#ifndef WEFT_PG_DUMP_H
#define WEFT_PG_DUMP_H

extern char *pg_dump_path(void);
extern char *pg_dump_file_name(const char *what);
extern void pg_dump_write_file(const char *name, const char *contents);
extern char *pg_dump_read_file(const char *name);
extern char *pg_dump_run(const char *command, int *status);

#endif							/* WEFT_PG_DUMP_H */
