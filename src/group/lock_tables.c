/*
 * lock_tables.c
 *	  The tables of a schema change.
 *
 * A group lock holds back writers of the tables that a statement changes, with their partitions
 * and children, those at the other end of a foreign key, and those with a column of a type that it changes.
 *
 * Whoever may not change a table could hold back its writers by trying to.  Therefore only tables
 * count whose owner the user could be, or the owner of their schema, who may drop them.  For others, the
 * statement fails, and it does so before it locks anything (lock_tables_check_rights()).  The owner of a type may change it whoever has tables with it, and
 * who may refer to a table may make a foreign key.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "ddl/type_users.h"
#include "group/lock_tables.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "nodes/value.h"
#include "parser/parse_type.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

/* Is a table one that only this transaction knows? */
static bool
is_new(Oid relid)
{
	Relation	rel = RelationIdGetRelation(relid);
	bool		result;

	if (!RelationIsValid(rel))
		return true;
	result = rel->rd_createSubid != InvalidSubTransactionId;
	RelationClose(rel);
	return result;
}

/* May the user change a table, or drop it? */
static bool
may_change(Oid relid)
{
	return object_ownercheck(RelationRelationId, relid, GetUserId()) ||
		object_ownercheck(NamespaceRelationId, get_rel_namespace(relid), GetUserId());
}

/*
 * Adds a relation, or the table of an index, if it is a table that members share.  "entitled": the
 * statement may concern it whoever owns it.
 */
static List *
add_relation(List *tables, Oid relid, bool entitled)
{
	char		relkind = OidIsValid(relid) ? get_rel_relkind(relid) : '\0';

	if (relkind == RELKIND_INDEX || relkind == RELKIND_PARTITIONED_INDEX)
	{
		relid = IndexGetRelation(relid, true);
		relkind = OidIsValid(relid) ? get_rel_relkind(relid) : '\0';
	}
	if ((relkind != RELKIND_RELATION && relkind != RELKIND_PARTITIONED_TABLE) ||
		get_rel_persistence(relid) != RELPERSISTENCE_PERMANENT ||
		!(entitled || may_change(relid)))
		return tables;
	foreach_oid(each, find_all_inheritors(relid, NoLock, NULL))
		if (!is_new(each))
		tables = list_append_unique_oid(tables, each);
	return tables;
}

static List *
add_name(List *tables, RangeVar *name)
{
	return name ? add_relation(tables, RangeVarGetRelid(name, NoLock, true), false) : tables;
}

/* Adds a table that a new foreign key refers to. */
static List *
add_referenced(List *tables, RangeVar *name)
{
	Oid			relid = name ? RangeVarGetRelid(name, NoLock, true) : InvalidOid;

	if (!OidIsValid(relid))
		return tables;
	return add_relation(tables, relid,
						pg_class_aclcheck(relid, GetUserId(), ACL_REFERENCES) == ACLCHECK_OK ||
						pg_attribute_aclcheck_all(relid, GetUserId(), ACL_REFERENCES,
												  ACLMASK_ANY) == ACLCHECK_OK);
}

/* Adds the tables at the other end of the foreign keys of a table, or of those to it. */
static List *
add_foreign_keys(List *tables, Oid relid, AttrNumber end)
{
	Relation	catalog = table_open(ConstraintRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, end, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_constraint form = (Form_pg_constraint) GETSTRUCT(tuple);

		if (form->contype == CONSTRAINT_FOREIGN)
			tables = add_relation(tables, end == Anum_pg_constraint_conrelid ?
								  form->confrelid : form->conrelid, true);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return tables;
}

static List *
add_all_foreign_keys(List *tables)
{
	foreach_oid(relid, list_copy(tables))
	{
		tables = add_foreign_keys(tables, relid, Anum_pg_constraint_conrelid);
		tables = add_foreign_keys(tables, relid, Anum_pg_constraint_confrelid);
	}
	return tables;
}

/* Adds the tables with a column of a type, or of one that is made of it. */
static List *
add_users(List *tables, Oid type)
{
	foreach_oid(relid, type_users(type))
		tables = add_relation(tables, relid, true);
	return tables;
}

static List *
add_type(List *tables, List *names)
{
	Type		type = LookupTypeName(NULL, makeTypeNameFromNameList(names), NULL, true);
	Oid			oid;

	if (type == NULL)
		return tables;
	oid = ((Form_pg_type) GETSTRUCT(type))->oid;
	ReleaseSysCache(type);
	return object_ownercheck(TypeRelationId, oid, GetUserId()) ? add_users(tables, oid) : tables;
}

/* Returns the OIDs of the relations of a schema. */
static List *
relations_in(Oid schema)
{
	List	   *result = NIL;
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_class_relnamespace, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(schema));
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		result = lappend_oid(result, ((Form_pg_class) GETSTRUCT(tuple))->oid);
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return result;
}

/* Adds the tables of a schema. */
static List *
add_schema(List *tables, const char *name)
{
	Oid			schema = get_namespace_oid(name, true);

	if (OidIsValid(schema) && object_ownercheck(NamespaceRelationId, schema, GetUserId()))
		foreach_oid(relid, relations_in(schema))
			tables = add_relation(tables, relid, true);
	return tables;
}

/* Returns the name of a composite type as a list. */
static List *
names_of(RangeVar *name)
{
	return name->schemaname ?
		list_make2(makeString(name->schemaname), makeString(name->relname)) :
		list_make1(makeString(name->relname));
}

/*
 * Adds a partition that comes or goes, and the tables at the other end of foreign keys: those of the parent hold
 * for a partition that comes, and no row may refer to one that goes.
 */
static List *
add_partition(List *tables, RangeVar *parent, AlterTableCmd *command)
{
	Oid			relid = RangeVarGetRelid(parent, NoLock, true);

	tables = add_name(tables, ((PartitionCmd *) command->def)->name);
	if (!OidIsValid(relid) || !may_change(relid))
		return tables;
	if (command->subtype == AT_AttachPartition)
		return add_foreign_keys(tables, relid, Anum_pg_constraint_conrelid);
	if (command->subtype == AT_DetachPartition)
		return add_foreign_keys(tables, relid, Anum_pg_constraint_confrelid);
	return tables;
}

/* The other tables of an ALTER TABLE. */
static List *
add_commands(List *tables, AlterTableStmt *statement)
{
	foreach_node(AlterTableCmd, command, statement->cmds)
	{
		List	   *constraints = NIL;

		if (command->def == NULL)
			continue;
		if (IsA(command->def, Constraint))
			constraints = list_make1(command->def);
		else if (IsA(command->def, ColumnDef))
			constraints = ((ColumnDef *) command->def)->constraints;
		else if (IsA(command->def, PartitionCmd))
			tables = add_partition(tables, statement->relation, command);
		foreach_node(Constraint, constraint, constraints)
			if (constraint->contype == CONSTR_FOREIGN)
			tables = add_referenced(tables, constraint->pktable);
	}
	return tables;
}

/* Returns the names of the relations that a DROP is about, as RangeVars. */
static List *
dropped_relations(DropStmt *statement)
{
	List	   *result = NIL;

	foreach_ptr(Node, object, statement->objects)
	{
		List	   *names = (List *) object;

		switch (statement->removeType)
		{
				/* named after their tables */
			case OBJECT_POLICY:
			case OBJECT_RULE:
			case OBJECT_TRIGGER:
				names = list_truncate(list_copy(names), list_length(names) - 1);
				break;
			case OBJECT_INDEX:
			case OBJECT_SEQUENCE:
			case OBJECT_TABLE:
			case OBJECT_VIEW:
				break;
			default:
				return NIL;
		}
		result = lappend(result, makeRangeVarFromNameList(names));
	}
	return result;
}

static List *
add_dropped(DropStmt *statement)
{
	List	   *tables = NIL;

	foreach_node(RangeVar, name, dropped_relations(statement))
		tables = add_name(tables, name);
	foreach_ptr(Node, object, statement->objects)
	{
		if (statement->removeType == OBJECT_SCHEMA)
			tables = add_schema(tables, strVal(object));
		else if (statement->removeType == OBJECT_TYPE || statement->removeType == OBJECT_DOMAIN)
			tables = add_type(tables, castNode(TypeName, object)->names);
	}
	return statement->removeType == OBJECT_TABLE || statement->removeType == OBJECT_SCHEMA ?
		add_all_foreign_keys(tables) : tables;
}

/* Returns the OIDs of the tables that a statement changes, as far as its parse tree tells. */
List *
lock_tables_of(Node *statement)
{
	List	   *tables = NIL;

	switch (nodeTag(statement))
	{
		case T_AlterTableStmt:
			{
				AlterTableStmt *alter = (AlterTableStmt *) statement;

				if (alter->objtype == OBJECT_TYPE)
					return add_type(NIL, names_of(alter->relation));
				tables = add_name(NIL, alter->relation);
				return add_commands(tables, alter);
			}
		case T_IndexStmt:
			return add_name(NIL, ((IndexStmt *) statement)->relation);
		case T_RenameStmt:
			if (((RenameStmt *) statement)->renameType == OBJECT_SCHEMA)
				return add_schema(NIL, ((RenameStmt *) statement)->subname);
			return add_name(NIL, ((RenameStmt *) statement)->relation);
		case T_AlterObjectSchemaStmt:
			return add_name(NIL, ((AlterObjectSchemaStmt *) statement)->relation);
		case T_AlterOwnerStmt:
			return add_name(NIL, ((AlterOwnerStmt *) statement)->relation);
		case T_CreateTrigStmt:
			return add_name(NIL, ((CreateTrigStmt *) statement)->relation);
		case T_RuleStmt:
			return add_name(NIL, ((RuleStmt *) statement)->relation);
		case T_CreatePolicyStmt:
			return add_name(NIL, ((CreatePolicyStmt *) statement)->table);
		case T_AlterPolicyStmt:
			return add_name(NIL, ((AlterPolicyStmt *) statement)->table);
		case T_DropStmt:
			return add_dropped((DropStmt *) statement);
		case T_AlterDomainStmt:
			return add_type(NIL, ((AlterDomainStmt *) statement)->typeName);
		case T_AlterEnumStmt:
			return add_type(NIL, ((AlterEnumStmt *) statement)->typeName);
		case T_CreateStmt:
			{
				CreateStmt *create = (CreateStmt *) statement;

				foreach_node(RangeVar, parent, create->inhRelations)
					tables = add_name(tables, parent);
				return tables;
			}
		case T_CreateSchemaStmt:
			foreach_ptr(Node, element, ((CreateSchemaStmt *) statement)->schemaElts)
				tables = list_concat_unique_oid(tables, lock_tables_of(element));
			return tables;
		default:
			return NIL;
	}
}

/* Returns the relations that a statement changes, as RangeVars, if it is about nothing else. */
static List *
relations_of(Node *statement)
{
	RangeVar   *relation = NULL;

	switch (nodeTag(statement))
	{
		case T_AlterTableStmt:
			relation = ((AlterTableStmt *) statement)->relation;
			break;
		case T_IndexStmt:
			relation = ((IndexStmt *) statement)->relation;
			break;
		case T_RenameStmt:
			relation = ((RenameStmt *) statement)->relation;
			break;
		case T_AlterObjectSchemaStmt:
			relation = ((AlterObjectSchemaStmt *) statement)->relation;
			break;
		case T_CreateTrigStmt:
			relation = ((CreateTrigStmt *) statement)->relation;
			break;
		case T_RuleStmt:
			relation = ((RuleStmt *) statement)->relation;
			break;
		case T_CreatePolicyStmt:
			relation = ((CreatePolicyStmt *) statement)->table;
			break;
		case T_AlterPolicyStmt:
			relation = ((AlterPolicyStmt *) statement)->table;
			break;
		case T_DropStmt:
			return dropped_relations((DropStmt *) statement);
		default:
			break;
	}
	return relation ? list_make1(relation) : NIL;
}

/*
 * Looks at the objects that a DROP of something else than relations is about.  Returns whether they are all temporary,
 * or do not exist.  Fails if the user may not drop one, as the server does.
 */
static bool
dropped_are_local(DropStmt *statement)
{
	bool		result = true;

	switch (statement->removeType)
	{
		case OBJECT_AGGREGATE:
		case OBJECT_COLLATION:
		case OBJECT_CONVERSION:
		case OBJECT_DOMAIN:
		case OBJECT_FUNCTION:
		case OBJECT_OPCLASS:
		case OBJECT_OPERATOR:
		case OBJECT_OPFAMILY:
		case OBJECT_PROCEDURE:
		case OBJECT_ROUTINE:
		case OBJECT_SCHEMA:
		case OBJECT_STATISTIC_EXT:
		case OBJECT_TYPE:
			break;
		default:
			return false;
	}
	foreach_ptr(Node, object, statement->objects)
	{
		Relation	relation = NULL;
		ObjectAddress address = get_object_address(statement->removeType, object, &relation,
												   AccessShareLock, true);
		Oid			schema;

		Assert(relation == NULL);
		if (!OidIsValid(address.objectId))
			continue;
		schema = get_object_namespace(&address);
		if (!OidIsValid(schema) ||
			!object_ownercheck(NamespaceRelationId, schema, GetUserId()))
			check_object_ownership(GetUserId(), statement->removeType, address, object, NULL);
		if (!OidIsValid(schema) || !isTempNamespace(schema))
			result = false;
	}
	return result;
}

/* Fails if a type exists, and is not the user's. */
static void
check_type(List *names)
{
	Oid			type = LookupTypeNameOid(NULL, makeTypeNameFromNameList(names), true);

	if (OidIsValid(type) && !object_ownercheck(TypeRelationId, type, GetUserId()))
		aclcheck_error_type(ACLCHECK_NOT_OWNER, type);
}

/*
 * Fails if a relation exists, and the user may not change it.  Triggers may be created by others than its owner.
 */
static void
check_relation(RangeVar *name, Node *statement)
{
	Oid			relid = RangeVarGetRelid(name, NoLock, true);

	if (!OidIsValid(relid) || may_change(relid) ||
		(IsA(statement, CreateTrigStmt) &&
		 pg_class_aclcheck(relid, GetUserId(), ACL_TRIGGER) == ACLCHECK_OK))
		return;
	aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(get_rel_relkind(relid)), name->relname);
}

/* Fails if the user may not execute a statement, as far as that can be told from what it names. */
void
lock_tables_check_rights(Node *statement)
{
	foreach_node(RangeVar, name, relations_of(statement))
		check_relation(name, statement);
	if (IsA(statement, AlterDomainStmt))
		check_type(((AlterDomainStmt *) statement)->typeName);
	else if (IsA(statement, AlterEnumStmt))
		check_type(((AlterEnumStmt *) statement)->typeName);
	else if (IsA(statement, CreateStmt))
		foreach_node(RangeVar, parent, ((CreateStmt *) statement)->inhRelations)
			check_relation(parent, statement);
}

/* Is a statement only about objects that are temporary, or do not exist? */
bool
lock_tables_are_local(Node *statement)
{
	List	   *relations = relations_of(statement);

	if (relations == NIL && IsA(statement, DropStmt))
		return dropped_are_local((DropStmt *) statement);
	foreach_node(RangeVar, name, relations)
	{
		Oid			relid = RangeVarGetRelid(name, NoLock, true);

		if (OidIsValid(relid) && get_rel_persistence(relid) != RELPERSISTENCE_TEMP)
			return false;
	}
	return relations != NIL;
}

/* May the user give privileges of a relation, or of any of its columns, to others? */
static bool
may_grant(Oid relid)
{
	AclMode		table = ACL_GRANT_OPTION_FOR(ACL_ALL_RIGHTS_RELATION);
	AclMode		column = ACL_GRANT_OPTION_FOR(ACL_ALL_RIGHTS_COLUMN);
	bool		missing = false;

	return pg_class_aclcheck_ext(relid, GetUserId(), table, &missing) == ACLCHECK_OK ||
		pg_attribute_aclcheck_all_ext(relid, GetUserId(), column, ACLMASK_ANY,
									  &missing) == ACLCHECK_OK;
}

/* Returns the relations of a GRANT or REVOKE that the user may execute it for. */
List *
lock_tables_granted(Node *statement)
{
	GrantStmt  *grant = (GrantStmt *) statement;
	List	   *relations = NIL;
	List	   *result = NIL;

	if (!IsA(statement, GrantStmt) || grant->objtype != OBJECT_TABLE)
		return NIL;
	foreach_ptr(Node, object, grant->objects)
	{
		if (grant->targtype == ACL_TARGET_OBJECT)
			relations = lappend_oid(relations, RangeVarGetRelid((RangeVar *) object, NoLock, true));
		else if (grant->targtype == ACL_TARGET_ALL_IN_SCHEMA)
			relations = list_concat(relations, relations_in(get_namespace_oid(strVal(object), true)));
	}
	foreach_oid(relid, relations)
		if (OidIsValid(relid) && may_grant(relid))
		result = lappend_oid(result, relid);
	return result;
}
