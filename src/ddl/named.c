/*
 * named.c
 *	  Objects that a statement names, and that the server does not tell of.
 *
 * It tells extensions of every change of an object (touched.c) apart from its comment, its
 * security labels and its privileges, and from some changes of tables.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "ddl/named.h"
#include "ddl/touched.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"

static void
note_relation(RangeVar *name)
{
	Oid			relid = RangeVarGetRelid(name, NoLock, true);

	if (OidIsValid(relid))
		touched_object(RelationRelationId, relid, 0);
}

static void
note_schema(const char *name)
{
	Oid			schema = get_namespace_oid(name, true);

	if (OidIsValid(schema))
		touched_object(NamespaceRelationId, schema, 0);
}

static void
note_object(ObjectType type, Node *name)
{
	Relation	rel = NULL;
	ObjectAddress address = get_object_address(type, name, &rel, AccessShareLock, true);

	if (rel)
		relation_close(rel, NoLock);
	if (OidIsValid(address.objectId))
		touched_object(address.classId, address.objectId, address.objectSubId);
}

static void
note_granted(GrantStmt *statement)
{
	foreach_ptr(Node, name, statement->objects)
	{
		if (statement->targtype == ACL_TARGET_ALL_IN_SCHEMA)
			note_schema(strVal(name));
		else if (IsA(name, RangeVar))
			note_relation((RangeVar *) name);
		else if (statement->objtype == OBJECT_TYPE || statement->objtype == OBJECT_DOMAIN)
			note_object(OBJECT_TYPE, (Node *) makeTypeNameFromNameList((List *) name));
		else
			note_object(statement->objtype, name);
	}
}

/* A partition that is detached is no part of the table any more. */
static void
note_detached(AlterTableStmt *statement)
{
	foreach_node(AlterTableCmd, command, statement->cmds)
		if (command->subtype == AT_DetachPartition ||
			command->subtype == AT_DetachPartitionFinalize)
		note_relation(((PartitionCmd *) command->def)->name);
}

/* Notes what a statement that has succeeded names. */
void
named_note(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_AlterTableStmt:
			note_relation(((AlterTableStmt *) statement)->relation);
			note_detached((AlterTableStmt *) statement);
			break;
		case T_CommentStmt:
			note_object(((CommentStmt *) statement)->objtype,
						((CommentStmt *) statement)->object);
			break;
		case T_SecLabelStmt:
			note_object(((SecLabelStmt *) statement)->objtype,
						((SecLabelStmt *) statement)->object);
			break;
		case T_GrantStmt:
			note_granted((GrantStmt *) statement);
			break;
		default:
			break;
	}
}
