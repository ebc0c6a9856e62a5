/*
 * applied_position.c
 *	  How far a subscription has been applied here.
 */
#include "postgres.h"

#include "applied_position.h"
#include "compat.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "shmem.h"

/*
 * Returns the position on the publisher up to which the subscription has been applied; zero
 * if that is not known.  The apply worker's position is reset when the worker restarts.  The
 * origin's position is not, but it lags as long as nothing is published.
 */
XLogRecPtr
applied_position(Oid subid)
{
	SubscriptionShared *entry = shmem_find(subid);
	XLogRecPtr	applied = entry ? pg_atomic_read_u64(&entry->applied_lsn) : InvalidXLogRecPtr;
	char		origin_name[NAMEDATALEN];
	RepOriginId origin;

	ReplicationOriginNameForLogicalRep(subid, InvalidOid, origin_name, sizeof(origin_name));
	origin = replorigin_by_name(origin_name, true);
	if (origin != InvalidRepOriginId)
		applied = Max(applied, replorigin_get_progress(origin, false));
	return applied;
}
