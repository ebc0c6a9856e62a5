/*
 * query_result.h
 *	  Answers of other servers.
 */
#ifndef WEFT_QUERY_RESULT_H
#define WEFT_QUERY_RESULT_H

#include "nodes/pg_list.h"
#include "replication/walreceiver.h"

/* A value of a row, as text; NULL if it is null. */
typedef char *QueryValue;

extern List *query_result_rows(WalRcvExecResult *result, int columns);
extern char **query_result_row(WalRcvExecResult *result, int columns);

#endif							/* WEFT_QUERY_RESULT_H */
