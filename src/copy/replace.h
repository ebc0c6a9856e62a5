/*
 * replace.h
 *	  Copies a table again whose rows are already there.
 */
#ifndef WEFT_COPY_REPLACE_H
#define WEFT_COPY_REPLACE_H

#include "replication/walreceiver.h"
#include "utils/rel.h"

/*
 * For weft.resync_table() and weft.cancel_resync(), whose transactions hold AccessExclusiveLock
 * on pg_subscription_rel.
 */
extern void replace_request(Oid subid, Oid relid, XLogRecPtr position);
extern XLogRecPtr replace_requested(Oid subid, Oid relid);
extern void replace_cancel(Oid subid, Oid relid);
extern void replace_clean(void);
extern const char *replace_obstacle(Relation rel, Oid owner);

/* The steps of a table synchronization worker, in this order; without a request, no-ops. */
extern void replace_check_request(void);
extern void replace_delete_rows(WalReceiverConn *conn);
extern char *replace_create_slot(WalReceiverConn *conn, const char *slotname, bool temporary,
								 bool two_phase, bool failover,
								 CRSSnapshotAction snapshot_action, XLogRecPtr *lsn);
extern bool replace_in_progress(void);
extern void replace_copied(WalReceiverConn *conn);

#endif							/* WEFT_COPY_REPLACE_H */
