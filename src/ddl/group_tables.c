/*
 * group_tables.c
 *	  Tables that schema changes bring into a node group.
 *
 * Members publish their tables one by one.  A table that is created on member A by a schema
 * change which is replicated belongs to the group from then on: on A, and on each member where
 * the schema change is applied, the transaction that creates the table also
 *	 - adds it to the member's publication;
 *	 - adds it, ready, to the member's subscriptions to all others, not only to A: another
 *	   member C may have the table earlier, and publish rows of it;
 *	 - makes it remember deleted rows, for conflict detection.
 *
 * A subscription ignores rows of tables that do not belong to it, so none may be missing.
 * Therefore a new subscription gets all tables that the member publishes, whatever the other
 * member publishes at that moment, while no transaction that creates tables is in progress
 * (schema_lock.c).  For the same reason, ALTER SUBSCRIPTION ... REFRESH PUBLICATION is not used
 * in groups: it would remove tables that the other member does not have yet.
 *
 * Rights.  Whoever creates a table may do all of this to it, but not to the publication and the
 * subscriptions.  Triggers are created as the owner of Weft's tables.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/extension.h"
#include "compat.h"
#include "ddl/group_tables.h"
#include "fmgr.h"
#include "local_query.h"
#include "node_identity.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(weft_member_follow_tables);

/* Does a node group replicate tables of this schema?  As weft.is_group_schema() has it. */
static bool
is_group_schema(const char *schema)
{
	return strcmp(schema, "weft") != 0 && strcmp(schema, "information_schema") != 0 &&
		strncmp(schema, "pg_", strlen("pg_")) != 0;
}

/* Does a node group replicate this relation?  As weft.group_tables() has it. */
static bool
is_group_table(Oid relid)
{
	char	   *schema = get_namespace_name(get_rel_namespace(relid));

	return schema != NULL && is_group_schema(schema) &&
		get_rel_relkind(relid) == RELKIND_RELATION &&
		get_rel_persistence(relid) == RELPERSISTENCE_PERMANENT &&
		!OidIsValid(getExtensionOfObject(RelationRelationId, relid));
}

static void
publish(Oid publication, Oid relid)
{
	PublicationRelInfo info = {0};

	info.relation = table_open(relid, ShareUpdateExclusiveLock);
	(void) compat_publication_add_relation(publication, &info, true);
	table_close(info.relation, NoLock);
}

/* Adds a table to a subscription, if it does not belong to it. */
static void
follow(Oid subscription, Oid relid)
{
	XLogRecPtr	lsn;

	if (GetSubscriptionRelState(subscription, relid, &lsn) == SUBREL_STATE_UNKNOWN)
		AddSubscriptionRelState(subscription, relid, SUBREL_STATE_READY,
								InvalidXLogRecPtr, false);
}

/* Makes tables remember what conflict detection needs, or remember it again if keys have changed. */
static void
track(const List *relids)
{
	foreach_oid(relid, relids)
		(void) local_value_of_weft(psprintf("SELECT weft.member_track_table(%u)", relid));
}

/*
 * A schema change that is replicated has created these relations: those that are tables of the
 * group become part of it.
 */
void
group_tables_add(Oid publication, const List *created)
{
	List	   *subscriptions = NIL;
	List	   *added = NIL;

	foreach_oid(relid, created)
	{
		if (!is_group_table(relid))
			continue;
		if (added == NIL)
			subscriptions = node_identity_subscriptions();
		added = lappend_oid(added, relid);
		publish(publication, relid);
		foreach_oid(subscription, subscriptions)
			follow(subscription, relid);
	}
	if (added == NIL)
		return;
	CommandCounterIncrement();
	track(added);
}

/* A schema change that is replicated has changed these tables: their keys may be others. */
void
group_tables_changed(const List *relids)
{
	List	   *changed = NIL;

	foreach_oid(relid, relids)
		if (is_group_table(relid))
		changed = lappend_oid(changed, relid);
	if (changed != NIL)
		track(changed);
}

/*
 * weft.member_follow_tables()
 *
 * Adds all tables that this member publishes to its group to its subscriptions to the other
 * members, if they do not belong to them.
 */
Datum
weft_member_follow_tables(PG_FUNCTION_ARGS)
{
	Oid			member_table;
	char	   *publication = node_identity_publication(&member_table);
	Oid			oid = publication ? get_publication_oid(publication, true) : InvalidOid;
	List	   *relids;

	if (!OidIsValid(oid))
		PG_RETURN_VOID();
	relids = compat_publication_relations(oid, PUBLICATION_PART_ROOT);
	foreach_oid(subscription, node_identity_subscriptions())
		foreach_oid(relid, relids)
		if (is_group_table(relid))
		follow(subscription, relid);
	PG_RETURN_VOID();
}
