/*
 * version.c
 *	  When and where something was written, and which of two versions is newer.
 *
 * Every row has a version: the commit time and the node of the transaction that wrote
 * it.  If a writer has applied the row, then its version is the publisher's, since the
 * writer's commit carries the time and the origin of the transaction that it applied; if
 * several share the commit, row_time.c has the row's own time.
 * Therefore all members of a group see the same version of the same change, and if each
 * keeps the newest one, they end with the same row, in whatever order the versions have
 * arrived.  The commit time decides first, then the node's id; of two changes by the
 * same node, the later one is the newer.
 *
 * For this to hold, what a session on node N1 writes must be newer than what the session
 * has found on N1, although the clock of another node N2 may be ahead of N1's.
 * Therefore a writer on N1 applies N2's transaction T only once N1's clock has passed
 * T's commit time (clock.c); every local transaction that can see T then commits at a
 * later time than T.  The writer waits before it takes any lock.  One requirement
 * remains: a node's own clock must not be set back.
 *
 * A row counts as older than everything if
 *
 *	 - its commit time is unknown, because the server does not track commit times or has
 *	   forgotten this one.  Sessions come here, too, if a table remembers what they
 *	   delete, and to ask the server for a commit time that it does not track is an
 *	   error.
 *	 - it was written under an origin that neither is nor was that of a node's
 *	   subscription.  Such a row was copied, and the time of the copy says nothing about
 *	   when the row was written.  If the subscription has been dropped,
 *	   weft.past_origin tells the node (past_origin.c), since the rows outlive the
 *	   subscription.
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "access/sysattr.h"
#include "access/transam.h"
#include "access/xact.h"
#include "conflict/remote_transaction.h"
#include "conflict/settings.h"
#include "conflict/version.h"

/*
 * Returns the version of the changes of a transaction.  Past origins come first: a
 * dropped subscription's origin may belong to another subscription by now.
 */
RowVersion
version_of_xid(TransactionId xid)
{
	RowVersion	result = {0};

	if (TransactionIdIsCurrentTransactionId(xid))
	{
		result = remote_transaction.version;
		result.known = result.own = true;
	}
	else if (TransactionIdIsNormal(xid) && track_commit_timestamp &&
			 TransactionIdGetCommitTsData(xid, &result.time, &result.origin))
	{
		if (settings_find_past_node(result.origin, xid, &result.node))
		{
			result.known = true;
			if (result.node >= 0)
				result.origin = UNKNOWN_ORIGIN;
			else
			{
				/*
				 * It was another number of the same subscription's origin, on
				 * the server from which this one was upgraded.
				 */
				result.origin = (RepOriginId) -result.node;
				result.node = 0;
				result.known = settings_find_node(result.origin, &result.node);
			}
		}
		else
			result.known = settings_find_node(result.origin, &result.node);
	}
	return result;
}

/*
 * Does this server not know when a transaction committed?  It forgets that once all rows are frozen
 * that are as old, and whenever "track_commit_timestamp" has been off.  Such a row is not
 * like one that was copied: it may be newer than what other nodes remember.
 */
bool
version_is_forgotten(TransactionId xid)
{
	TimestampTz time;

	return !TransactionIdIsCurrentTransactionId(xid) &&
		!(TransactionIdIsNormal(xid) && track_commit_timestamp &&
		  TransactionIdGetCommitTsData(xid, &time, NULL));
}

/*
 * Do two changes come from the same node?  If the local one's origin is unknown, then
 * the nodes' ids tell.  Without ids, two changes of the same time are taken to be of the
 * same transaction.
 */
static bool
same_source(const RowVersion *remote, const RowVersion *local)
{
	if (local->origin != UNKNOWN_ORIGIN)
		return local->origin == remote->origin;
	return local->node == remote->node && (local->node != 0 || local->time == remote->time);
}

/* Was it written by another node than the one whose transaction is being applied? */
bool
version_differs(const RowVersion *local)
{
	return local->known && !local->own && !same_source(&remote_transaction.version, local);
}

/* Is the first of two known versions the newer one?  If the times are equal, the node decides. */
bool
version_newer(const RowVersion *version, const RowVersion *than)
{
	if (version->time != than->time)
		return version->time > than->time;
	return version->node > than->node;
}

/* Does the remote version replace the local one? */
bool
version_wins(const RowVersion *remote, const RowVersion *local)
{
	if (!local->known || local->own || same_source(remote, local))
		return true;
	return version_newer(remote, local);
}

/* Returns the newest known version among rows (LocalRow). */
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

/* Returns the transaction that wrote a row. */
TransactionId
version_xmin(TupleTableSlot *row)
{
	bool		isnull;

	return DatumGetTransactionId(slot_getsysattr(row, MinTransactionIdAttributeNumber,
												 &isnull));
}

/*
 * Was a row last written by another node than the one whose transaction is being applied,
 * so that a change of it is a conflict?
 */
bool
conflict_origin_differs(TupleTableSlot *row)
{
	RowVersion	version = version_of_xid(version_xmin(row));

	/* Its own time may decide, which the general path finds out. */
	if (version.origin == UNKNOWN_ORIGIN && version.node == 0)
		return version.known;

	/* It may be the same node: its rows came with a physical copy. */
	if (version.origin == UNKNOWN_ORIGIN && remote_transaction.version.node == 0)
		(void) settings_find_node(remote_transaction.version.origin,
								  &remote_transaction.version.node);
	return version_differs(&version);
}
