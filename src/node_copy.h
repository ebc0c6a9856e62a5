/*
 * node_copy.h
 *	  Is another member of the group still the server that it was?
 */
#ifndef WEFT_NODE_COPY_H
#define WEFT_NODE_COPY_H

#include "access/xlogdefs.h"
#include "replication/walreceiver.h"

extern void node_copy_meet(WalReceiverConn *conn, Oid subid, const char *subscription,
						   const char *identity, XLogRecPtr applied);
extern void node_copy_leave(Oid subid, XLogRecPtr sent);

#endif							/* WEFT_NODE_COPY_H */
