/*
 * publisher_connection.c
 *	  Connects to the publisher of a subscription.
 */
#include "postgres.h"

#include "fmgr.h"
#include "publisher_connection.h"

/*
 * Opens a connection with the subscription's own connection string, for logical "replication" or
 * an ordinary one, and demands a password if the server's apply worker would.  Allocated in the
 * current memory context; whoever opens it calls walrcv_disconnect().  Fails if that is not
 * possible; the message does not show the connection string.
 */
WalReceiverConn *
publisher_connection_open(const Subscription *subscription, bool replication)
{
	char	   *error = NULL;
	WalReceiverConn *conn;

	load_file("libpqwalreceiver", false);
	conn = walrcv_connect(subscription->conninfo, replication, replication,
						  subscription->passwordrequired && !subscription->ownersuperuser,
						  subscription->name, &error);
	if (conn == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not connect to the publisher of subscription \"%s\": %s",
						subscription->name, error)));
	return conn;
}
