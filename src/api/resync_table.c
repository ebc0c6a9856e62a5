/*
 * resync_table.c
 *	  weft.resync_table(): requests that a table of a subscription is copied again;
 *	  weft.cancel_resync(): takes the request back.
 *
 * The head of copy/replace.c has the protocol.  Locks, in this order, until the end of the
 * transaction: AccessShareLock on the table, but not for a cancellation, which may be
 * needed because somebody waits for the table; AccessExclusiveLock on the subscription, then on
 * pg_subscription_rel, as ALTER SUBSCRIPTION takes them.  While they are held, no
 * subscription of this database can start; therefore the functions must not run inside a
 * transaction block, where they could be held for long.  The connection to the publisher is
 * made before that.  If the transaction is rolled back, the subscription, or the table's
 * synchronization, has been restarted, and nothing else.
 *
 * The slot that is created on the publisher is dropped if the function fails.  If that is not
 * possible, if the transaction is rolled back afterwards, or if the server crashes before the
 * commit, the subscription's next leader drops it (copy/slot_mark.c).
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/partition.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "compat.h"
#include "copy/keep_slot.h"
#include "copy/replace.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "publisher_connection.h"
#include "replication/logicallauncher.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "subscription_settings.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(weft_resync_table);
PG_FUNCTION_INFO_V1(weft_cancel_resync);

/* What a function has of the publisher. */
typedef struct Publisher
{
	WalReceiverConn *conn;
	const char *conninfo;
	Oid			subid;
	Oid			relid;
	bool		slot_created;
} Publisher;

static void
check_transaction(const char *function)
{
	shmem_require();
	PreventCommandIfReadOnly(function);
	if (IsTransactionBlock() || IsSubTransaction())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", function),
				 errdetail("No subscription of this database can start until the transaction ends."),
				 errhint("Run it as a statement by itself.")));
}

/* Returns the OID of a subscription that the caller owns. */
static Oid
find_subscription(char *name)
{
	Oid			subid = get_subscription_oid(name, false);

	if (!object_ownercheck(SubscriptionRelationId, subid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_SUBSCRIPTION, name);
	return subid;
}

static Publisher
connect_publisher(const Subscription *subscription, Oid relid)
{
	Publisher	result = {
		.conn = publisher_connection_open(subscription, true),
		.conninfo = publisher_connection_string(subscription),
		.subid = subscription->oid,
		.relid = relid
	};

	return result;
}

/* The function has failed, or its process ends. */
static void
leave_publisher(int code, Datum arg)
{
	Publisher  *publisher = (Publisher *) DatumGetPointer(arg);

	if (publisher->slot_created)
		keep_slot_drop(publisher->conn, publisher->subid, publisher->relid);
	walrcv_disconnect(publisher->conn);
}

/*
 * Locks the subscription against ALTER and DROP, and the tables of all subscriptions.  Sets
 * *catalog to their catalog.
 */
static Subscription *
lock_subscription(char *name, const Publisher *publisher, Relation *catalog)
{
	Subscription *result;

	LockSharedObject(SubscriptionRelationId, publisher->subid, 0, AccessExclusiveLock);
	*catalog = table_open(SubscriptionRelRelationId, AccessExclusiveLock);

	/* It may have been dropped, renamed, given away or changed meanwhile. */
	if (get_subscription_oid(name, true) != publisher->subid ||
		!object_ownercheck(SubscriptionRelationId, publisher->subid, GetUserId()) ||
		strcmp(publisher_connection_string(result = GetSubscription(publisher->subid, false)),
			   publisher->conninfo) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("subscription \"%s\" was changed concurrently", name)));
	return result;
}

static void
refuse(const char *subscription, const char *detail, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("tables of subscription \"%s\" cannot be copied again", subscription),
			 errdetail_internal("%s", detail),
			 errhint("%s", hint)));
}

static void
check_subscription(const Subscription *subscription, Oid subid, const char *name)
{
	if (subscription->twophasestate != LOGICALREP_TWOPHASE_STATE_DISABLED)
		refuse(name, "Its option \"two_phase\" is enabled: a prepared transaction may have changed the table.",
			   "Run CALL weft.compare_subscription, and then CALL weft.repair.");
	if (subscription_settings_get(subid).detect_conflicts)
		refuse(name, "It detects conflicts, for which rows must keep the times of their changes.",
			   "Run CALL weft.compare_node, and then weft.repair.");
	if (subscription->slotname == NULL)
		refuse(name, "It has no replication slot.", "Run ALTER SUBSCRIPTION ... SET (slot_name = ...).");
	if (strcmp(subscription->origin, LOGICALREP_ORIGIN_NONE) == 0)
		ereport(WARNING,
				(errmsg("changes that were made here, and that the publisher has not applied when the table is copied, will be lost"),
				 errdetail("Option \"origin\" of subscription \"%s\" is \"none\", so the publisher does not send them back.",
						   name)));
	if (max_sync_workers_per_subscription == 0)
		refuse(name, "No table synchronization worker can start.",
			   "Increase \"max_sync_workers_per_subscription\".");
}

/* Returns the position with which the table became READY. */
static XLogRecPtr
check_state(Oid subid, Relation rel, const char *subscription)
{
	XLogRecPtr	position;

	switch (GetSubscriptionRelState(subid, RelationGetRelid(rel), &position))
	{
		case SUBREL_STATE_READY:
			break;
		case SUBREL_STATE_UNKNOWN:
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("table \"%s\" is not part of subscription \"%s\"",
							RelationGetRelationName(rel), subscription),
					 errhint("See \"pg_subscription_rel\" for its tables.")));
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" of subscription \"%s\" is being synchronized",
							RelationGetRelationName(rel), subscription),
					 errhint("Call weft.wait_for_subscription first.")));
	}
	return position;
}

/* Tables with which "rel" has rows in common: itself, its partitions, and their ancestors. */
static List *
related_tables(Relation rel)
{
	List	   *result = list_make1_oid(RelationGetRelid(rel));

	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		result = find_all_inheritors(RelationGetRelid(rel), AccessShareLock, NULL);
	if (rel->rd_rel->relispartition)
		result = list_concat(result, get_partition_ancestors(RelationGetRelid(rel)));
	return result;
}

/* Fails if rows of the table come from another subscription or table, too. */
static void
check_only_source(Relation catalog, Oid subid, Relation rel)
{
	List	   *related = related_tables(rel);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription_rel form = (Form_pg_subscription_rel) GETSTRUCT(tuple);

		if (list_member_oid(related, form->srrelid) &&
			!(form->srsubid == subid && form->srrelid == RelationGetRelid(rel)))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("table \"%s\" cannot be copied again", RelationGetRelationName(rel)),
					 errdetail("Its rows also come from table \"%s\" of subscription \"%s\".",
							   get_rel_name(form->srrelid),
							   get_subscription_name(form->srsubid, false))));
	}
	systable_endscan(scan);
}

static void
check_table(const Subscription *subscription, Relation rel)
{
	Oid			user = subscription->runasowner ? subscription->owner : rel->rd_rel->relowner;
	const char *obstacle;

	/* As the copy would; it would fail again and again. */
	if (!member_can_set_role(subscription->owner, user))
		obstacle = psprintf("The subscription's owner \"%s\" cannot SET ROLE to \"%s\", which owns the table.",
							GetUserNameFromId(subscription->owner, false),
							GetUserNameFromId(user, false));
	else
		obstacle = replace_obstacle(rel, user);
	if (obstacle)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table \"%s\" cannot be copied again", RelationGetRelationName(rel)),
				 errdetail_internal("%s", obstacle)));
}

/* Where the table's rows stand; the head of copy/replace.c says why. */
static XLogRecPtr
position_of_rows(Oid subid, XLogRecPtr ready, XLogRecPtr confirmed)
{
	char		name[NAMEDATALEN];
	RepOriginId origin;
	XLogRecPtr	applied = InvalidXLogRecPtr;

	ReplicationOriginNameForLogicalRep(subid, InvalidOid, name, sizeof(name));
	origin = replorigin_by_name(name, true);
	if (origin != InvalidRepOriginId)
		applied = replorigin_get_progress(origin, true);
	return Max(applied, Max(ready, confirmed));
}

static void
request_copy(char *name, Relation rel, Publisher *publisher)
{
	Oid			subid = publisher->subid;
	Oid			relid = publisher->relid;
	Relation	catalog;
	Subscription *subscription = lock_subscription(name, publisher, &catalog);
	XLogRecPtr	ready;
	XLogRecPtr	confirmed;

	check_subscription(subscription, subid, name);
	ready = check_state(subid, rel, name);
	check_only_source(catalog, subid, rel);
	check_table(subscription, rel);

	compat_worker_stop(subid, InvalidOid);
	compat_worker_stop(subid, relid);
	replace_clean();
	confirmed = keep_slot_create(publisher->conn, subscription, relid, ready);
	publisher->slot_created = true;
	replace_request(subid, relid, position_of_rows(subid, ready, confirmed));
	compat_injection_point("weft-resync-requested");
	table_close(catalog, NoLock);
}

/*
 * weft.resync_table(subscription name, "table" regclass)
 *
 * Returns once the request is stored, and the subscription's processes that did not know of
 * it have ended; the copy starts when the caller's transaction commits.  Fails, without
 * stopping anything, if the caller does not own the subscription, the table cannot be
 * copied again, or the publisher cannot be reached.  Fails, too, if the publisher has no free
 * replication slot.
 */
Datum
weft_resync_table(PG_FUNCTION_ARGS)
{
	char	   *name = NameStr(*PG_GETARG_NAME(0));
	Oid			relid = PG_GETARG_OID(1);
	Relation	rel;
	Oid			subid;
	Subscription *subscription;
	Publisher	publisher;

	check_transaction("weft.resync_table()");
	/* Others must not even wait for the table. */
	subid = find_subscription(name);
	rel = relation_open(relid, AccessShareLock);
	subscription = GetSubscription(subid, false);
	check_subscription(subscription, subid, name);
	(void) check_state(subid, rel, name);
	publisher = connect_publisher(subscription, relid);
	PG_ENSURE_ERROR_CLEANUP(leave_publisher, PointerGetDatum(&publisher));
	{
		request_copy(name, rel, &publisher);
	}
	PG_END_ENSURE_ERROR_CLEANUP(leave_publisher, PointerGetDatum(&publisher));
	walrcv_disconnect(publisher.conn);

	relation_close(rel, NoLock);
	ApplyLauncherForgetWorkerStartTime(subid);
	ApplyLauncherWakeupAtCommit();
	PG_RETURN_VOID();
}

static void
cancel_request(char *name, Publisher *publisher)
{
	Oid			subid = publisher->subid;
	Oid			relid = publisher->relid;
	Relation	catalog;
	XLogRecPtr	position;

	(void) lock_subscription(name, publisher, &catalog);
	position = replace_requested(subid, relid);
	if (position == InvalidXLogRecPtr)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no copy of the table to cancel"),
				 errdetail("weft.resync_table() was not called for table %u of subscription \"%s\", or its copy is complete.",
						   relid, name)));
	if (!keep_slot_usable(publisher->conn, subid, relid, position))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the copy of table \"%s\" cannot be cancelled", get_rel_name(relid)),
				 errdetail("The publisher has not kept the changes of the table since the copy was requested."),
				 errhint("Let the copy complete.")));
	compat_worker_stop(subid, relid);
	replace_cancel(subid, relid);
	compat_injection_point("weft-resync-cancelled");
	table_close(catalog, NoLock);
}

/*
 * weft.cancel_resync(subscription name, "table" regclass)
 *
 * Returns once the cancellation is stored, and the copy has ended; the table keeps its old
 * rows, and catches up with the publisher from there.  Fails, without stopping anything, if
 * the caller does not own the subscription, the table is not being copied again or its copy is
 * complete, or the publisher cannot be reached or has not kept the table's changes.
 */
Datum
weft_cancel_resync(PG_FUNCTION_ARGS)
{
	char	   *name = NameStr(*PG_GETARG_NAME(0));
	Publisher	publisher;

	check_transaction("weft.cancel_resync()");
	publisher = connect_publisher(GetSubscription(find_subscription(name), false),
								  PG_GETARG_OID(1));
	PG_ENSURE_ERROR_CLEANUP(leave_publisher, PointerGetDatum(&publisher));
	{
		cancel_request(name, &publisher);
	}
	PG_END_ENSURE_ERROR_CLEANUP(leave_publisher, PointerGetDatum(&publisher));
	walrcv_disconnect(publisher.conn);
	PG_RETURN_VOID();
}
