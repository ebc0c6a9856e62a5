/*
 * node_identity.c
 *	  Who this node is in its group.
 *
 * Slots of a group are named after nodes, and a name may belong to another node by now: one
 * that joined after this node was parted by force, of which this node knows nothing.
 * Therefore a leader asks the publisher whether it knows this node by its identity, before
 * the leader uses a slot that may be the other node's.
 *
 * The tables are read below the level of SQL, because the owner of a subscription need not
 * have any right on them.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "node_identity.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"

/* Columns of weft.node_group_entry and weft.node_entry. */
#define GROUP_NAME 1
#define NODE_NAME 1
#define NODE_IS_LOCAL 4
#define NODE_IDENTITY 5
#define NODE_START_LSN 6
#define NODE_COPIED_LSN 8

/* Opens a table of the extension; returns NULL if there is none. */
Relation
node_identity_table(const char *name)
{
	Oid			relid = get_relname_relid(name, get_namespace_oid("weft", true));
	Oid			extension = get_extension_oid("weft", true);

	if (!OidIsValid(relid) || !OidIsValid(extension) ||
		getExtensionOfObject(RelationRelationId, relid) != extension)
		return NULL;
	return table_open(relid, AccessShareLock);
}

static Datum
value_of(Relation rel, HeapTuple tuple, AttrNumber column)
{
	bool		isnull;

	return heap_getattr(tuple, column, RelationGetDescr(rel), &isnull);
}

/* Version 0.1.0 of the extension does not have the last column. */
static char *
position_of(Relation rel, HeapTuple tuple, AttrNumber column)
{
	bool		isnull = true;
	Datum		value = 0;

	if (column <= RelationGetDescr(rel)->natts)
		value = heap_getattr(tuple, column, RelationGetDescr(rel), &isnull);
	return isnull ? NULL : psprintf("%X/%X", LSN_FORMAT_ARGS(DatumGetLSN(value)));
}

/* Returns the name of this node's group, or NULL. */
static char *
local_group(void)
{
	Relation	rel = node_identity_table("node_group_entry");
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *result = NULL;

	if (rel == NULL)
		return NULL;
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	if (HeapTupleIsValid(tuple = systable_getnext(scan)))
		result = pstrdup(NameStr(*DatumGetName(value_of(rel, tuple, GROUP_NAME))));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/* Reads this node's name and identity, as text, and the other members of its group. */
static List *
read_members(char **own_name, char **identity)
{
	char	   *group = local_group();
	Relation	rel = group ? node_identity_table("node_entry") : NULL;
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *local = NULL;
	List	   *result = NIL;

	*own_name = *identity = NULL;
	if (rel == NULL)
		return NIL;
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		char	   *name = pstrdup(NameStr(*DatumGetName(value_of(rel, tuple, NODE_NAME))));

		if (!DatumGetBool(value_of(rel, tuple, NODE_IS_LOCAL)))
		{
			NodeMember *member = palloc(sizeof(NodeMember));

			member->name = name;
			member->copied = position_of(rel, tuple, NODE_COPIED_LSN);
			result = lappend(result, member);
			continue;
		}
		local = name;
		*identity = DatumGetCString(DirectFunctionCall1(uuid_out,
														value_of(rel, tuple, NODE_IDENTITY)));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	if (local == NULL)
		return NIL;
	*own_name = local;

	/* In the form of weft.subscription_name(). */
	foreach_ptr(NodeMember, member, result)
		member->subscription = psprintf("weft_%s_%s_%s", group, member->name, local);
	return result;
}

/*
 * If a subscription is one to another member of this node's group, returns this node's
 * identity as text, else NULL.  Needs a transaction.
 */
char *
node_identity_for(const char *subscription)
{
	char	   *name;
	char	   *identity;

	foreach_ptr(NodeMember, member, read_members(&name, &identity))
		if (strcmp(member->subscription, subscription) == 0)
		return identity;
	return NULL;
}

/* Returns the other members of this node's group, as a list of NodeMember.  Needs a transaction. */
List *
node_identity_members(void)
{
	char	   *name;
	char	   *identity;

	return read_members(&name, &identity);
}

/* Returns the name of this node, or NULL outside of a group.  Needs a transaction. */
char *
node_identity_name(void)
{
	char	   *name;
	char	   *identity;

	(void) read_members(&name, &identity);
	return name;
}

/*
 * If this node was made from a physical copy of another one, returns where the copy ended, as text:
 * its own WAL begins there.  Otherwise, or outside of a group, returns NULL.  *of_source is where that of the other
 * node began, or NULL.  Needs a transaction.
 */
char *
node_identity_start(char **of_source)
{
	Relation	rel = node_identity_table("node_entry");
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *result = NULL;

	*of_source = NULL;
	if (rel == NULL)
		return NULL;
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		if (!DatumGetBool(value_of(rel, tuple, NODE_IS_LOCAL)))
			continue;
		result = position_of(rel, tuple, NODE_START_LSN);
		*of_source = position_of(rel, tuple, NODE_COPIED_LSN);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/*
 * Returns the name of the publication of this node's group, or NULL outside of a group.  Sets
 * *member_table to the table that changes whenever the answer does, or to InvalidOid.  Needs a
 * transaction.
 */
char *
node_identity_publication(Oid *member_table)
{
	Relation	rel = node_identity_table("node_entry");
	char	   *group = local_group();

	*member_table = InvalidOid;
	if (rel != NULL)
	{
		*member_table = RelationGetRelid(rel);
		table_close(rel, AccessShareLock);
	}
	return group ? psprintf("weft_%s", group) : NULL;
}

/*
 * Returns the OIDs of the subscriptions of this database to other members of its group.  Needs a
 * transaction.
 */
List *
node_identity_subscriptions(void)
{
	List	   *result = NIL;

	foreach_ptr(NodeMember, member, node_identity_members())
	{
		Oid			subscription = get_subscription_oid(member->subscription, true);

		if (OidIsValid(subscription))
			result = lappend_oid(result, subscription);
	}
	return result;
}
