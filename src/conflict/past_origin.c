/*
 * past_origin.c
 *	  Nodes whose subscription has been dropped.
 *
 * The origin of a row tells its node only while a subscription with that origin exists,
 * and the server may give the origin's number to the next subscription that is created.
 * But the rows of a node that has left are still newer than some changes of other nodes
 * that are in flight, and must count as such on all members.  Therefore DROP
 * SUBSCRIPTION stores the node that the origin stood for, and the next transaction id:
 * everything that earlier transactions wrote under that origin is that node's.  The
 * subscription's processes have ended by then.  The entry is stored in the transaction
 * that drops the subscription, and is never removed.
 *
 * Rows of sessions have no origin.  On a node that was made from a physical copy of another one, those of transactions
 * that came with the copy are the other node's: an entry for no origin (0) says so (sql/15-physical-copy.sql).
 *
 * A subscription without a node id (weft.conflict_node) is not remembered.  Its rows
 * then count as copied.  After pg_upgrade, it has an entry with a negative number instead of a node: that of
 * its origin on the new server (api/finish_upgrade.c).
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "conflict/past_origin.h"
#include "conflict/settings.h"
#include "known_origin.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "store.h"
#include "utils/lsyscache.h"
#include "utils/xid8.h"

/*
 * Returns the origin and node of a subscription that is about to be dropped.  The node is
 * 0 if nothing is to be remembered.  Fails after pg_upgrade, as long as the origin's number is
 * not the one that its rows have.
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
	if (result.node != 0 && known_origin_outdated())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" cannot be dropped before weft.finish_upgrade() has been called",
						subscription),
				 errdetail("Nobody would know which node has changed the rows that it has applied."),
				 errhint("Call weft.finish_upgrade() in this database, with the data directory of the old server.")));
	return result;
}

/* Stores the origin of a subscription that the current transaction has dropped. */
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
	/* Dropping a subscription makes all processes read it (settings.c). */
}
