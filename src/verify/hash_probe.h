/*
 * hash_probe.h
 *	  Checks that both servers make the same texts and hashes.
 */
#ifndef WEFT_VERIFY_HASH_PROBE_H
#define WEFT_VERIFY_HASH_PROBE_H

#include "catalog/pg_subscription.h"
#include "replication/walreceiver.h"

/*
 * Makes both servers compute texts and hashes of telling values of all common types, and fails with
 * an error that names the first type for which they differ.  "conn" is a connection as for
 * published_tables_get(); "convert" is PublishedTables.convert.  Runs a query here, too.  Call it
 * once per comparison, in a transaction, with the pinned settings in force here.
 */
extern void hash_probe_check(Subscription *subscription, WalReceiverConn *conn, bool convert);

#endif							/* WEFT_VERIFY_HASH_PROBE_H */
