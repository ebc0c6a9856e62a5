/*
 * fast_session.c
 *	  The fast path within the writer's local transaction.
 *
 * Each local transaction has an active snapshot.  The fast path looks nothing up with
 * it, but the server needs one to learn which old row versions may be pruned, and to read
 * values that are stored out of line.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fast/fast_session.h"
#include "replication/worker_internal.h"
#include "utils/snapmgr.h"

FastSession fast_session;

/* Begins the local transaction if there is none, and replaces the snapshot. */
void
fast_session_take_snapshot(void)
{
	SetCurrentStatementStartTimestamp();
	if (!IsTransactionState())
	{
		StartTransactionCommand();
		maybe_reread_subscription();
	}
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	PushActiveSnapshot(GetTransactionSnapshot());
	fast_session.has_snapshot = true;
}

void
fast_session_drop_snapshot(void)
{
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	fast_session.has_snapshot = false;
}
