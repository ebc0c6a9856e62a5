/*
 * connection.h
 *	  Slots and the beginning of the stream.
 */
#ifndef WEFT_CONNECTION_H
#define WEFT_CONNECTION_H

#include "guc.h"
#include "replication/walreceiver.h"

extern char *connection_create_slot(WalReceiverConn *conn, const char *slotname,
									bool temporary, bool two_phase, bool failover,
									CRSSnapshotAction snapshot_action, XLogRecPtr *lsn);
extern bool connection_start_streaming(WalReceiverConn *conn,
									   const WalRcvStreamOptions *options);

/* What the publisher was asked for when streaming began, and can do. */
extern XLogRecPtr connection_confirmed(void);
extern bool connection_sends_batches(void);
extern Compression connection_compression(void);
extern bool connection_outdated(void);

#endif							/* WEFT_CONNECTION_H */
