/*
 * version.c
 *	  When and where something was written, and which of two is the newer.
 *
 * Every row has a version: commit time and node of the transaction that wrote it.
 * Of a row that a writer has applied it is the publisher's, since its commit
 * carries the time and the origin of the transaction that was applied.  So all
 * members of a group see the same version of the same change, and if each keeps
 * the newest of all it has met, they end with the same row, in whatever order they
 * have met them.  The time decides, then the node's id; of one node, what comes
 * later.
 *
 * For that, what a session does here must be newer than what it has found here,
 * though other nodes' clocks may be ahead of ours.  So a transaction is applied only
 * once our clock has passed its commit time (version_wait_clock); all local ones
 * that can see it commit later than that.  It waits before it has a lock.  What
 * remains is that a node's own clock must not be set back.
 *
 * A row whose commit time is not known any more, because the server has forgotten
 * it or does not track it, is older than everything.  Sessions come here, too, if a
 * table remembers what they delete; to look for a commit time that is not tracked would
 * be an error.  So is a row that was written
 * under an origin that is, and was, no subscription's of a node: it was copied, at a
 * time that has nothing to do with when it was made.  Of a subscription that is dropped
 * weft.past_origin keeps the node (past_origin.c), since its rows outlive it.
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "access/sysattr.h"
#include "access/transam.h"
#include "access/xact.h"
#include "conflict/internal.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "storage/latch.h"
#include "utils/wait_event.h"
#include "wait_event.h"

/* A clock that is so far ahead of ours is told of in the log, in milliseconds. */
#define REPORTED_SKEW 10000

/*
 * Returns the version that a transaction's changes have.  A node that is gone has no
 * subscription any more, and its origin may be another one's by now.
 */
RowVersion
version_of_xid(TransactionId xid)
{
	RowVersion	result = {0};

	if (TransactionIdIsCurrentTransactionId(xid))
	{
		result = conflict_session.version;
		result.known = result.own = true;
	}
	else if (TransactionIdIsNormal(xid) && track_commit_timestamp &&
			 TransactionIdGetCommitTsData(xid, &result.time, &result.origin))
	{
		if (settings_find_past_node(result.origin, xid, &result.node))
		{
			result.known = true;
			result.origin = UNKNOWN_ORIGIN;
		}
		else
			result.known = settings_find_node(result.origin, &result.node);
	}
	return result;
}

static TransactionId
xmin_of(TupleTableSlot *row)
{
	bool		isnull;

	return DatumGetTransactionId(slot_getsysattr(row, MinTransactionIdAttributeNumber,
												 &isnull));
}

/* Returns the version of a row of a table. */
RowVersion
version_of_local_row(Relation rel, Oid key_index, TupleTableSlot *row)
{
	TransactionId xmin = xmin_of(row);
	RowVersion	result = version_of_xid(xmin);

	/* A counter was merged into it, which does not make it newer. */
	if (conflict_has_delta_columns(RelationGetRelid(rel)))
		(void) merged_row_find(rel, key_index, row, xmin, &result);
	return result;
}

RowVersion
version_of_row(Target *target, TupleTableSlot *row)
{
	return version_of_local_row(target->rel, target->key_index, row);
}

/*
 * Have two changes come from the same node?  If one's origin is not known, the ids of
 * the nodes tell, unless they have none: then of one time, they are of one transaction.
 */
static bool
same_source(const RowVersion *remote, const RowVersion *local)
{
	if (local->origin != UNKNOWN_ORIGIN)
		return local->origin == remote->origin;
	return local->node == remote->node && (local->node != 0 || local->time == remote->time);
}

/* Was it written by somebody else than the publisher of what is being applied? */
bool
version_differs(const RowVersion *local)
{
	return local->known && !local->own && !same_source(&conflict_session.version, local);
}

/* Is the first of two known versions the newer one?  Of one time, the node decides. */
bool
version_newer(const RowVersion *version, const RowVersion *than)
{
	if (version->time != than->time)
		return version->time > than->time;
	return version->node > than->node;
}

/* Is the remote version to be kept, rather than the local one? */
bool
version_wins(const RowVersion *remote, const RowVersion *local)
{
	if (!local->known || local->own || same_source(remote, local))
		return true;
	return version_newer(remote, local);
}

/* Returns the newest version of some rows (LocalRow). */
RowVersion
version_newest(List *rows)
{
	RowVersion	result = {0};
	ListCell   *cell;

	foreach(cell, rows)
	{
		LocalRow   *row = lfirst(cell);

		if (!row->version.known)
			continue;
		if (!result.known || result.own || version_newer(&row->version, &result))
			result = row->version;
	}
	return result;
}

/* Was a row last written by another origin than ours, so that it must be looked at? */
bool
conflict_origin_differs(TupleTableSlot *row)
{
	RowVersion	version = version_of_xid(xmin_of(row));

	return version_differs(&version);
}

/* Waits until our clock has passed a time. */
void
version_wait_clock(TimestampTz time)
{
	static TimestampTz reported = 0;
	TimestampTz now;

	while ((now = GetCurrentTimestamp()) <= time)
	{
		long		ahead = TimestampDifferenceMilliseconds(now, time) + 1;

		if (ahead > REPORTED_SKEW &&
			TimestampDifferenceExceeds(reported, now, 60 * 1000))
		{
			reported = now;
			ereport(WARNING,
					(errmsg("the publisher's clock is ahead of ours by more than %ld ms, which delays subscription \"%s\"",
							ahead, MySubscription->name),
					 errhint("Synchronize the clocks of the servers.")));
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(ahead, 1000), wait_event_id(WEFT_WAIT_WRITER_CLOCK));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}
