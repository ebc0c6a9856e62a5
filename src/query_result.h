/*
 * query_result.h
 *	  Answers of other servers.
 */
#ifndef WEFT_QUERY_RESULT_H
#define WEFT_QUERY_RESULT_H

#include "replication/walreceiver.h"

extern char **query_result_row(WalRcvExecResult *result, int columns);

#endif							/* WEFT_QUERY_RESULT_H */
