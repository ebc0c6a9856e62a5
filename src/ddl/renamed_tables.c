/*
 * renamed_tables.c
 *	  Tables whose rows arrive under another name while they are copied.
 *
 * The rows of a partition are sent under its own name or, with publish_via_partition_root, under that of
 * its root.  ALTER PUBLICATION, ATTACH PARTITION and DETACH PARTITION change the name.  Once
 * everything is copied, this needs nothing but that the subscription knows both names.  But the state of
 * a copy belongs to one name: it says up to which position changes under that name are ignored.  If rows
 * of a partition that is being copied arrive under the name of the root, which is READY, they are
 * applied although the copy has them, or will have them.
 *
 * When the message about the change, in transaction M, is applied, M runs alone, and the leader has
 * waited for the copies in progress (receive/ddl_rows.c).  No copy begins before M is committed.  Therefore
 * each table of the subscription is in one of these states:
 *
 *	 - READY, or SYNCDONE at a position before M: nothing is to be done.
 *	 - INIT: its copy has not begun.  Or DATASYNC, without a worker: its copy has failed, and begins
 *	   again.  It may need a schema change behind M to succeed, so M does not wait for it.
 *	 - SYNCDONE at a position S behind M.  Either its snapshot is newer than M; then its rows include those of
 *	   all transactions up to S.  Or its snapshot is older, and the worker that caught up has ended with M
 *	   itself; then rows that M has stored after its statement are missing, because they came under the new
 *	   name.  The position does not tell one from the other.
 *
 * The last two are called unsettled.  If the table under whose name rows are sent from M on, its ancestors
 * or its partitions are unsettled, no position is right for the new name.  So it is emptied and copied as
 * a whole (INIT), as newer_copy.c does.  This copy begins after M.  Relatives whose copy has not begun, or
 * has failed, become READY, for otherwise root and partition would both be copied; the slot and the
 * origin of a failed copy are dropped.  So does a relative in SYNCDONE, at S, as the server would have it: a later schema
 * change must not take its copy for one that is to be repeated (newer_copy.c).  No change under its
 * name arrives between M and S, unless a statement brings the name back.  All of this is committed with M.  What is done
 * on the publisher is not rolled back with it, but a copy that begins again drops the same slot.
 *
 * Only partitions that belong to the subscription are emptied, unless the subscription has applied changes of
 * the whole tree; the publisher may lack rows of others.  One that belongs to another subscription, too, is
 * not emptied: this is an error (newer_copy.c).
 *
 * Changes under the old name may not arrive after M, or the new copy might include them.  So, on the
 * publisher, the statement waits for transactions that have written to the partitions: ATTACH and DETACH
 * do, and membership.c sees to it for ALTER PUBLICATION.
 */
#include "postgres.h"

#include "catalog/pg_subscription_rel.h"
#include "compat.h"
#include "ddl/newer_copy.h"
#include "ddl/partition_tree.h"
#include "ddl/renamed_tables.h"
#include "publisher_connection.h"
#include "replication/logicalworker.h"
#include "replication/origin.h"
#include "replication/slot.h"
#include "replication/worker_internal.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "utils/lsyscache.h"

/* Has its copy not begun, or has it to begin again? */
static bool
is_to_be_copied(char state)
{
	return state == SUBREL_STATE_INIT || state == SUBREL_STATE_DATASYNC;
}

static char
state_of(Oid relid)
{
	XLogRecPtr	lsn;

	return GetSubscriptionRelState(MySubscription->oid, relid, &lsn);
}

/* The leader waits for these before it lets a schema change begin, so the next attempt succeeds. */
static void
refuse_copying(Oid relid)
{
	bool		works;

	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	works = compat_worker_find(MySubscription->oid, relid, true) != NULL;
	LWLockRelease(LogicalRepWorkerLock);
	if (works || state_of(relid) == SUBREL_STATE_FINISHEDCOPY)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("table \"%s\" of subscription \"%s\" is being copied",
						get_rel_name(relid), MySubscription->name),
				 errdetail("Its rows are sent under another name from here on.")));
}

/* Is the copy of a table unsettled when a transaction is applied that ends at this position? */
static bool
is_unsettled(Oid relid, XLogRecPtr final_lsn)
{
	XLogRecPtr	lsn;
	char		state = GetSubscriptionRelState(MySubscription->oid, relid, &lsn);

	if (state == SUBREL_STATE_SYNCDONE)
		return lsn > final_lsn;
	if (state == SUBREL_STATE_READY || state == SUBREL_STATE_UNKNOWN)
		return false;
	refuse_copying(relid);
	return true;
}

static void
set_state(Oid relid, char state, XLogRecPtr lsn)
{
	compat_update_subscription_rel(MySubscription->oid, relid, state, lsn);
	CommandCounterIncrement();
}

/* From now on a table is to be copied. */
static void
begin_copy(Oid relid)
{
	char		state = state_of(relid);

	if (state == SUBREL_STATE_UNKNOWN)
	{
		AddSubscriptionRelState(MySubscription->oid, relid, SUBREL_STATE_INIT,
								InvalidXLogRecPtr, false);
		CommandCounterIncrement();
	}
	else if (!is_to_be_copied(state))
		set_state(relid, SUBREL_STATE_INIT, InvalidXLogRecPtr);
	ereport(LOG,
			(errmsg("table \"%s\" of subscription \"%s\" is copied as a whole",
					get_rel_name(relid), MySubscription->name),
			 errdetail("The name under which the publisher sends its rows has changed before its initial copy was applied.")));
}

/*
 * Empties a table that is to be copied.  "members" are its partitions that belong to the
 * subscription.
 */
static void
empty_members(Oid relid, List *members)
{
	if (members == NIL || state_of(relid) != SUBREL_STATE_UNKNOWN)
		newer_copy_empty(relid);
	else
		foreach_oid(member, members)
			newer_copy_empty(member);
}

/*
 * Called after a statement since which rows may be sent under a table's name.  If its own copy or that of a
 * relative is unsettled, sees to it that it is copied, and adds the relatives that must
 * not be copied to *done.  Otherwise returns false.
 */
bool
renamed_tables_settle(Oid relid, XLogRecPtr final_lsn, List **done)
{
	List	   *members = NIL;
	List	   *unsettled = NIL;

	foreach_oid(each, partition_tree(relid, NoLock))
		if (each != relid && state_of(each) != SUBREL_STATE_UNKNOWN)
		members = lappend_oid(members, each);
	foreach_oid(relative, list_concat_copy(members, partition_ancestors(relid)))
		if (is_unsettled(relative, final_lsn))
		unsettled = lappend_oid(unsettled, relative);
	if (is_to_be_copied(state_of(relid)))
	{
		/* Its copy includes the rows of partitions that had another name. */
		refuse_copying(relid);
		if (members == NIL && unsettled == NIL)
			return true;
	}
	else if (unsettled == NIL)
		return false;

	empty_members(relid, members);
	begin_copy(relid);
	*done = list_concat_unique_oid(*done, unsettled);
	return true;
}

static void
drop_origin(Oid relid)
{
	char		name[NAMEDATALEN];

	ReplicationOriginNameForLogicalRep(MySubscription->oid, relid, name, sizeof(name));
	replorigin_drop_by_name(name, true, false);
}

/* Drops what the copy of a table may have left on the publisher and here. */
static void
forget_copy(Oid relid)
{
	WalReceiverConn *conn = publisher_connection_open(MySubscription, true);
	char		name[NAMEDATALEN];

	PG_TRY();
	{
		ReplicationSlotNameForTablesync(MySubscription->oid, relid, name, sizeof(name));
		ReplicationSlotDropAtPubNode(conn, name, true);
	}
	PG_FINALLY();
	{
		walrcv_disconnect(conn);
	}
	PG_END_TRY();
	drop_origin(relid);
}

/*
 * A table is about to leave the subscription.  If it is SYNCDONE, its worker may be about to drop the
 * slot, too, and takes its absence for success (slots.c).
 */
void
renamed_tables_leave(Oid relid)
{
	char		state = state_of(relid);

	if (state == SUBREL_STATE_READY)
		return;
	if (state != SUBREL_STATE_SYNCDONE)
		refuse_copying(relid);
	if (state != SUBREL_STATE_INIT)
		forget_copy(relid);
}

/* Called when renamed_tables_settle() has seen all tables: the names that are no longer sent. */
void
renamed_tables_finish(List *done)
{
	foreach_oid(relid, done)
	{
		XLogRecPtr	lsn;
		char		state = GetSubscriptionRelState(MySubscription->oid, relid, &lsn);

		if (state == SUBREL_STATE_DATASYNC)
			forget_copy(relid);
		else if (state == SUBREL_STATE_SYNCDONE)
			drop_origin(relid);
		if (is_to_be_copied(state) || state == SUBREL_STATE_SYNCDONE)
			set_state(relid, SUBREL_STATE_READY, lsn);
	}
}

/* Is a table part of one whose copy is unsettled?  Asked before DETACH PARTITION. */
bool
renamed_tables_is_part(Oid relid, XLogRecPtr final_lsn)
{
	foreach_oid(ancestor, partition_ancestors(relid))
		if (is_unsettled(ancestor, final_lsn))
		return true;
	return false;
}

/* The same table after DETACH PARTITION: it is copied by itself. */
void
renamed_tables_separate(Oid relid)
{
	empty_members(relid, NIL);
	begin_copy(relid);
}
