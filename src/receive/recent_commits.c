/*
 * recent_commits.c
 *	  The publisher's transactions that were applied here, and perhaps are not visible there.
 *
 * A transaction is sent once its commit record is flushed, and becomes visible on the
 * publisher a little later, or, with synchronous replication, once the standbys have answered.
 * A snapshot for a cut must see everything that was applied here.  Therefore the leader
 * remembers the transactions that it has begun to apply.  Those that a snapshot sees are
 * forgotten: every later snapshot sees them, too.
 *
 * Memory is bounded: there are two generations, and when the newer one is full, or old, the
 * older one is forgotten.  A transaction that a snapshot has in progress and that is not
 * remembered was not applied here, unless it was before the leader began to remember.
 * It was not, if
 *
 *	- everything is remembered since an earlier snapshot that left no doubt; or
 *	- it began when the leader remembered already: its ID is at or beyond the "horizon"; or
 *	- nobody on the publisher waits for standbys: then a transaction becomes visible right after
 *	  its commit record is flushed, and the memory goes back far enough (MIN_AGE).
 *
 * Otherwise it is doubtful, and there is no cut while it is in progress.
 */
#include "postgres.h"

#include "access/xact.h"
#include "receive/led_subscription.h"
#include "receive/recent_commits.h"
#include "receive/reception.h"
#include "remote_query.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* Transactions in a generation.  Two generations use 4 MB. */
#define MAX_COMMITS (512 * 1024)

/* A generation begins with room for as many. */
#define FIRST_COMMITS 1024

/*
 * In milliseconds.  The publisher must not assign 2^30 transaction IDs in twice this time: IDs
 * that are farther apart cannot be compared.
 */
#define MAX_AGE (1800 * 1000)

/*
 * In milliseconds.  Between the flush of its commit record and its end, a process only needs
 * to be scheduled.
 */
#define MIN_AGE 10000

typedef struct Generation
{
	TransactionId *xids;
	int			count;
	int			size;
	TimestampTz since;
	TimestampTz until;			/* time of the newest one */
} Generation;

static Generation newer;
static Generation older;

static bool complete;			/* is all remembered that may be invisible? */
static TimestampTz since;		/* if not: since when */
static FullTransactionId horizon;	/* no ID from here on was assigned before;
									 * invalid: unknown */

static void
generation_start(Generation *generation)
{
	generation->size = FIRST_COMMITS;
	generation->xids = MemoryContextAlloc(led.context, FIRST_COMMITS * sizeof(TransactionId));
	generation->count = 0;
	generation->since = GetCurrentTimestamp();
}

/*
 * Begins to remember.  Called before the stream begins, outside of transactions.
 *
 * A snapshot's xmax would not do as the horizon: it is behind the newest transaction that has
 * ended, and others that have begun since then may be applied here, and wait for a standby.
 */
void
recent_commits_start(WalReceiverConn *conn)
{
	MemoryContext old = CurrentMemoryContext;
	RemoteValue *values;

	StartTransactionCommand();

	values = remote_query_row(conn, NULL,
							  "SELECT pg_catalog.pg_current_xact_id()::pg_catalog.text"
							  REMOTE_WITHOUT_STANDBYS, 1);
	horizon = values == NULL || values[0] == NULL ? InvalidFullTransactionId :
		FullTransactionIdFromU64(strtou64(values[0], NULL, 10) + 1);
	CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	complete = false;
	since = GetCurrentTimestamp();
}

/* Forgets the older generation. */
static void
forget_older(void)
{
	if (older.count > 0)
	{
		complete = false;
		since = older.until;
		horizon = InvalidFullTransactionId;
	}
	older.count = 0;
}

/* Begins a new generation. */
static void
rotate(TimestampTz now)
{
	Generation	empty;

	forget_older();
	empty = older;
	older = newer;
	newer = empty;
	newer.since = now;
}

/* Forgets what is too old to be compared. */
static void
forget_old(TimestampTz now)
{
	if (newer.count > 0 && TimestampDifferenceExceeds(newer.since, now, MAX_AGE))
		rotate(now);
	if (older.count > 0 && TimestampDifferenceExceeds(older.until, now, MAX_AGE))
		forget_older();
}

/* The leader is going to apply a transaction. */
void
recent_commits_add(TransactionId xid)
{
	if (newer.xids == NULL)
	{
		generation_start(&newer);
		generation_start(&older);
	}
	if (newer.count > 0 && newer.xids[newer.count - 1] == xid)
		return;
	forget_old(reception.received_time);
	if (newer.count == MAX_COMMITS)
		rotate(reception.received_time);
	if (newer.count == newer.size)
	{
		newer.size *= 2;
		newer.xids = repalloc(newer.xids, newer.size * sizeof(TransactionId));
	}
	newer.xids[newer.count++] = xid;
	newer.until = reception.received_time;
}

/* Is the transaction in the snapshot's list, given its distance from xmin? */
static bool
in_progress(const CutSnapshot *snapshot, uint32 distance)
{
	uint32		xmin = XidFromFullTransactionId(snapshot->xmin);
	int			low = 0;
	int			high = snapshot->num_in_progress;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (snapshot->in_progress[middle] - xmin < distance)
			low = middle + 1;
		else
			high = middle;
	}
	return low < snapshot->num_in_progress && snapshot->in_progress[low] - xmin == distance;
}

/* Does the snapshot see a transaction of the stream, which has committed? */
bool
recent_commits_sees(const CutSnapshot *snapshot, TransactionId xid)
{
	int32		distance = (int32) (xid - XidFromFullTransactionId(snapshot->xmax));

	if (distance >= 0)
	{
		/*
		 * Nobody has assigned that many IDs since the snapshot.  The ID is an
		 * old one.
		 */
		return distance > (1 << 30);
	}
	distance = (int32) (xid - XidFromFullTransactionId(snapshot->xmin));
	return distance < 0 || !in_progress(snapshot, distance);
}

/* Forgets what the snapshot sees. */
static void
forget_visible(Generation *generation, const CutSnapshot *snapshot)
{
	int			kept = 0;

	for (int i = 0; i < generation->count; i++)
		if (!recent_commits_sees(snapshot, generation->xids[i]))
			generation->xids[kept++] = generation->xids[i];
	generation->count = kept;
}

/* Returns a doubtful transaction of the snapshot, or an invalid one. */
static TransactionId
find_doubtful(const CutSnapshot *snapshot, TimestampTz now)
{
	TransactionId oldest;

	if (complete || (!snapshot->synchronous && TimestampDifferenceExceeds(since, now, MIN_AGE)))
		return InvalidTransactionId;

	/*
	 * From xmax on, the snapshot does not say which transactions are in
	 * progress.
	 */
	if (FullTransactionIdIsValid(horizon) && FullTransactionIdPrecedes(snapshot->xmax, horizon))
		return XidFromFullTransactionId(snapshot->xmax);
	if (snapshot->num_in_progress == 0)
		return InvalidTransactionId;

	oldest = snapshot->in_progress[0];
	if (FullTransactionIdIsValid(horizon))
	{
		uint64		id = U64FromFullTransactionId(snapshot->xmin) +
			(uint32) (oldest - XidFromFullTransactionId(snapshot->xmin));

		if (id >= U64FromFullTransactionId(horizon))
			return InvalidTransactionId;
	}
	return oldest;
}

/*
 * Does the snapshot see everything that the leader has begun to apply?  Called between
 * transactions.
 */
RecentCommits
recent_commits_check(const CutSnapshot *snapshot, TransactionId *doubtful)
{
	TimestampTz now = GetCurrentTimestamp();

	*doubtful = InvalidTransactionId;
	forget_old(now);
	forget_visible(&newer, snapshot);
	forget_visible(&older, snapshot);
	if (newer.count + older.count > 0)
		return RECENT_NOT_VISIBLE;

	*doubtful = find_doubtful(snapshot, now);
	if (TransactionIdIsValid(*doubtful))
	{
		if (!FullTransactionIdIsValid(horizon))
			horizon = snapshot->xmax;
		return RECENT_DOUBTFUL;
	}
	complete = true;
	return RECENT_ALL_VISIBLE;
}
