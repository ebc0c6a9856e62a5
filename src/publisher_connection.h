/*
 * publisher_connection.h
 *	  Connects to the publisher of a subscription.
 */
#ifndef WEFT_PUBLISHER_CONNECTION_H
#define WEFT_PUBLISHER_CONNECTION_H

#include "catalog/pg_subscription.h"
#include "replication/walreceiver.h"

extern const char *publisher_connection_string(const Subscription *subscription);
extern WalReceiverConn *publisher_connection_open(const Subscription *subscription,
												  bool replication);
extern WalReceiverConn *publisher_connection_open_by(const Subscription *subscription,
													 const char *connection);

#endif							/* WEFT_PUBLISHER_CONNECTION_H */
