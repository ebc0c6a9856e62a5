/*
 * remote_transaction.c
 *	  The remote transaction that a writer is applying, as conflict/ sees it.
 */
#include "postgres.h"

#include "compat.h"
#include "conflict/clock.h"
#include "conflict/remote_transaction.h"
#include "pgstat.h"
#include "replication/worker_internal.h"

/*
 * A transaction is retried at most this often after unique violations that a concurrent
 * session may have caused.
 */
#define MAX_RETRIES 5

RemoteTransaction remote_transaction;

/*
 * Called once in a writer.  "wait_oldest" waits until all earlier transactions are
 * committed; it returns false if another process needs the writer's locks meanwhile.
 */
void
conflict_init(SubscriptionShared *shared, bool (*wait_oldest) (void))
{
	remote_transaction.shared = shared;
	remote_transaction.wait_oldest = wait_oldest;
}

/* Called when an attempt to apply a transaction begins. */
void
conflict_attempt(void)
{
	remote_transaction.applying = false;
	memset(remote_transaction.met, 0, sizeof(remote_transaction.met));
}

/*
 * Called when a transaction begins, before it takes a lock, since this waits for the
 * clock.  The arguments are the publisher's: when the transaction committed, under which
 * ID, and where.
 */
void
conflict_begin(TimestampTz commit_time, TransactionId xid, XLogRecPtr lsn)
{
	RowVersion *version = &remote_transaction.version;

	memset(version, 0, sizeof(RowVersion));
	version->known = true;
	version->time = commit_time;
	version->origin = remote_transaction.shared->origin;
	remote_transaction.xid = xid;
	remote_transaction.lsn = lsn;
	clock_wait(commit_time);
}

/*
 * What the current transaction writes has this version, although it comes from no remote
 * transaction: rows are repaired (verify/).
 */
void
conflict_import(const RowVersion *version)
{
	remote_transaction.version = *version;
	remote_transaction.version.own = false;
	remote_transaction.final = true;
	remote_transaction.applying = true;
}

/* What is applied from here on belongs to a transaction that has begun already. */
void
conflict_resume(TimestampTz commit_time, TransactionId xid, XLogRecPtr lsn)
{
	remote_transaction.version.time = commit_time;
	remote_transaction.xid = xid;
	remote_transaction.lsn = lsn;
}

/* Called when the transaction has committed, and its decisions with it: counts them. */
void
conflict_committed(void)
{
	for (int i = 0; i < NUM_CONFLICT_KINDS; i++)
	{
		if (remote_transaction.met[i] == 0)
			continue;
		pg_atomic_fetch_add_u64(&remote_transaction.shared->conflicts[i],
								remote_transaction.met[i]);
#if HAVE_APPLY_CONFLICTS
		for (uint32 j = 0; i <= LAST_SERVER_KIND && j < remote_transaction.met[i]; j++)
			pgstat_report_subscription_conflict(MySubscription->oid,
												conflict_kind_of_server(i));
#endif
	}
}

/*
 * Called when an attempt has failed.  Returns whether another attempt may succeed: a
 * session may have stored the same unique value just after the writer looked for it, and
 * the next attempt will find the session's row.
 */
bool
conflict_may_retry(int sqlerrcode)
{
	if (!remote_transaction.applying || sqlerrcode != ERRCODE_UNIQUE_VIOLATION)
		return false;
	if (remote_transaction.retried_lsn != remote_transaction.lsn)
		remote_transaction.retries = 0;
	remote_transaction.retried_lsn = remote_transaction.lsn;
	return remote_transaction.retries++ < MAX_RETRIES;
}
