/*
 * reception.c
 *	  How far the leader has received the publisher's stream.
 */
#include "postgres.h"

#include <unistd.h>

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

/*
 * Returns what the server's apply loop may wait for when it must not sleep.  The server tells the
 * socket only when nothing has arrived.  Until then, it is a pipe that nobody writes to.
 */
pgsocket
reception_any_socket(void)
{
	static int	substitute[2] = {-1, -1};

	if (reception.socket != PGINVALID_SOCKET)
		return reception.socket;
	if (substitute[0] < 0 && pipe(substitute) != 0)
		ereport(ERROR,
				(errcode_for_socket_access(),
				 errmsg("could not create a pipe: %m")));
	return substitute[0];
}
