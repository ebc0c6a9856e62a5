/*
 * reception.c
 *	  How far the leader has received the publisher's stream.
 */
#include "postgres.h"

#include "receive/reception.h"
#include "seam/seam.h"
#include "utils/timestamp.h"

Reception	reception = {.socket = PGINVALID_SOCKET};

/* Called once in a leader. */
void
reception_start(WalReceiverConn *conn)
{
	reception.conn = conn;
	reception.received_time = GetCurrentTimestamp();
}

/*
 * Receives what the publisher has sent next, with the meaning of walrcv_receive: its
 * length, zero if there is nothing yet, -1 at the end of the stream.
 */
int
reception_take(char **message)
{
	int			length = (seam_native->walrcv_receive) (reception.conn, message,
														&reception.socket);

	if (length > 0)
	{
		reception.received_time = GetCurrentTimestamp();
		reception.ping_sent = false;
	}
	return length;
}
