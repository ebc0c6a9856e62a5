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
#include "conflict/session.h"
#include "conflict/settings.h"
#include "conflict/version.h"

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

/* Returns the transaction that has written a row. */
TransactionId
version_xmin(TupleTableSlot *row)
{
	bool		isnull;

	return DatumGetTransactionId(slot_getsysattr(row, MinTransactionIdAttributeNumber,
												 &isnull));
}

/* Was a row last written by another origin than ours, so that it must be looked at? */
bool
conflict_origin_differs(TupleTableSlot *row)
{
	RowVersion	version = version_of_xid(version_xmin(row));

	return version_differs(&version);
}
