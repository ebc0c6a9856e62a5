/*
 * time_expiry.c
 *	  Removes times of rows that no conflict can need.
 *
 * Let row R be last changed at time t by a transaction of subscription S, and let g be the time of
 * its group (row_time.c).  With the exact time forgotten, R has the time g.  A change of time c
 * is decided in another way because of that only if c lies between t and g, both included.
 * Therefore weft.row_time is needed only while such a change may arrive:
 *
 *	 - Not from S: of two changes of the same node the later one to arrive is the newer.
 *	 - Not from a session here: its commit time is later than all that it finds (version.c).
 *	 - From another subscription that detects conflicts, as long as its passed time
 *	   (passed_time.c) is not later than both t and g.  It is compared with the time of
 *	   its own publisher's clock, as are c, t and g, so differing clocks do no harm.
 *	 - From a subscription that is created later: a node that joins starts with an empty
 *	   table, or where the member that is copied stands; so its changes are later than those
 *	   that have been applied there (group/recent.c), to which the same bound applies.
 *
 * The margin of the comparison is weft.row_time_retention.  It covers what a commit takes from
 * its commit time to its record in the WAL, and a subscription that is dropped and created again
 * to go on where it was.  No row is removed before that, so that sessions find exact times of
 * what has just arrived.  After weft.tombstone_retention each row is removed, as is everything else
 * that decides conflicts: a subscription that has been disabled for so long may bring deleted
 * rows back, too.
 *
 * So what is stored is what arrives within the retention, about 12 bytes for each changed row,
 * as long as all nodes keep up; and while one does not, what arrives meanwhile.
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "access/htup_details.h"
#include "compat.h"
#include "conflict/passed_time.h"
#include "conflict/settings.h"
#include "conflict/time_expiry.h"
#include "guc.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "row_time.h"
#include "store.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "varatt.h"

/* How often an idle publisher is asked for its clock, in seconds. */
#define ASK_INTERVAL 60

typedef struct Expiry
{
	List	   *subscriptions;	/* PassedTime */
	TimestampTz oldest;			/* what is older than this goes in any case */
	RepOriginId own;			/* of the subscription that this writer
								 * applies */
	bool		own_is_behind;	/* a row is kept because of it */
	TimestampTz own_time;		/* its passed time */
} Expiry;

/* Returns the origin of a stored row, or InvalidRepOriginId if it does not tell the subscription. */
static RepOriginId
origin_of(TransactionId xid)
{
	TimestampTz time;
	RepOriginId origin;
	int			node;

	if (!TransactionIdGetCommitTsData(xid, &time, &origin) ||
		settings_find_past_node(origin, xid, &node))
		return InvalidRepOriginId;
	return origin;
}

/* Can no change arrive that is as old as this, if it is not of "origin"? */
static bool
is_passed(Expiry *expiry, TimestampTz time, RepOriginId origin)
{
	TimestampTz bound = TimestampTzPlusSeconds(time, (int64) weft_row_time_retention);
	bool		result = true;

	foreach_ptr(PassedTime, passed, expiry->subscriptions)
	{
		if (passed->time > bound || (origin != InvalidRepOriginId && passed->origin == origin))
			continue;
		result = false;
		if (passed->origin != expiry->own)
			continue;
		expiry->own_is_behind = true;
		expiry->own_time = passed->time;
	}
	return result;
}

/* Returns the latest time that a row of weft.row_time has. */
static TimestampTz
latest_time(TimestampTz committed, bytea *list)
{
	const char *next = VARDATA_ANY(list);
	const char *end = next + VARSIZE_ANY_EXHDR(list);
	int32		latest = 0;

	for (; next + sizeof(RowTimeEntry) <= end; next += sizeof(RowTimeEntry))
	{
		RowTimeEntry entry;

		memcpy(&entry, next, sizeof(entry));
		latest = Max(latest, entry.offset);
	}
	return committed + latest;
}

static bool
may_remove(Relation rel, HeapTuple tuple, void *arg)
{
	Expiry	   *expiry = arg;
	Datum		values[ROW_TIME_COLUMNS];
	bool		nulls[ROW_TIME_COLUMNS];
	TimestampTz committed;

	heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
	if (!track_commit_timestamp ||
		DatumGetTimestampTz(values[ROW_TIME_RECORDED - 1]) < expiry->oldest)
		return true;
	committed = DatumGetTimestampTz(values[ROW_TIME_COMMITTED - 1]);
	return is_passed(expiry,
					 latest_time(committed, DatumGetByteaPP(values[ROW_TIME_ENTRIES - 1])),
					 origin_of((TransactionId) DatumGetInt64(values[ROW_TIME_XID - 1])));
}

/*
 * Has nothing been applied for a while?  If the clocks differ, a question too many is asked, or
 * one is asked later.
 */
static bool
is_idle(TimestampTz passed, TimestampTz now)
{
	static TimestampTz asked = 0;
	int			interval = Min(weft_row_time_retention, ASK_INTERVAL) * 1000;

	if (!TimestampDifferenceExceeds(passed, now, interval) ||
		!TimestampDifferenceExceeds(asked, now, interval))
		return false;
	asked = now;
	return true;
}

/*
 * Removes those of the "limit" oldest rows of weft.row_time that are not needed.  If some are
 * because of the subscription at hand, asks how far it is.  Returns whether there may be more to
 * remove.  Called by a writer, in a transaction.
 */
bool
time_expiry_remove(int limit)
{
	const ConflictTables *tables = settings_tables();
	TimestampTz now = GetCurrentTimestamp();
	Expiry		expiry = {
		.subscriptions = passed_time_list(),
		.oldest = TimestampTzPlusSeconds(now, -(int64) weft_tombstone_retention)
	};
	int			removed;
	char		origin_name[NAMEDATALEN];

	ReplicationOriginNameForLogicalRep(MySubscription->oid, InvalidOid, origin_name,
									   sizeof(origin_name));
	expiry.own = replorigin_by_name(origin_name, true);
	removed = store_remove_old(tables->row_time, tables->row_time_time_index,
							   TimestampTzPlusSeconds(now, -(int64) Min(weft_row_time_retention,
																		weft_tombstone_retention)),
							   limit, may_remove, &expiry);
	if (expiry.own_is_behind && is_idle(expiry.own_time, now) && !passed_time_ask())
		elog(DEBUG1, "no background worker is available to ask for the publisher's clock");
	return removed > limit / 2;
}
