/*
 * table_sync.c
 *	  Are tables of the subscription being synchronized?
 *
 * While they are, the housekeeping of the server's apply loop is urgent: it starts table
 * synchronization workers and lets them catch up.  From 19 on, it also starts the worker
 * that synchronizes sequences.  That one needs nothing else of the loop, and applies nothing
 * that the writers do.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "compat.h"
#include "receive/table_sync.h"
#include "replication/worker_internal.h"
#include "storage/lwlock.h"
#include "utils/inval.h"
#include "utils/syscache.h"

/* When last read. */
static bool pending = false;
static bool sequences_pending = false;

static bool valid = false;		/* no state has changed since */

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
	pending = compat_subscription_tables(MySubscription->oid, true) != NIL ||
		MySubscription->twophasestate == LOGICALREP_TWOPHASE_STATE_PENDING;
	sequences_pending = compat_subscription_sequences(MySubscription->oid, true) != NIL;
	CommitTransactionCommand();
}

/* Were tables being synchronized when their state was last read? */
bool
table_sync_pending(void)
{
	return pending;
}

/* Were sequences to be synchronized then? */
bool
table_sync_sequences_pending(void)
{
	return sequences_pending;
}

/* Is it possible that tables are being synchronized now? */
bool
table_sync_possible(void)
{
	return pending || !valid;
}

/*
 * Is a table synchronization worker at work for a table?  It says SYNCDONE in shared memory before
 * the catalog has it.
 */
static bool
has_worker(Oid relid)
{
	bool		result;

	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	result = compat_worker_find(MySubscription->oid, relid, true) != NULL;
	LWLockRelease(LogicalRepWorkerLock);
	return result;
}

/*
 * Are there tables that get, or have got, rows as they were before what the leader has received
 * last?  A copy that has not begun will be of newer rows; so will one that has failed, which
 * begins again, and may have failed because it needs what the leader has received.  *interrupted tells
 * whether one of them has no worker, and needs one to go on.
 */
bool
table_sync_copying(bool *interrupted)
{
	MemoryContext old = CurrentMemoryContext;
	bool		own_transaction = !IsTransactionState();
	bool		result = false;

	*interrupted = false;
	if (!table_sync_possible())
		return false;
	if (own_transaction)
		StartTransactionCommand();
	foreach_ptr(SubscriptionRelState, table,
				compat_subscription_tables(MySubscription->oid, true))
	{
		bool		works = table->state != SUBREL_STATE_SYNCDONE && has_worker(table->relid);

		if (!works && table->state != SUBREL_STATE_FINISHEDCOPY)
			continue;
		if (!works)
			*interrupted = true;
		result = true;
	}
	if (own_transaction)
		CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	return result;
}
