/*
 * ddl_skip.c
 *	  Schema changes that users have applied by hand.
 *
 * weft.skip_ddl() stores a request in weft.ddl_skip.  The process that applies the schema change
 * finds it, does not execute the statement, but does everything else that belongs to it, and removes the
 * request, in the transaction of the schema change.  A schema change that is executed outside of the stream, and
 * that has failed, is given up at once (concurrent.c).
 *
 * A request is accepted only for what has failed.  Otherwise a wrong number would silently skip a
 * schema change of the future.  For the same reason, requests are dropped with their subscription: the
 * OID may be used again.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_subscription.h"
#include "ddl/concurrent.h"
#include "ddl/ddl_queue.h"
#include "ddl/ddl_skip.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "publication_settings.h"
#include "store.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* The columns of weft.ddl_skip. */
enum
{
	SKIP_SUBID,
	SKIP_ID,
	SKIP_REQUESTED_BY,
	SKIP_REQUESTED_AT,
	SKIP_COLUMNS
};

PG_FUNCTION_INFO_V1(weft_retry_ddl);
PG_FUNCTION_INFO_V1(weft_skip_ddl);

static object_access_hook_type previous_object_access_hook = NULL;

/* Returns weft.ddl_skip, or InvalidOid if the extension is not installed here. */
static Oid
find_table(void)
{
	if (!OidIsValid(publication_settings_queue()))
		return InvalidOid;
	return get_relname_relid("ddl_skip", get_namespace_oid("weft", true));
}

/*
 * Removes the requests of a subscription for one schema change, or for all if "id" is NULL.
 * Returns who has made one of them, or NULL if there was none.
 */
static char *
take(Oid subid, const int64 *id)
{
	Oid			relid = find_table();
	Relation	rel;
	Snapshot	snapshot;
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *result = NULL;

	if (!OidIsValid(relid))
		return NULL;
	rel = table_open(relid, RowExclusiveLock);
	ScanKeyInit(&keys[0], SKIP_SUBID + 1, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(subid));
	if (id)
		ScanKeyInit(&keys[1], SKIP_ID + 1, BTEqualStrategyNumber, F_INT8EQ,
					Int64GetDatum(*id));
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = systable_beginscan(rel, InvalidOid, false, snapshot, id ? 2 : 1, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Datum		name = heap_getattr(tuple, SKIP_REQUESTED_BY + 1, RelationGetDescr(rel), &isnull);

		result = pstrdup(NameStr(*DatumGetName(name)));
		store_remove(rel, tuple, snapshot);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
	return result;
}

/*
 * Has a user applied a schema change by hand?  Returns who, or NULL.  Called in the transaction
 * of the schema change.
 */
char *
ddl_skip_take(Oid subid, int64 id)
{
	return take(subid, &id);
}

/* Requests are dropped with their subscription. */
static void
object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (previous_object_access_hook)
		previous_object_access_hook(access, class_id, object_id, sub_id, arg);
	if (access != OAT_DROP || class_id != SubscriptionRelationId)
		return;
	(void) take(object_id, NULL);
	concurrent_forget(object_id);
}

/* Installs the hook; called once, while the postmaster loads the library. */
void
ddl_skip_install(void)
{
	previous_object_access_hook = object_access_hook;
	object_access_hook = object_access;
}

/* Returns a subscription, which must belong to the current user. */
static Oid
own_subscription(char *name)
{
	Oid			subid = get_subscription_oid(name, false);

	if (!object_ownercheck(SubscriptionRelationId, subid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_SUBSCRIPTION, name);
	return subid;
}

/* weft.skip_ddl(subscription name, id bigint) */
Datum
weft_skip_ddl(PG_FUNCTION_ARGS)
{
	char	   *subscription = NameStr(*PG_GETARG_NAME(0));
	int64		id = PG_GETARG_INT64(1);
	Oid			subid = own_subscription(subscription);
	char	   *user_name = GetUserNameFromId(GetUserId(), false);
	Datum		values[SKIP_COLUMNS];
	bool		nulls[SKIP_COLUMNS] = {0};
	NameData	user;

	if (concurrent_give_up(subid, subscription, id, user_name))
		PG_RETURN_VOID();
	if (concurrent_get(subid, id, false) != NULL || !ddl_queue_has_failed(subscription, id))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("schema change " INT64_FORMAT " of subscription \"%s\" has not failed",
						id, subscription),
				 errhint("Look for result \"failed\" in weft.ddl_history.")));
	(void) take(subid, &id);
	namestrcpy(&user, user_name);
	values[SKIP_SUBID] = ObjectIdGetDatum(subid);
	values[SKIP_ID] = Int64GetDatum(id);
	values[SKIP_REQUESTED_BY] = NameGetDatum(&user);
	values[SKIP_REQUESTED_AT] = TimestampTzGetDatum(GetCurrentTimestamp());
	store_row(find_table(), values, nulls);
	PG_RETURN_VOID();
}

/* weft.retry_ddl(subscription name, id bigint) */
Datum
weft_retry_ddl(PG_FUNCTION_ARGS)
{
	char	   *subscription = NameStr(*PG_GETARG_NAME(0));
	int64		id = PG_GETARG_INT64(1);
	Oid			subid = own_subscription(subscription);

	if (!concurrent_retry(subid, id))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("schema change " INT64_FORMAT " of subscription \"%s\" has not failed, or is no concurrent one",
						id, subscription),
				 errdetail("Other schema changes are tried again without that."),
				 errhint("Look for state \"failed\" in weft.ddl_concurrent.")));
	PG_RETURN_VOID();
}
