/*
 * repair_origin.c
 *	  The replication origin, and the time, under which rows are repaired.
 *
 * The origin is the subscription's own, unless nodes of a group were compared.
 * What is repaired came from the publisher.  Therefore a subscriber of this server with
 * origin = none must not get it, and conflict detection must not take it for a local change.
 *
 * The leader has acquired the origin.  As with its writers (receive/writers.c), this process
 * shares it.  But its transactions carry no position: the origin's progress, here and
 * after a crash, only moves to positions that are greater, and none is less than zero.
 * Therefore it does not matter to the rows whether this process outlives the leader; from 19 on,
 * the next leader cannot start until this process has ended.  It holds a lock
 * on the subscription in each transaction that uses the origin, so that nobody drops the
 * origin.
 *
 * In a group, a row gets the version that it has on the other member: the time at which the node
 * that wrote it committed, and an origin that stands for this node.  That is
 *
 *	 - the origin of the subscription to the node, if there is one.  The process has acquired
 *	   another one; but only the transaction is marked with the origin, since it carries no position.
 *	 - otherwise, if the node is this one or has left the group, an origin "weft_repair_..." that
 *	   weft.past_origin assigns to the node for good (conflict/past_origin.c).  Rows of sessions have no origin,
 *	   but a transaction without one cannot be given a time, and would be sent to other members.
 *	 - DoNotReplicateId, which stands for no node, if the version is unknown: such a row is older than
 *	   everything, like one that was copied.
 *
 * No subscription of a group gets changes that have an origin.  Recovery needs a slot for the progress
 * of each origin that it meets.  Therefore one is taken for a new origin before it is used.
 *
 * The process must end when it is done: to reset its session's origin would release it for
 * the leader, too.
 */
#include "postgres.h"

#include "access/table.h"
#include "compat.h"
#include "conflict/settings.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "store.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/xid8.h"
#include "verify/repair_origin.h"

static RepOriginId session_origin = InvalidRepOriginId;

/* What the current transaction uses. */
static RepOriginId chosen_origin = InvalidRepOriginId;
static TimestampTz chosen_time;

/* Continues as before repair_origin_clear(). */
void
repair_origin_resume(void)
{
	replorigin_session_origin = chosen_origin;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = chosen_time;
}

/* What is written from here on is the publisher's. */
void
repair_origin_use(void)
{
	chosen_origin = session_origin;
	chosen_time = 0;
	repair_origin_resume();
}

/* Does an origin stand for a node for good? */
static bool
stands_for(RepOriginId origin, int node)
{
	int			found;

	return origin != InvalidRepOriginId &&
		settings_find_past_node(origin, ReadNextTransactionId(), &found) && found == node;
}

/*
 * Returns the origin of the subscription to a node, which cannot be dropped before the transaction
 * ends; an invalid one if there is none.
 */
static RepOriginId
subscription_origin(int node)
{
	const char *subscription = settings_subscription_of(node);
	char		name[NAMEDATALEN];
	Oid			subid;

	if (subscription == NULL)
		return InvalidRepOriginId;
	subid = get_subscription_oid(subscription, true);
	if (!OidIsValid(subid))
		return InvalidRepOriginId;
	LockSharedObject(SubscriptionRelationId, subid, 0, AccessShareLock);
	ReplicationOriginNameForLogicalRep(subid, InvalidOid, name, sizeof(name));
	return replorigin_by_name(name, true);
}

/*
 * What the current transaction writes has this version, and version->origin is set to the origin by
 * which conflict detection knows it.  Returns false, having done nothing, if
 * repair_origin_create() must be called for the node first.
 */
bool
repair_origin_use_version(RowVersion *version)
{
	RepOriginId origin = DoNotReplicateId;

	if (version->known)
	{
		origin = version->node == settings_own_node() ? InvalidRepOriginId :
			subscription_origin(version->node);
		version->origin = origin;
	}
	if (origin == InvalidRepOriginId)
	{
		origin = replorigin_by_name(settings_repair_origin_name(version->node), true);
		if (!stands_for(origin, version->node))
			return false;
		version->origin = UNKNOWN_ORIGIN;
	}
	chosen_origin = origin;
	chosen_time = version->known ? version->time : 0;
	repair_origin_resume();
	return true;
}

/* Makes an origin that stands for a node, in a transaction of its own that uses no origin. */
void
repair_origin_create(int node)
{
	Oid			table = settings_tables()->past_origin;
	RepOriginId origin;
	Datum		values[3];
	bool		nulls[3] = {0};

	/* Another process may be doing the same. */
	LockRelationOid(table, ShareUpdateExclusiveLock);
	AcceptInvalidationMessages();
	origin = replorigin_by_name(settings_repair_origin_name(node), true);
	if (stands_for(origin, node))
		return;
	if (origin == InvalidRepOriginId)
		origin = replorigin_create(settings_repair_origin_name(node));
	replorigin_advance(origin, InvalidXLogRecPtr, InvalidXLogRecPtr, false, false);
	values[0] = ObjectIdGetDatum(origin);
	values[1] = Int32GetDatum(node);
	values[2] = FullTransactionIdGetDatum(FullTransactionIdFromU64(PG_UINT64_MAX));
	store_row(table, values, nulls);
	CacheInvalidateRelcacheByRelid(table);
}

/* What is written from here on is not; called before anything is rolled back, too. */
void
repair_origin_clear(void)
{
	replorigin_session_origin = InvalidRepOriginId;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;
}

static void
clear_at_exit(int code, Datum arg)
{
	repair_origin_clear();
}

/*
 * Becomes a user of the origin, which the subscription's leader has acquired; called once in
 * a process, within a transaction.
 */
void
repair_origin_init(const Subscription *subscription)
{
	SubscriptionShared *shared = shmem_find(subscription->oid);
	char		name[NAMEDATALEN];
	RepOriginId origin;

	ReplicationOriginNameForLogicalRep(subscription->oid, InvalidOid, name, sizeof(name));
	origin = replorigin_by_name(name, false);
	if (shared == NULL || shared->leader_pid == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" is not being applied", subscription->name),
				 errhint("Run ALTER SUBSCRIPTION ... ENABLE, and see the server log if it is enabled.")));
	before_shmem_exit(clear_at_exit, (Datum) 0);
	shmem_share_origin();
	replorigin_session_setup(origin, shared->leader_pid);
	session_origin = origin;
}
