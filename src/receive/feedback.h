/*
 * feedback.h
 *	  What the publisher is told about progress.
 */
#ifndef WEFT_FEEDBACK_H
#define WEFT_FEEDBACK_H

#include "access/xlogdefs.h"
#include "replication/walreceiver.h"

extern void feedback_start(void);
extern void feedback_native_committed(void);
extern void feedback_committed(XLogRecPtr remote_end, XLogRecPtr local_end);
extern bool feedback_flush_pending(void);
extern void feedback_publisher_waits(bool waits);
extern bool feedback_flush_when_idle(long *delay);
extern bool feedback_withheld(WalReceiverConn *conn, long *delay);
extern void feedback_send(WalReceiverConn *conn, XLogRecPtr received,
						  bool force, bool request_reply);
extern void feedback_flush(WalReceiverConn *conn, XLogRecPtr received);
extern void feedback_forward(WalReceiverConn *conn, const char *buffer, int length);
extern void feedback_synchronize_native(bool durable);

#endif							/* WEFT_FEEDBACK_H */
