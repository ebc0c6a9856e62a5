/*
 * cleanup.c
 *	  Removes old rows from the tables of schema weft.
 *
 * Writers do that between transactions, in a transaction of their own.  If there is no
 * writer, then sessions whose deletes leave tombstones remove as many old ones.
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "conflict/cleanup.h"
#include "conflict/settings.h"
#include "conflict/time_expiry.h"
#include "conflict/tombstone.h"
#include "guc.h"
#include "replication/origin.h"
#include "row_time.h"
#include "store.h"
#include "utils/timestamp.h"

/* Bounds of the time between two removals, in milliseconds. */
#define SHORTEST_CLEAN_INTERVAL 1000
#define LONGEST_CLEAN_INTERVAL 60000

/* Up to this many rows of a table are removed at a time. */
#define CLEAN_ROWS 1000

static bool
remove_old(Oid table, Oid time_index, int retention)
{
	TimestampTz before = TimestampTzPlusSeconds(GetCurrentTimestamp(), -(int64) retention);

	return store_remove_old(table, time_index, before, CLEAN_ROWS, NULL, NULL) == CLEAN_ROWS;
}

/* Removes rows that are too old or too many.  Returns whether there may be more of them. */
static bool
clean(void)
{
	RepOriginId origin = replorigin_session_origin;
	const ConflictTables *tables;
	bool		more;

	/* This transaction applies no remote one. */
	replorigin_session_origin = InvalidRepOriginId;
	StartTransactionCommand();
	if (!OidIsValid(row_time_table()))
	{
		/* Without the extension there is nothing to remove. */
		CommitTransactionCommand();
		replorigin_session_origin = origin;
		return false;
	}
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
	more |= time_expiry_remove(CLEAN_ROWS);
	more |= tombstone_add_times(CLEAN_ROWS);
	CommitTransactionCommand();
	replorigin_session_origin = origin;
	return more;
}

/*
 * Called when a session has left a tombstone.  If there is no writer, then no other
 * process removes old tombstones.  Therefore a session removes as many as it leaves.
 */
void
cleanup_sometimes(void)
{
	/* By this session, which may leave them in many transactions. */
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
 * Removes old rows if it is time to do so; a writer calls this between transactions.
 * Returns the number of milliseconds after which to call it again.
 */
long
conflict_clean(void)
{
	static TimestampTz cleaned = 0; /* by this writer */
	TimestampTz now = GetCurrentTimestamp();
	int64		interval = Min(Min(weft_conflict_history_retention, weft_tombstone_retention),
							   weft_row_time_retention);

	interval = Min(Max(interval * 1000, SHORTEST_CLEAN_INTERVAL), LONGEST_CLEAN_INTERVAL);
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
