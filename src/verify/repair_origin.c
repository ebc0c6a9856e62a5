/*
 * repair_origin.c
 *	  The replication origin under which rows are repaired: the subscription's own.
 *
 * What is repaired came from the publisher.  Therefore a subscriber of this server with
 * origin = none must not get it, and conflict detection must not take it for a local change.
 *
 * The leader has acquired the origin.  As with its writers (receive/writers.c), this process
 * shares it.  But its transactions carry no position: the origin's progress, here and
 * after a crash, only moves to positions that are greater, and none is less than zero.
 * Therefore it does not matter whether this process outlives the leader.  It holds a lock
 * on the subscription in each transaction that uses the origin, so that nobody drops the
 * origin.
 *
 * The process must end when it is done: to reset its session's origin would release it for
 * the leader, too.
 */
#include "postgres.h"

#include "replication/logicalworker.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "verify/repair_origin.h"

static RepOriginId session_origin = InvalidRepOriginId;

/* What is written from here on is the publisher's. */
void
repair_origin_use(void)
{
	replorigin_session_origin = session_origin;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;
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
	replorigin_session_setup(origin, shared->leader_pid);
	session_origin = origin;
}
