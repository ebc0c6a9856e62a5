/*
 * publisher_connection.c
 *	  Connects to the publisher of a subscription.
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "connection_string.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "publisher_connection.h"

/*
 * Returns the connection string of a subscription, valid as long as the subscription or, if it has
 * to be made, the current memory context.  Needs no transaction.  Fails if the subscription
 * connects through a foreign server that its owner may not use.
 */
const char *
publisher_connection_string(const Subscription *subscription)
{
	MemoryContext context = CurrentMemoryContext;
	char	   *result;

	if (!COMPAT_CONNINFO_IS_MADE || IsTransactionState())
		return compat_conninfo(subscription);
	StartTransactionCommand();
	result = MemoryContextStrdup(context, compat_conninfo(subscription));
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return result;
}

static WalReceiverConn *
connect_publisher(const Subscription *subscription, const char *connection, bool replication,
				  bool must_use_password)
{
	char	   *error = NULL;
	WalReceiverConn *conn;

	load_file("libpqwalreceiver", false);
	conn = walrcv_connect(connection, replication, replication, must_use_password,
						  subscription->name, &error);
	if (conn == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not connect to the publisher of subscription \"%s\": %s",
						subscription->name, error)));
	return conn;
}

/*
 * Opens a connection with the subscription's own connection string, for logical "replication" or
 * an ordinary one, and demands a password if the server's apply worker would.  Allocated in the
 * current memory context; whoever opens it calls walrcv_disconnect().  Fails if that is not
 * possible; the message does not show the connection string.
 */
WalReceiverConn *
publisher_connection_open(const Subscription *subscription, bool replication)
{
	return connect_publisher(subscription, publisher_connection_string(subscription), replication,
							 subscription->passwordrequired && !subscription->ownersuperuser);
}

/*
 * Opens an ordinary connection with a connection string that the current user has given, and
 * demands a password from anybody but a superuser.  Otherwise as publisher_connection_open().
 */
WalReceiverConn *
publisher_connection_open_by(const Subscription *subscription, const char *connection)
{
	connection_string_check(connection, "the publisher", !superuser());
	return connect_publisher(subscription, connection, false, !superuser());
}
