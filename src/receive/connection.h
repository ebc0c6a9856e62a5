/*
 * connection.h
 *	  Slots and the beginning of the stream.
 */
#ifndef WEFT_CONNECTION_H
#define WEFT_CONNECTION_H

#include "replication/walreceiver.h"

extern char *connection_create_slot(WalReceiverConn *conn, const char *slotname,
									bool temporary, bool two_phase, bool failover,
									CRSSnapshotAction snapshot_action, XLogRecPtr *lsn);
extern bool connection_start_streaming(WalReceiverConn *conn,
									   const WalRcvStreamOptions *options);

#endif							/* WEFT_CONNECTION_H */
