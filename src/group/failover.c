/*
 * failover.c
 *	  What the SQL functions need of C for members that fail over to a physical standby.
 *
 * sql/19-node-failover.sql has the protocol.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_subscription.h"
#include "connection_string.h"
#include "fmgr.h"
#include "group/remote.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "replication/logicallauncher.h"
#include "shmem.h"
#include "storage/lmgr.h"
#include "tcop/dest.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(weft_alter_slot_failover);
PG_FUNCTION_INFO_V1(weft_set_subscription_failover);
PG_FUNCTION_INFO_V1(weft_set_subscription_dsn);
PG_FUNCTION_INFO_V1(weft_start_apply);

/*
 * weft.alter_slot_failover(dsn text, node text, slot name, failover boolean)
 *
 * On another member; waits until nobody uses the slot.  No SQL function of the server does that.
 */
Datum
weft_alter_slot_failover(PG_FUNCTION_ARGS)
{
	char	   *dsn = text_to_cstring(PG_GETARG_TEXT_PP(0));
	char	   *node = text_to_cstring(PG_GETARG_TEXT_PP(1));
	const char *slot = quote_identifier(NameStr(*PG_GETARG_NAME(2)));
	Remote	   *remote;

	shmem_require();
	remote = remote_connect(dsn, node, true);
	PG_TRY();
	{
		remote_run(remote, psprintf("ALTER_REPLICATION_SLOT %s (FAILOVER %s)", slot,
									PG_GETARG_BOOL(3) ? "true" : "false"));
	}
	PG_FINALLY();
	{
		remote_close(remote);
	}
	PG_END_TRY();
	PG_RETURN_VOID();
}

/*
 * weft.set_subscription_failover(subid oid, failover boolean)
 *
 * The catalog alone: ALTER SUBSCRIPTION would change the slot, too, for which the subscription would
 * have to be disabled.  An apply worker does not look at this.
 */
Datum
weft_set_subscription_failover(PG_FUNCTION_ARGS)
{
	Oid			subid = PG_GETARG_OID(0);
	Relation	catalog = table_open(SubscriptionRelationId, RowExclusiveLock);
	HeapTuple	tuple;

	LockSharedObject(SubscriptionRelationId, subid, 0, AccessExclusiveLock);
	if (!object_ownercheck(SubscriptionRelationId, subid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_SUBSCRIPTION, get_subscription_name(subid, false));
	tuple = SearchSysCacheCopy1(SUBSCRIPTIONOID, ObjectIdGetDatum(subid));
	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("subscription with OID %u does not exist", subid)));
	((Form_pg_subscription) GETSTRUCT(tuple))->subfailover = PG_GETARG_BOOL(1);
	CatalogTupleUpdate(catalog, &tuple->t_self, tuple);
	table_close(catalog, RowExclusiveLock);
	PG_RETURN_VOID();
}

/*
 * weft.set_subscription_dsn(subscription name, node text, dsn text)
 *
 * ALTER SUBSCRIPTION ... CONNECTION, without a command that shows the connection string.
 */
Datum
weft_set_subscription_dsn(PG_FUNCTION_ARGS)
{
	AlterSubscriptionStmt *statement = makeNode(AlterSubscriptionStmt);
	PlannedStmt *planned = makeNode(PlannedStmt);
	char	   *node = text_to_cstring(PG_GETARG_TEXT_PP(1));
	char	   *dsn = text_to_cstring(PG_GETARG_TEXT_PP(2));

	shmem_require();
	connection_string_check(dsn, psprintf("node \"%s\"", node), !superuser());
	statement->kind = ALTER_SUBSCRIPTION_CONNECTION;
	statement->subname = pstrdup(NameStr(*PG_GETARG_NAME(0)));
	statement->conninfo = dsn;
	planned->commandType = CMD_UTILITY;
	planned->utilityStmt = (Node *) statement;
	planned->stmt_location = -1;
	ProcessUtility(planned, "ALTER SUBSCRIPTION", false, PROCESS_UTILITY_QUERY,
				   NULL, NULL, None_Receiver, NULL);
	PG_RETURN_VOID();
}

/*
 * weft.start_apply(subid oid)
 *
 * Starts the apply worker of an enabled subscription when the transaction commits, even if the last one
 * has failed just now: the launcher waits for wal_retrieve_retry_interval then.
 */
Datum
weft_start_apply(PG_FUNCTION_ARGS)
{
	ApplyLauncherForgetWorkerStartTime(PG_GETARG_OID(0));
	ApplyLauncherWakeupAtCommit();
	PG_RETURN_VOID();
}
