/*
 * session.c
 *	  The transaction that a writer applies, for the detection of conflicts.
 */
#include "postgres.h"

#include "compat.h"
#include "conflict/clock.h"
#include "conflict/session.h"
#include "pgstat.h"
#include "replication/worker_internal.h"

/* A unique violation is taken for an accident so many times in a row. */
#define MAX_RETRIES 5

ConflictSession conflict_session;

/*
 * Called once in a writer; "wait_oldest" waits until all earlier transactions are
 * committed, or returns false if somebody needs our locks.
 */
void
conflict_init(SubscriptionShared *shared, bool (*wait_oldest) (void))
{
	conflict_session.shared = shared;
	conflict_session.wait_oldest = wait_oldest;
}

/* An attempt to apply a transaction begins. */
void
conflict_attempt(void)
{
	conflict_session.applying = false;
	memset(conflict_session.met, 0, sizeof(conflict_session.met));
}

/*
 * A transaction begins: that of the publisher which committed at a time on its
 * clock, as xid, at an LSN.  No lock may be held.
 */
void
conflict_begin(TimestampTz commit_time, TransactionId xid, XLogRecPtr lsn)
{
	RowVersion *version = &conflict_session.version;

	memset(version, 0, sizeof(RowVersion));
	version->known = true;
	version->time = commit_time;
	version->origin = conflict_session.shared->origin;
	conflict_session.remote_xid = xid;
	conflict_session.lsn = lsn;
	clock_wait(commit_time);
}

/* The transaction is committed, and with it what was decided. */
void
conflict_committed(void)
{
	for (int i = 0; i < NUM_CONFLICT_KINDS; i++)
	{
		if (conflict_session.met[i] == 0)
			continue;
		pg_atomic_fetch_add_u64(&conflict_session.shared->conflicts[i],
								conflict_session.met[i]);
#if HAVE_APPLY_CONFLICTS
		for (uint32 j = 0; i <= LAST_SERVER_KIND && j < conflict_session.met[i]; j++)
			pgstat_report_subscription_conflict(MySubscription->oid, i);
#endif
	}
}

/*
 * An attempt has failed.  May it be that a session has stored the same value just
 * after we have looked, so that another attempt will find that?
 */
bool
conflict_may_retry(int sqlerrcode)
{
	static XLogRecPtr lsn = InvalidXLogRecPtr;
	static int	retries;

	if (!conflict_session.applying || sqlerrcode != ERRCODE_UNIQUE_VIOLATION)
		return false;
	if (lsn != conflict_session.lsn)
		retries = 0;
	lsn = conflict_session.lsn;
	return retries++ < MAX_RETRIES;
}
