/*
 * publisher.h
 *	  Connections to the publisher of a subscription, for callers who own the subscription.
 */
#ifndef WEFT_VERIFY_PUBLISHER_H
#define WEFT_VERIFY_PUBLISHER_H

#include "catalog/pg_subscription.h"
#include "replication/walreceiver.h"

/*
 * Returns the subscription of that name or OID, from the syscache only.  Fails if there is none, or if the
 * current user does not own it.  Allocated in the current memory context.
 */
extern Subscription *publisher_subscription(const char *name);
extern Subscription *publisher_subscription_by_oid(Oid subid);

/*
 * Opens an ordinary connection to the publisher, allocated in the current memory context;
 * whoever opens it calls walrcv_disconnect().  In it the settings of pinned_settings.c are in
 * force (client_encoding is this database's), row_security is off, transactions are read only,
 * and nothing times out.  Fails if the publisher is older than 15 or is a standby.
 * No message shows the connection string.
 */
extern WalReceiverConn *publisher_connect(const Subscription *subscription);

/*
 * The same with a connection string that the current user has given; it must have a password
 * unless that is a superuser.
 */
extern WalReceiverConn *publisher_connect_by(const Subscription *subscription,
											 const char *connection);

/*
 * Begins a transaction of that connection that sees what an exported snapshot sees
 * (cut_snapshot()).  Ends with "COMMIT", or with the connection.
 */
extern void publisher_import(WalReceiverConn *conn, const Subscription *subscription,
							 const char *snapshot);

#endif							/* WEFT_VERIFY_PUBLISHER_H */
