/*
 * remote_query.h
 *	  Queries, commands and data of COPY on other servers.
 */
#ifndef WEFT_REMOTE_QUERY_H
#define WEFT_REMOTE_QUERY_H

#include "nodes/pg_list.h"
#include "replication/walreceiver.h"
#include "wait_event.h"

/* No query has more columns. */
#define REMOTE_MAX_COLUMNS 9

/*
 * The end of a query that assigns a transaction ID, so that its commit does not wait for synchronous standbys, which may
 * be missing, or be this subscription.  The commit of a transaction that has written nothing waits for nobody, but
 * reading a catalog may write, by pruning a page, for example.
 */
#define REMOTE_WITHOUT_STANDBYS " FROM pg_catalog.set_config('synchronous_commit', 'local', true)"

/* A value of a row, as text; NULL if it is null. */
typedef char *RemoteValue;

typedef struct RemoteAnswer
{
	WalRcvExecStatus status;
	List	   *rows;			/* of arrays of RemoteValue */
	const char *problem;		/* NULL if the answer is as expected */
	int			sqlstate;		/* of the other server's error; else zero */
} RemoteAnswer;

extern RemoteAnswer remote_query(WalReceiverConn *conn, const char *purpose, const char *query,
								 WalRcvExecStatus expected, int columns);
extern RemoteValue *remote_query_row(WalReceiverConn *conn, const char *purpose,
									 const char *query, int columns);
extern XLogRecPtr remote_lsn(const char *value);
extern void remote_command(WalReceiverConn *conn, const char *purpose, const char *command);
extern int	remote_copy_receive(WalReceiverConn *conn, char **message, long timeout,
								WeftWaitEvent event);

#endif							/* WEFT_REMOTE_QUERY_H */
