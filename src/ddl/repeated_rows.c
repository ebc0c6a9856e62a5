/*
 * repeated_rows.c
 *	  Rows that code of a publisher's schema change stores.
 *
 * A schema change may call functions: those in a CHECK constraint, in an index or in the query of a materialized view.  If
 * such a function changes rows of tables that are replicated, the publisher sends these changes, and the subscriber,
 * which executes the schema change, too, would make them once more.  The publisher cannot refuse it: it cannot tell
 * such a function from that of an event trigger, which the subscriber does not call.  Therefore the schema change
 * fails on the subscriber.
 */
#include "postgres.h"

#include "catalog/objectaccess.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_subscription_rel.h"
#include "ddl/repeated_rows.h"
#include "executor/executor.h"
#include "nodes/parsenodes.h"
#include "replication/worker_internal.h"
#include "utils/lsyscache.h"

static ExecutorCheckPerms_hook_type previous_check_permissions = NULL;
static object_access_hook_type previous_object_access = NULL;

/* Is this process executing a publisher's schema change? */
static bool watching = false;

static bool
belongs(Oid relid)
{
	XLogRecPtr	lsn;

	return GetSubscriptionRelState(MySubscription->oid, relid, &lsn) != SUBREL_STATE_UNKNOWN;
}

/* Does a table belong to the subscription, itself or as part of a partitioned one? */
static bool
is_replicated(Oid relid)
{
	if (belongs(relid))
		return true;
	if (get_rel_relispartition(relid))
		foreach_oid(ancestor, get_partition_ancestors(relid))
			if (belongs(ancestor))
			return true;
	return false;
}

static void
refuse(Oid relid)
{
	if (!is_replicated(relid))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("the schema change calls a function that changes rows of table \"%s\"",
					get_rel_name(relid)),
			 errdetail("The table is replicated, so it would get these changes a second time."),
			 errhint("Replace the function here by one that changes no rows, until the schema change has been applied.")));
}

/* Locking rows needs the permission to update, too. */
static bool
changes_rows(const RTEPermissionInfo *info)
{
	return (info->requiredPerms & (ACL_INSERT | ACL_DELETE)) != 0 ||
		!bms_is_empty(info->updatedCols);
}

static bool
check_permissions(List *rangeTable, List *permissions, bool ereport_on_violation)
{
	if (watching)
		foreach_node(RTEPermissionInfo, info, permissions)
			if (changes_rows(info))
			refuse(info->relid);
	return previous_check_permissions == NULL ||
		previous_check_permissions(rangeTable, permissions, ereport_on_violation);
}

static void
object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (previous_object_access)
		previous_object_access(access, class_id, object_id, sub_id, arg);
	if (watching && access == OAT_TRUNCATE)
		refuse(object_id);
}

/* A publisher's schema change is about to be executed. */
void
repeated_rows_begin(void)
{
	watching = true;
}

/* It has been executed, or has failed. */
void
repeated_rows_end(void)
{
	watching = false;
}

/* Installs the hooks; called once, while the postmaster loads the library. */
void
repeated_rows_install(void)
{
	previous_check_permissions = ExecutorCheckPerms_hook;
	ExecutorCheckPerms_hook = check_permissions;
	previous_object_access = object_access_hook;
	object_access_hook = object_access;
}
