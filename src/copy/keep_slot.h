/*
 * keep_slot.h
 *	  The slot that keeps a table's changes on the publisher while the table is copied again.
 */
#ifndef WEFT_COPY_KEEP_SLOT_H
#define WEFT_COPY_KEEP_SLOT_H

#include "catalog/pg_subscription.h"
#include "replication/walreceiver.h"

extern XLogRecPtr keep_slot_create(WalReceiverConn *conn, const Subscription *subscription,
								   Oid relid, XLogRecPtr ready);
extern void keep_slot_drop(WalReceiverConn *conn, Oid subid, Oid relid);
extern bool keep_slot_usable(WalReceiverConn *conn, Oid subid, Oid relid, XLogRecPtr position);

#endif							/* WEFT_COPY_KEEP_SLOT_H */
