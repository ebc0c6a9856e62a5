/*
 * remote.h
 *	  Connections to other members of a node group.
 */
#ifndef WEFT_REMOTE_H
#define WEFT_REMOTE_H

#include "datatype/timestamp.h"
#include "remote_query.h"

typedef struct Remote
{
	WalReceiverConn *conn;
	const char *node;			/* its name, for messages */
	TimestampTz deadline;		/* zero if there is none */
} Remote;

extern Remote *remote_connect(const char *dsn, const char *node, bool replication);
extern Remote *remote_connect_until(const char *dsn, const char *node, TimestampTz deadline);
extern void remote_run(Remote *remote, const char *command);
extern RemoteValue *remote_row(Remote *remote, const char *query, int columns);
extern char *remote_value(Remote *remote, const char *query);
extern void remote_copy_in(Remote *remote, const char *command, const char *data);
extern void remote_begin_copy_out(Remote *remote, const char *command);
extern void remote_close(Remote *remote);

#endif							/* WEFT_REMOTE_H */
