/*
 * resync_table.c
 *	  weft.resync_table(): requests that a table of a subscription is copied again.
 *
 * The head of copy/replace.c has the protocol.  Locks, in this order, until the end of the
 * transaction: AccessShareLock on the table; AccessExclusiveLock on the subscription, then on
 * pg_subscription_rel, as ALTER SUBSCRIPTION takes them.  While they are held, no
 * subscription of this database can start; therefore the function must not run inside a
 * transaction block, where they could be held for long.  If the transaction is rolled back,
 * the subscription has been restarted, and nothing else.
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
#include "copy/replace.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "replication/logicallauncher.h"
#include "replication/worker_internal.h"
#include "shmem.h"
#include "storage/lmgr.h"
#include "subscription_settings.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(weft_resync_table);

static void
check_transaction(void)
{
	PreventCommandIfReadOnly("weft.resync_table()");
	if (IsTransactionBlock() || IsSubTransaction())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("weft.resync_table() cannot run inside a transaction block"),
				 errdetail("No subscription of this database can start until the transaction ends."),
				 errhint("Run it as a statement by itself.")));
}

/* Locks the subscription against ALTER and DROP, if the caller owns it. */
static Oid
lock_subscription(char *name)
{
	Oid			subid = get_subscription_oid(name, false);

	if (!object_ownercheck(SubscriptionRelationId, subid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_SUBSCRIPTION, name);
	LockSharedObject(SubscriptionRelationId, subid, 0, AccessExclusiveLock);

	/* It may have been dropped, renamed or given away meanwhile. */
	if (get_subscription_oid(name, false) != subid ||
		!object_ownercheck(SubscriptionRelationId, subid, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("subscription \"%s\" was changed concurrently", name)));
	return subid;
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
			   "Compare and repair the table instead.");
	if (subscription_settings_get(subid).detect_conflicts)
		refuse(name, "It detects conflicts, for which rows must keep the times of their changes.",
			   "Compare and repair the table instead.");
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

static void
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
	const char *obstacle = replace_obstacle(rel, subscription->runasowner ?
											subscription->owner : InvalidOid);

	if (obstacle)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table \"%s\" cannot be copied again", RelationGetRelationName(rel)),
				 errdetail_internal("%s", obstacle)));
}

/*
 * weft.resync_table(subscription name, "table" regclass)
 *
 * Returns once the request is stored, and the subscription's processes that did not know of
 * it have ended; the copy starts when the caller's transaction commits.  Fails, without
 * stopping anything, if the caller does not own the subscription, or the table cannot be
 * copied again.
 */
Datum
weft_resync_table(PG_FUNCTION_ARGS)
{
	char	   *name = NameStr(*PG_GETARG_NAME(0));
	Oid			relid = PG_GETARG_OID(1);
	Relation	rel;
	Relation	catalog;
	Subscription *subscription;
	Oid			subid;

	shmem_require();
	check_transaction();
	rel = relation_open(relid, AccessShareLock);
	subid = lock_subscription(name);
	catalog = table_open(SubscriptionRelRelationId, AccessExclusiveLock);
	subscription = GetSubscription(subid, false);
	check_subscription(subscription, subid, name);
	check_state(subid, rel, name);
	check_only_source(catalog, subid, rel);
	check_table(subscription, rel);

	logicalrep_worker_stop(subid, InvalidOid);
	logicalrep_worker_stop(subid, relid);
	replace_clean();
	replace_request(subid, relid);
	compat_injection_point("weft-resync-requested");

	table_close(catalog, NoLock);
	relation_close(rel, NoLock);
	ApplyLauncherForgetWorkerStartTime(subid);
	ApplyLauncherWakeupAtCommit();
	PG_RETURN_VOID();
}
