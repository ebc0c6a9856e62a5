/*
 * ddl_kind.c
 *	  Which statements are schema changes that are replicated.
 *
 * The parse tree alone decides here.  Whether an object is temporary, and which publications
 * include it, is known only when the statement has been executed (touched.c).
 */
#include "postgres.h"

#include "ddl/ddl_kind.h"
#include "nodes/parsenodes.h"

/* The kind of a statement that renames, drops, moves or comments on an object. */
static DdlKind
kind_of_object(ObjectType type)
{
	switch (type)
	{
		case OBJECT_ATTRIBUTE:
		case OBJECT_COLUMN:
		case OBJECT_DEFAULT:
		case OBJECT_DOMAIN:
		case OBJECT_DOMCONSTRAINT:
		case OBJECT_INDEX:
		case OBJECT_SEQUENCE:
		case OBJECT_TABCONSTRAINT:
		case OBJECT_TABLE:
		case OBJECT_TYPE:
			return DDL_OF_TABLES;

			/* of the whole server, or of replication itself */
		case OBJECT_DATABASE:
		case OBJECT_EVENT_TRIGGER:
		case OBJECT_FDW:
		case OBJECT_FOREIGN_SERVER:
		case OBJECT_FOREIGN_TABLE:
		case OBJECT_LARGEOBJECT:
		case OBJECT_PARAMETER_ACL:
		case OBJECT_PUBLICATION:
		case OBJECT_PUBLICATION_NAMESPACE:
		case OBJECT_PUBLICATION_REL:
		case OBJECT_ROLE:
		case OBJECT_SUBSCRIPTION:
		case OBJECT_TABLESPACE:
		case OBJECT_USER_MAPPING:
			return DDL_NEVER;

		default:
			return DDL_OF_ALL;
	}
}

/* Does a subcommand of ALTER TABLE concern objects that only ddl = all replicates? */
static bool
is_about_others(AlterTableType type)
{
	switch (type)
	{
		case AT_EnableTrig:
		case AT_EnableAlwaysTrig:
		case AT_EnableReplicaTrig:
		case AT_DisableTrig:
		case AT_EnableTrigAll:
		case AT_DisableTrigAll:
		case AT_EnableTrigUser:
		case AT_DisableTrigUser:
		case AT_EnableRule:
		case AT_EnableAlwaysRule:
		case AT_EnableReplicaRule:
		case AT_DisableRule:
		case AT_EnableRowSecurity:
		case AT_DisableRowSecurity:
		case AT_ForceRowSecurity:
		case AT_NoForceRowSecurity:
			return true;
		default:
			return false;
	}
}

static DdlKind
kind_of_alter_table(AlterTableStmt *statement)
{
	DdlKind		result = kind_of_object(statement->objtype);
	bool		all_others = true;

	foreach_node(AlterTableCmd, command, statement->cmds)
		all_others = all_others && is_about_others(command->subtype);
	return result == DDL_OF_TABLES && all_others ? DDL_OF_ALL : result;
}

/* CREATE TABLE AS, SELECT INTO, CREATE MATERIALIZED VIEW */
static DdlKind
kind_of_create_as(CreateTableAsStmt *statement)
{
	return statement->objtype == OBJECT_TABLE ? DDL_OF_TABLES : DDL_OF_ALL;
}

static DdlKind
kind_of_grant(GrantStmt *statement)
{
	return statement->targtype == ACL_TARGET_DEFAULTS ? DDL_OF_ALL :
		kind_of_object(statement->objtype) == DDL_NEVER ? DDL_NEVER : DDL_OF_ALL;
}

/* Returns which publications may want a statement. */
DdlKind
ddl_kind(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreateStmt:
		case T_IndexStmt:
		case T_CreateSeqStmt:
		case T_AlterSeqStmt:
		case T_CompositeTypeStmt:
		case T_CreateEnumStmt:
		case T_AlterEnumStmt:
		case T_CreateRangeStmt:
		case T_CreateDomainStmt:
		case T_AlterDomainStmt:
			return DDL_OF_TABLES;

		case T_AlterTableStmt:
			return kind_of_alter_table((AlterTableStmt *) statement);
		case T_CreateTableAsStmt:
			return kind_of_create_as((CreateTableAsStmt *) statement);
		case T_DropStmt:
			return kind_of_object(((DropStmt *) statement)->removeType);
		case T_RenameStmt:
			return kind_of_object(((RenameStmt *) statement)->renameType);
		case T_AlterObjectSchemaStmt:
			return kind_of_object(((AlterObjectSchemaStmt *) statement)->objectType);
		case T_AlterOwnerStmt:
			return kind_of_object(((AlterOwnerStmt *) statement)->objectType);

		case T_AlterObjectDependsStmt:
			return DDL_OF_ALL;
		case T_CommentStmt:
			return kind_of_object(((CommentStmt *) statement)->objtype) == DDL_NEVER ?
				DDL_NEVER : DDL_OF_ALL;
		case T_GrantStmt:
			return kind_of_grant((GrantStmt *) statement);

		case T_AlterDefaultPrivilegesStmt:
		case T_AlterCollationStmt:
		case T_AlterExtensionStmt:
		case T_AlterExtensionContentsStmt:
		case T_AlterFunctionStmt:
		case T_AlterOperatorStmt:
		case T_AlterOpFamilyStmt:
		case T_AlterPolicyStmt:
		case T_AlterStatsStmt:
		case T_AlterTSConfigurationStmt:
		case T_AlterTSDictionaryStmt:
		case T_AlterTypeStmt:
		case T_CreateAmStmt:
		case T_CreateCastStmt:
		case T_CreateConversionStmt:
		case T_CreateExtensionStmt:
		case T_CreateFunctionStmt:
		case T_CreateOpClassStmt:
		case T_CreateOpFamilyStmt:
		case T_CreatePLangStmt:
		case T_CreatePolicyStmt:
		case T_CreateSchemaStmt:
		case T_CreateStatsStmt:
		case T_CreateTransformStmt:
		case T_CreateTrigStmt:
		case T_DefineStmt:
		case T_RuleStmt:
		case T_ViewStmt:
			return DDL_OF_ALL;

		default:
			return DDL_NEVER;
	}
}

/* Returns the DETACH PARTITION in a statement, or NULL. */
static PartitionCmd *
find_detach(Node *statement)
{
	if (!IsA(statement, AlterTableStmt))
		return NULL;
	foreach_node(AlterTableCmd, command, ((AlterTableStmt *) statement)->cmds)
		if (command->subtype == AT_DetachPartition)
		return (PartitionCmd *) command->def;
	return NULL;
}

/* Must the statement run outside of a transaction block? */
bool
ddl_is_concurrent(Node *statement)
{
	PartitionCmd *detach = find_detach(statement);

	if (IsA(statement, IndexStmt))
		return ((IndexStmt *) statement)->concurrent;
	if (IsA(statement, DropStmt))
		return ((DropStmt *) statement)->concurrent;
	return detach != NULL && detach->concurrent;
}

/* Turns such a statement into one that may run in a transaction block, with a longer lock. */
void
ddl_make_plain(Node *statement)
{
	PartitionCmd *detach = find_detach(statement);

	if (IsA(statement, IndexStmt))
		((IndexStmt *) statement)->concurrent = false;
	if (IsA(statement, DropStmt))
		((DropStmt *) statement)->concurrent = false;
	if (detach != NULL)
		detach->concurrent = false;
}
