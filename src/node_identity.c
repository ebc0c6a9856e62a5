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
#include "utils/rel.h"

/* Columns of weft.node_group_entry and weft.node_entry. */
#define GROUP_NAME 1
#define NODE_NAME 1
#define NODE_IS_LOCAL 4
#define NODE_IDENTITY 5

/* Opens a table of the extension; returns NULL if there is none. */
static Relation
open_table(const char *name)
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

/* Returns the name of this node's group, or NULL. */
static char *
local_group(void)
{
	Relation	rel = open_table("node_group_entry");
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

/*
 * If a subscription is one to another member of this node's group, returns this node's
 * identity as text, else NULL.  Needs a transaction.
 */
char *
node_identity_for(const char *subscription)
{
	char	   *group = local_group();
	Relation	rel = group ? open_table("node_entry") : NULL;
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *local = NULL;
	char	   *identity = NULL;
	List	   *others = NIL;
	ListCell   *cell;

	if (rel == NULL)
		return NULL;
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		char	   *name = pstrdup(NameStr(*DatumGetName(value_of(rel, tuple, NODE_NAME))));

		if (!DatumGetBool(value_of(rel, tuple, NODE_IS_LOCAL)))
		{
			others = lappend(others, name);
			continue;
		}
		local = name;
		identity = DatumGetCString(DirectFunctionCall1(uuid_out,
													   value_of(rel, tuple, NODE_IDENTITY)));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);

	/* In the form of weft.subscription_name(). */
	foreach(cell, local ? others : NIL)
		if (strcmp(psprintf("weft_%s_%s_%s", group, (char *) lfirst(cell), local),
				   subscription) == 0)
		return identity;
	return NULL;
}
