/*
 * reception.h
 *	  How far the leader has received the publisher's stream.
 */
#ifndef WEFT_RECEPTION_H
#define WEFT_RECEPTION_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "receive/led_subscription.h"
#include "replication/walreceiver.h"

typedef struct Reception
{
	WalReceiverConn *conn;
	pgsocket	socket;			/* of conn; valid once the publisher has kept
								 * the leader waiting */

	XLogRecPtr	message_lsn;	/* of the current message */
	XLogRecPtr	received_lsn;	/* end of what has arrived */

	/*
	 * Everything that ends before this is in the ring or was given to the
	 * server's apply loop.  A message that is kept for the loop ends behind
	 * it.
	 */
	XLogRecPtr	settled_lsn;

	TimestampTz received_time;	/* when a message last arrived, on this clock */
	TimestampTz sent_time;		/* when it was sent, on the publisher's */
	bool		ping_sent;		/* since then */

	/* What the latest keepalive has told, and when it arrived. */
	XLogRecPtr	told_lsn;
	TimestampTz told_time;

	/* Transactions, and changes of streamed ones, since the last pause. */
	int			begun_since_pause;
} Reception;

/*
 * Global, since there is one stream in a leader, and each message moves these positions
 * in several modules.
 */
extern Reception reception;

extern void reception_start(WalReceiverConn *conn);
extern int	reception_take(char **message);
extern pgsocket reception_any_socket(void);

/* Shows in statistics how far the stream has arrived. */
static inline void
reception_show(void)
{
	pg_atomic_write_u64(&led.shared->received_lsn, reception.received_lsn);
}

/* Everything up to lsn has arrived. */
static inline void
reception_arrived(XLogRecPtr lsn)
{
	reception.received_lsn = Max(reception.received_lsn, lsn);
}

/* A keepalive has told how far the publisher has come. */
static inline void
reception_told(XLogRecPtr lsn)
{
	reception.told_lsn = lsn;
	reception.told_time = reception.received_time;
}

/* Everything that ends before lsn is in the ring. */
static inline void
reception_settled(XLogRecPtr lsn)
{
	reception.settled_lsn = Max(reception.settled_lsn, lsn);
}

#endif							/* WEFT_RECEPTION_H */
