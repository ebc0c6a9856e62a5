/*
 * local_query.h
 *	  Queries and commands in this database, as text.
 */
#ifndef WEFT_LOCAL_QUERY_H
#define WEFT_LOCAL_QUERY_H

#include "nodes/pg_list.h"

/* A value of a row, as text; NULL if it is null. */
typedef char *LocalValue;

extern void local_start_writing(void);
extern void local_run(const char *command);
extern char *local_value(const char *query);
extern char *local_value_of_weft(const char *query);
extern List *local_rows(const char *query, int columns);
extern List *local_rows_of_weft(const char *query, int columns);

#endif							/* WEFT_LOCAL_QUERY_H */
