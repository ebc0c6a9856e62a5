/*
 * table_sync.c
 *	  Are tables of the subscription being synchronized?
 *
 * While they are, the housekeeping of the server's apply loop is urgent: it starts table
 * synchronization workers and lets them catch up.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "receive/table_sync.h"
#include "replication/worker_internal.h"
#include "utils/inval.h"
#include "utils/syscache.h"

static bool pending = false;	/* when last read */
static bool valid = false;		/* no table's state has changed since */

static void
table_state_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	valid = false;
}

/* Called once in a leader. */
void
table_sync_init(void)
{
	CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP, table_state_changed, (Datum) 0);
}

/* Reads the state of tables if it has changed; called outside of transactions. */
void
table_sync_refresh(void)
{
	if (valid)
		return;
	/* An invalidation that arrives meanwhile resets this. */
	valid = true;
	StartTransactionCommand();
	pending = GetSubscriptionRelations(MySubscription->oid, true) != NIL ||
		MySubscription->twophasestate == LOGICALREP_TWOPHASE_STATE_PENDING;
	CommitTransactionCommand();
}

/* Were tables being synchronized when their state was last read? */
bool
table_sync_pending(void)
{
	return pending;
}

/* Is it possible that tables are being synchronized now? */
bool
table_sync_possible(void)
{
	return pending || !valid;
}
