/*
 * node_copy.h
 *	  Is another member of the group still the server that it was?
 */
#ifndef WEFT_NODE_COPY_H
#define WEFT_NODE_COPY_H

#include "access/xlogdefs.h"
#include "replication/walreceiver.h"

extern void node_copy_meet(WalReceiverConn *conn, const char *subscription,
						   const char *identity, XLogRecPtr applied);

#endif							/* WEFT_NODE_COPY_H */
