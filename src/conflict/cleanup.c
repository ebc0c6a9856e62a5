/*
 * cleanup.c
 *	  Removing old rows of the tables of schema weft.
 */
#include "postgres.h"

#include "access/xact.h"
#include "conflict/cleanup.h"
#include "conflict/settings.h"
#include "conflict/store.h"
#include "conflict/tombstone.h"
#include "guc.h"
#include "replication/origin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* How often old rows are removed, at most and at least, in milliseconds. */
#define SHORTEST_CLEAN_INTERVAL 1000
#define CLEAN_INTERVAL 60000

/* So many rows of a table are removed at a time. */
#define CLEAN_ROWS 1000

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
cleanup_sometimes(void)
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
