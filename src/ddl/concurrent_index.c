/*
 * concurrent_index.c
 *	  Which index is there already when CREATE INDEX CONCURRENTLY is executed.
 *
 * An attempt that has failed may have left an invalid index behind, which must be dropped before the
 * next one.  The transaction that creates an index notes its OID in weft.ddl_concurrent
 * (concurrent_worker.c), so an index that a session here has left behind is never taken for
 * one of Weft's.
 *
 * A valid index of that name may have been created by a session here, or by another subscription: two
 * members of a node group have created it at the same time, or several publishers send the same
 * statement.  If it has the same definition, there is nothing to do.  Definitions are compared as
 * parse trees of what the server writes: the publisher sends what it has written itself (convert.c).
 * The text that an event trigger sends is that of a user; in that case, a definition may be the same, and
 * is not recognized.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "ddl/concurrent_index.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/ruleutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/* Returns the table of the index that DROP INDEX drops. */
static Oid
table_of_dropped(DropStmt *drop)
{
	Oid			index;

	if (drop->removeType != OBJECT_INDEX || list_length(drop->objects) != 1)
		return InvalidOid;
	index = RangeVarGetRelid(makeRangeVarFromNameList(linitial_node(List, drop->objects)),
							 NoLock, true);
	if (!OidIsValid(index) || get_rel_relkind(index) != RELKIND_INDEX)
		return InvalidOid;
	return IndexGetRelation(index, true);
}

/*
 * Returns the table that a concurrent statement locks first, or InvalidOid if there is none that belongs to
 * the current user.
 */
Oid
concurrent_index_table(Node *statement)
{
	Oid			table = InvalidOid;

	if (IsA(statement, IndexStmt))
		table = RangeVarGetRelid(((IndexStmt *) statement)->relation, NoLock, true);
	else if (IsA(statement, AlterTableStmt))
		table = RangeVarGetRelid(((AlterTableStmt *) statement)->relation, NoLock, true);
	else if (IsA(statement, DropStmt))
		table = table_of_dropped((DropStmt *) statement);
	if (!OidIsValid(table) || !object_ownercheck(RelationRelationId, table, GetUserId()))
		return InvalidOid;
	return table;
}

/*
 * Must a statement be executed in its place?  Rows that a unique index refuses may follow once it is dropped on the
 * publisher.
 */
bool
concurrent_index_must_be_plain(Node *statement)
{
	DropStmt   *drop = (DropStmt *) statement;
	HeapTuple	tuple;
	bool		result;

	if (!IsA(statement, DropStmt) || drop->removeType != OBJECT_INDEX ||
		list_length(drop->objects) != 1)
		return false;
	tuple = SearchSysCache1(INDEXRELID,
							ObjectIdGetDatum(RangeVarGetRelid(makeRangeVarFromNameList(linitial_node(List, drop->objects)),
															  NoLock, true)));
	if (!HeapTupleIsValid(tuple))
		return false;
	result = ((Form_pg_index) GETSTRUCT(tuple))->indisunique ||
		((Form_pg_index) GETSTRUCT(tuple))->indisexclusion;
	ReleaseSysCache(tuple);
	return result;
}

/* Returns an existing relation of the name of the index to be created, or InvalidOid. */
static Oid
find_namesake(IndexStmt *create, Oid table)
{
	return get_relname_relid(create->idxname, get_rel_namespace(table));
}

static bool
is_index_of(Oid index, Oid table)
{
	return get_rel_relkind(index) == RELKIND_INDEX && IndexGetRelation(index, true) == table;
}

/*
 * Returns the invalid index that an earlier attempt to create it, which has "made" an index, has left behind;
 * InvalidOid if there is none.  "statement" may be NULL.
 */
Oid
concurrent_index_leftover(Node *statement, Oid made)
{
	IndexStmt  *create = (IndexStmt *) statement;
	char	   *name;

	if (!OidIsValid(made) || (create != NULL && !IsA(create, IndexStmt)))
		return InvalidOid;

	/* The OID may belong to another relation by now. */
	name = get_rel_name(made);
	if (name == NULL || !OidIsValid(IndexGetRelation(made, true)) ||
		(create != NULL && create->idxname != NULL && strcmp(name, create->idxname) != 0))
		return InvalidOid;
	return get_index_isvalid(made) ? InvalidOid : made;
}

/* Drops an index. */
void
concurrent_index_drop(Oid index)
{
	ObjectAddress address;

	ObjectAddressSet(address, RelationRelationId, index);
	performDeletion(&address, DROP_RESTRICT, PERFORM_DELETION_INTERNAL);
	CommandCounterIncrement();
}

/* Would the statement create this index? */
static bool
is_same(IndexStmt *create, Oid index)
{
	List	   *trees = pg_parse_query(pg_get_indexdef_string(index));
	IndexStmt  *existing = castNode(IndexStmt, linitial_node(RawStmt, trees)->stmt);
	IndexStmt  *wanted = copyObject(create);

	/* Its table has been found, and tablespaces are not replicated. */
	wanted->relation->catalogname = existing->relation->catalogname;
	wanted->relation->schemaname = existing->relation->schemaname;
	wanted->relation->relname = existing->relation->relname;
	wanted->tableSpace = existing->tableSpace;
	wanted->concurrent = existing->concurrent;
	wanted->if_not_exists = existing->if_not_exists;
	return equal(wanted, existing);
}

/*
 * Is the index that a statement creates there already?  Fails if another one has its name.  If a session is
 * building it, waits for that.  Called as the statement's role, under its settings.
 */
bool
concurrent_index_exists(Node *statement)
{
	IndexStmt  *create = (IndexStmt *) statement;
	Oid			table = concurrent_index_table(statement);
	Oid			index;

	if (!IsA(statement, IndexStmt) || create->idxname == NULL || !OidIsValid(table))
		return false;
	index = find_namesake(create, table);
	if (OidIsValid(index) && is_index_of(index, table) && !get_index_isvalid(index))
	{
		/* Whoever builds it waits for all that have a snapshot. */
		InvalidateCatalogSnapshot();
		LockRelationOid(table, ShareUpdateExclusiveLock);
		index = find_namesake(create, table);
	}

	/* The server says that another relation has the name. */
	if (!OidIsValid(index) || !is_index_of(index, table))
		return false;
	if (!get_index_isvalid(index))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_TABLE),
				 errmsg("index \"%s\" exists already, and is not valid", create->idxname),
				 errdetail("A session here has begun to build it, and has not completed it."),
				 errhint("Drop the index.")));
	if (is_same(create, index))
		return true;
	if (!create->if_not_exists)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_TABLE),
				 errmsg("index \"%s\" exists already, with another definition", create->idxname),
				 errdetail("It is: %s", pg_get_indexdef_string(index)),
				 errhint("Drop or rename the index.")));
	return false;
}
