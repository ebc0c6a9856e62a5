/*
 * past_origin.c
 *	  Nodes of which the subscription is dropped.
 *
 * A row's origin tells its node only while there is a subscription with that
 * origin, and the server gives the origin's number to the next one that is made.  But
 * rows of a node that is gone are still newer than some changes of others that are
 * on their way, and must be on all members alike.  So DROP SUBSCRIPTION stores which
 * node the origin has stood for, and the next transaction id: whatever was written
 * under that origin by an earlier transaction is that node's.  The subscription's
 * processes have ended by then.  This is stored in the same transaction, and kept.
 *
 * A subscription without a node's id (weft.conflict_node) is not remembered: its rows
 * are then as if they had been copied.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "commands/subscriptioncmds.h"
#include "conflict/past_origin.h"
#include "conflict/settings.h"
#include "conflict/store.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "utils/lsyscache.h"
#include "utils/xid8.h"

/*
 * Returns what a subscription that is about to be dropped leaves; its node is 0 if it
 * leaves nothing.
 */
ConflictLegacy
conflict_legacy(const char *subscription)
{
	ConflictLegacy result = {0};
	Oid			subid = get_subscription_oid(subscription, true);
	Oid			extension = get_extension_oid("weft", true);
	Oid			table = get_relname_relid("past_origin", get_namespace_oid("weft", true));
	char		name[NAMEDATALEN];

	if (!OidIsValid(subid) || !OidIsValid(extension) || !OidIsValid(table) ||
		getExtensionOfObject(RelationRelationId, table) != extension)
		return result;
	ReplicationOriginNameForLogicalRep(subid, InvalidOid, name, sizeof(name));
	result.origin = replorigin_by_name(name, true);
	result.node = settings_subscription_node(result.origin);
	return result;
}

/* The subscription is dropped, in the current transaction. */
void
conflict_leave(ConflictLegacy legacy)
{
	Datum		values[3];
	bool		nulls[3] = {0};

	if (legacy.node == 0)
		return;
	values[0] = ObjectIdGetDatum(legacy.origin);
	values[1] = Int32GetDatum(legacy.node);
	values[2] = FullTransactionIdGetDatum(ReadNextFullTransactionId());
	store_row(settings_tables()->past_origin, values, nulls);
	/* Dropping a subscription has everybody read it (settings.c). */
}
