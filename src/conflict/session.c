/*
 * session.c
 *	  What a writer whose subscription has detect_conflicts does around applying.
 */
#include "postgres.h"

#include "access/xact.h"
#include "conflict/internal.h"
#include "pgstat.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "utils/memutils.h"

/* A unique violation is taken for an accident so many times in a row. */
#define MAX_RETRIES 5

/* How often old rows are removed, at most and at least, in milliseconds. */
#define SHORTEST_CLEAN_INTERVAL 1000
#define CLEAN_INTERVAL 60000

/* So many rows of a table are removed at a time. */
#define CLEAN_ROWS 1000

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
	version_wait_clock(commit_time);
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

static bool
remove_old(Oid table, Oid time_index, int retention)
{
	TimestampTz before = TimestampTzPlusSeconds(GetCurrentTimestamp(), -(int64) retention);

	return store_remove_old(table, time_index, before, CLEAN_ROWS) == CLEAN_ROWS;
}

/* Removes what is too old or too much; returns whether there may be more. */
static bool
clean(void)
{
	RepOriginId origin = replorigin_session_origin;
	const ConflictTables *tables;
	bool		more;

	/* This is nobody's transaction but ours. */
	replorigin_session_origin = InvalidRepOriginId;
	StartTransactionCommand();
	tables = settings_tables();
	more = remove_old(tables->history, tables->history_time_index,
					  weft_conflict_history_retention);
	more |= store_remove_low(tables->history, tables->history_key,
							 weft_conflict_history_max_rows, CLEAN_ROWS) == CLEAN_ROWS;
	more |= remove_old(tables->tombstone, tables->tombstone_time_index,
					   weft_tombstone_retention);
	more |= remove_old(tables->merged_row, tables->merged_row_time_index,
					   weft_tombstone_retention);
	more |= remove_old(tables->deleted_counter, tables->deleted_counter_time_index,
					   weft_tombstone_retention);
	more |= tombstone_add_times(CLEAN_ROWS);
	CommitTransactionCommand();
	replorigin_session_origin = origin;
	return more;
}

/*
 * A session has left a tombstone: if there is no writer, nobody else would remove old
 * ones.  It removes as many as it leaves.
 */
void
conflict_clean_sometimes(void)
{
	static int	left = 0;

	if (++left < CLEAN_ROWS)
		return;
	left = 0;
	(void) remove_old(settings_tables()->tombstone, settings_tables()->tombstone_time_index,
					  weft_tombstone_retention);
	(void) remove_old(settings_tables()->deleted_counter,
					  settings_tables()->deleted_counter_time_index,
					  weft_tombstone_retention);
}

/*
 * Removes old rows of our tables, if it is time for that; called between
 * transactions.  Returns after how many milliseconds to call again.
 */
long
conflict_clean(void)
{
	static TimestampTz cleaned = 0;
	TimestampTz now = GetCurrentTimestamp();
	int64		interval = Min(weft_conflict_history_retention, weft_tombstone_retention);

	interval = Min(Max(interval * 1000, SHORTEST_CLEAN_INTERVAL), CLEAN_INTERVAL);
	if (TimestampDifferenceExceeds(cleaned, now, interval))
	{
		MemoryContext old = CurrentMemoryContext;

		if (clean())
			interval = 0;
		else
			cleaned = now;
		MemoryContextSwitchTo(old);
		return interval;
	}
	return interval - TimestampDifferenceMilliseconds(cleaned, now);
}
