/*
 * local_object.c
 *	  Objects that depend on temporary or unlogged ones.
 *
 * Temporary and unlogged tables exist on the publisher only.  So does whatever depends on one: a function
 * that takes a row of a temporary table, a domain over an array of such rows, a view of an unlogged
 * table, a trigger that calls a function in pg_temp.  Such an object belongs to no table of its own, so it
 * is left out like what it depends on, in all statements about it.  The server drops what
 * depends on temporary objects at the end of the session, without any statement.
 *
 * A table's columns, defaults and constraints are different: the table is replicated, and stays when they
 * go.  Therefore a statement that gives a table such a part is refused (touched.c says so).  Since there
 * are none of them, what depends on a permanent table is not searched behind that.
 *
 * CREATE TABLE (LIKE t) leaves no dependency behind, but its text names t.  It is refused, too.
 *
 * Unlogged sequences have no rows that a subscriber could lack; they are replicated, unless they
 * belong to an unlogged table.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_rewrite.h"
#include "ddl/local_object.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

static LocalReason search_from(Oid class_id, Oid object_id, int sub_id, List **seen);

/* Marks an object as seen; returns false if it has been before. */
static bool
see(List **seen, Oid class_id, Oid object_id)
{
	ObjectAddress *address;

	foreach_ptr(ObjectAddress, other, *seen)
		if (other->objectId == object_id && other->classId == class_id)
		return false;
	address = palloc0(sizeof(ObjectAddress));
	ObjectAddressSet(*address, class_id, object_id);
	*seen = lappend(*seen, address);
	return true;
}

/* Searches behind the query of a view. */
static LocalReason
search_rules(Oid relid, List **seen)
{
	Relation	catalog = table_open(RewriteRelationId, AccessShareLock);
	LocalReason result = LOCAL_NOT;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_rewrite_ev_class, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(catalog, RewriteRelRulenameIndexId, true, NULL, 1, &key);
	while (result == LOCAL_NOT && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_rewrite form = (Form_pg_rewrite) GETSTRUCT(tuple);

		/* Other rules go, and the view stays. */
		if (form->ev_type == '1' && see(seen, RewriteRelationId, form->oid))
			result = search_from(RewriteRelationId, form->oid, LOCAL_ALL_COLUMNS, seen);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return result;
}

/* Returns the persistence of a relation, or '\0' if it is gone. */
char
local_object_persistence(Oid relid)
{
	return get_rel_relkind(relid) == '\0' ? '\0' : get_rel_persistence(relid);
}

/* Searches a relation that an object depends on, and behind it. */
static LocalReason
search_relation(Oid relid, List **seen)
{
	char		persistence = local_object_persistence(relid);

	if (persistence == RELPERSISTENCE_TEMP)
		return LOCAL_TEMPORARY;
	switch (get_rel_relkind(relid))
	{
		case RELKIND_VIEW:
		case RELKIND_MATVIEW:
			return search_rules(relid, seen);
		case RELKIND_COMPOSITE_TYPE:
		case RELKIND_SEQUENCE:
			return search_from(RelationRelationId, relid, LOCAL_ALL_COLUMNS, seen);
		default:
			return persistence == RELPERSISTENCE_UNLOGGED ? LOCAL_UNLOGGED : LOCAL_NOT;
	}
}

/*
 * Objects that depend on each other, such as a type and its functions, are dropped together.  So one may
 * be gone.
 */
static bool
is_in_temporary_schema(Oid class_id, Oid object_id)
{
	ObjectAddress address;

	ObjectAddressSet(address, class_id, object_id);
	return is_objectclass_supported(class_id) &&
		get_object_attnum_namespace(class_id) != InvalidAttrNumber &&
		SearchSysCacheExists1(get_object_catcache_oid(class_id), ObjectIdGetDatum(object_id)) &&
		isAnyTempNamespace(get_object_namespace(&address));
}

/* Searches an object that another one depends on, and behind it. */
static LocalReason
search(const Form_pg_depend dependency, List **seen)
{
	Oid			class_id = dependency->refclassid;

	/* What belongs to an extension or to the server is no session's. */
	if (dependency->refobjid < FirstNormalObjectId ||
		dependency->deptype == DEPENDENCY_EXTENSION ||
		dependency->deptype == DEPENDENCY_AUTO_EXTENSION ||
		!see(seen, class_id, dependency->refobjid))
		return LOCAL_NOT;
	if (class_id == NamespaceRelationId)
		return isAnyTempNamespace(dependency->refobjid) ? LOCAL_TEMPORARY : LOCAL_NOT;
	if (class_id == RelationRelationId)
		return search_relation(dependency->refobjid, seen);
	if (is_in_temporary_schema(class_id, dependency->refobjid))
		return LOCAL_TEMPORARY;
	return search_from(class_id, dependency->refobjid, LOCAL_ALL_COLUMNS, seen);
}

/* Searches behind a composite type, whose columns belong to a relation that depends on the type. */
static LocalReason
search_columns(Oid type, List **seen)
{
	Oid			relid = get_typ_typrelid(type);

	return OidIsValid(relid) && see(seen, RelationRelationId, relid) ?
		search_relation(relid, seen) : LOCAL_NOT;
}

/* Searches behind an object, or a column of one. */
static LocalReason
search_from(Oid class_id, Oid object_id, int sub_id, List **seen)
{
	Relation	catalog = table_open(DependRelationId, AccessShareLock);
	LocalReason result = class_id == TypeRelationId ? search_columns(object_id, seen) : LOCAL_NOT;
	ScanKeyData keys[3];
	SysScanDesc scan;
	HeapTuple	tuple;

	check_stack_depth();
	ScanKeyInit(&keys[0], Anum_pg_depend_classid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(class_id));
	ScanKeyInit(&keys[1], Anum_pg_depend_objid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(object_id));
	ScanKeyInit(&keys[2], Anum_pg_depend_objsubid, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(sub_id));
	scan = systable_beginscan(catalog, DependDependerIndexId, true, NULL,
							  sub_id == LOCAL_ALL_COLUMNS ? 2 : 3, keys);
	while (result == LOCAL_NOT && HeapTupleIsValid(tuple = systable_getnext(scan)))
		result = search((Form_pg_depend) GETSTRUCT(tuple), seen);
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return result;
}

/* Returns on what kind of object an object depends, or a column of one. */
LocalReason
local_object_reason(Oid class_id, Oid object_id, int sub_id)
{
	List	   *seen = NIL;
	char		relkind = class_id == RelationRelationId ? get_rel_relkind(object_id) : '\0';

	(void) see(&seen, class_id, object_id);
	if (relkind == RELKIND_VIEW || relkind == RELKIND_MATVIEW)
		return search_rules(object_id, &seen);
	return search_from(class_id, object_id, sub_id, &seen);
}

const char *
local_object_name(LocalReason reason)
{
	return reason == LOCAL_TEMPORARY ? "temporary" : "unlogged";
}

static bool
is_local_table(const RangeVar *name)
{
	char		persistence = local_object_persistence(RangeVarGetRelid(name, NoLock, true));

	return persistence == RELPERSISTENCE_TEMP || persistence == RELPERSISTENCE_UNLOGGED;
}

/* Is a statement about a partition only that subscribers do not have? */
bool
local_object_is_partition(Node *statement)
{
	if (!IsA(statement, AlterTableStmt))
		return false;
	foreach_node(AlterTableCmd, command, ((AlterTableStmt *) statement)->cmds)
		if (command->subtype == AT_AttachPartition || command->subtype == AT_DetachPartition ||
			command->subtype == AT_DetachPartitionFinalize)
		return is_local_table(((PartitionCmd *) command->def)->name);
	return false;
}

static RangeVar *
find_like(CreateStmt *statement)
{
	foreach_ptr(Node, element, statement->tableElts)
		if (IsA(element, TableLikeClause) &&
			is_local_table(((TableLikeClause *) element)->relation))
		return ((TableLikeClause *) element)->relation;
	return NULL;
}

/*
 * Returns the name of a temporary or unlogged table whose columns a statement copies, or NULL.  Called before
 * the statement is executed.
 */
RangeVar *
local_object_like(Node *statement)
{
	RangeVar   *result = NULL;

	if (IsA(statement, CreateStmt))
		return find_like((CreateStmt *) statement);
	if (IsA(statement, CreateSchemaStmt))
		foreach_ptr(Node, element, ((CreateSchemaStmt *) statement)->schemaElts)
			if (result == NULL && IsA(element, CreateStmt))
			result = find_like((CreateStmt *) element);
	return result;
}

/* Does a statement create a temporary table? */
bool
local_object_creates_temporary(Node *statement)
{
	const RangeVar *name = NULL;

	if (IsA(statement, CreateStmt))
		name = ((CreateStmt *) statement)->relation;
	else if (IsA(statement, CreateTableAsStmt))
		name = ((CreateTableAsStmt *) statement)->into->rel;
	return name != NULL && name->relpersistence == RELPERSISTENCE_TEMP;
}
