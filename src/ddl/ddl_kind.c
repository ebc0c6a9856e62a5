/*
 * ddl_kind.c
 *	  Which statements are schema changes that are replicated.
 *
 * The parse tree alone decides here.  Whether an object is temporary, and which publications
 * include it, is known only when the statement has been executed (touched.c).
 */
#include "postgres.h"

#include "commands/defrem.h"
#include "compat.h"
#include "ddl/ddl_kind.h"
#include "ddl/ddl_message.h"
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

			/* of the whole server, of replication itself, or with passwords */
		case OBJECT_DATABASE:
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

/* EXPLAIN ANALYZE executes the statement. */
static DdlKind
kind_of_explain(ExplainStmt *statement)
{
	bool		analyze = false;
	Query	   *query = (Query *) statement->query;

	foreach_node(DefElem, option, statement->options)
		if (strcmp(option->defname, "analyze") == 0)
		analyze = defGetBoolean(option);
	if (!analyze || !IsA(query, Query) || query->utilityStmt == NULL ||
		!IsA(query->utilityStmt, CreateTableAsStmt))
		return DDL_NEVER;
	return kind_of_create_as((CreateTableAsStmt *) query->utilityStmt);
}

static DdlKind
kind_of_grant(GrantStmt *statement)
{
	return statement->targtype == ACL_TARGET_DEFAULTS ? DDL_OF_ALL :
		kind_of_object(statement->objtype) == DDL_NEVER ? DDL_NEVER : DDL_OF_ALL;
}

/*
 * CREATE SCHEMA.  Nobody can take the elements out of the text, so a schema that is created
 * together with tables is replicated as these are.
 */
static DdlKind
kind_of_create_schema(CreateSchemaStmt *statement)
{
	foreach_ptr(Node, element, statement->schemaElts)
		if (ddl_kind(element) == DDL_OF_TABLES)
		return DDL_OF_TABLES;
	return DDL_OF_ALL;
}

/* Weft is installed on each server separately. */
static DdlKind
kind_of_extension(const char *name)
{
	return strcmp(name, "weft") == 0 ? DDL_NEVER : DDL_OF_ALL;
}

/* Is every statement of this type of node replicated at level "all"? */
static bool
is_of_all(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_AlterCollationStmt:
		case T_AlterDefaultPrivilegesStmt:
		case T_AlterEventTrigStmt:
		case T_AlterFdwStmt:
		case T_AlterForeignServerStmt:
		case T_AlterFunctionStmt:
		case T_AlterObjectDependsStmt:
		case T_AlterOpFamilyStmt:
		case T_AlterOperatorStmt:
		case T_AlterPolicyStmt:
		case T_AlterStatsStmt:
		case T_AlterTSConfigurationStmt:
		case T_AlterTSDictionaryStmt:
		case T_AlterTypeStmt:
		case T_CreateAmStmt:
		case T_CreateCastStmt:
		case T_CreateConversionStmt:
		case T_CreateEventTrigStmt:
		case T_CreateFdwStmt:
		case T_CreateForeignServerStmt:
		case T_CreateForeignTableStmt:
		case T_CreateFunctionStmt:
		case T_CreateOpClassStmt:
		case T_CreateOpFamilyStmt:
		case T_CreatePLangStmt:
		case T_CreatePolicyStmt:
		case T_CreateStatsStmt:
		case T_CreateTransformStmt:
		case T_CreateTrigStmt:
		case T_DefineStmt:
		case T_DropOwnedStmt:
		case T_ImportForeignSchemaStmt:
		case T_ReassignOwnedStmt:
		case T_RuleStmt:
		case T_ViewStmt:
			return true;
		default:
			return false;
	}
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
		case T_ExplainStmt:
			return kind_of_explain((ExplainStmt *) statement);
		case T_DropStmt:
			return kind_of_object(((DropStmt *) statement)->removeType);
		case T_RenameStmt:
			return kind_of_object(((RenameStmt *) statement)->renameType);
		case T_AlterObjectSchemaStmt:
			return kind_of_object(((AlterObjectSchemaStmt *) statement)->objectType);
		case T_AlterOwnerStmt:
			return kind_of_object(((AlterOwnerStmt *) statement)->objectType);

		case T_CommentStmt:
			return kind_of_object(((CommentStmt *) statement)->objtype) == DDL_NEVER ?
				DDL_NEVER : DDL_OF_ALL;
		case T_SecLabelStmt:
			return kind_of_object(((SecLabelStmt *) statement)->objtype) == DDL_NEVER ?
				DDL_NEVER : DDL_OF_ALL;
		case T_GrantStmt:
			return kind_of_grant((GrantStmt *) statement);

		case T_CreateExtensionStmt:
			return kind_of_extension(((CreateExtensionStmt *) statement)->extname);
		case T_AlterExtensionStmt:
			return kind_of_extension(((AlterExtensionStmt *) statement)->extname);
		case T_AlterExtensionContentsStmt:
			return kind_of_extension(((AlterExtensionContentsStmt *) statement)->extname);
		case T_CreateSchemaStmt:
			return kind_of_create_schema((CreateSchemaStmt *) statement);

		default:
			return is_of_all(statement) ? DDL_OF_ALL : DDL_NEVER;
	}
}

static bool
has_password(List *options)
{
	foreach_node(DefElem, option, options)
		if (strcmp(option->defname, "password") == 0 && option->arg != NULL)
		return true;
	return false;
}

/*
 * Does weft.replicate_ddl_command() accept a statement that is never replicated otherwise?  It must
 * leave nothing in the session, and no rows that are replicated themselves.  A password would be
 * stored in weft.ddl_queue.
 */
bool
ddl_is_for_command(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreateRoleStmt:
			return !has_password(((CreateRoleStmt *) statement)->options);
		case T_AlterRoleStmt:
			return !has_password(((AlterRoleStmt *) statement)->options);
		case T_AlterRoleSetStmt:
		case T_DropRoleStmt:
		case T_GrantRoleStmt:
		case COMPAT_CLUSTER_STATEMENT:
		case T_RefreshMatViewStmt:
		case T_ReindexStmt:
			return true;
		case T_VacuumStmt:
			return !((VacuumStmt *) statement)->is_vacuumcmd;
		case T_CommentStmt:
			return ((CommentStmt *) statement)->objtype == OBJECT_ROLE;
		case T_RenameStmt:
			return ((RenameStmt *) statement)->renameType == OBJECT_ROLE;
		default:
			return false;
	}
}

/* Does a statement create a table from a query? */
bool
ddl_is_create_as(Node *statement)
{
	if (IsA(statement, ExplainStmt))
		statement = ((Query *) ((ExplainStmt *) statement)->query)->utilityStmt;
	return IsA(statement, CreateTableAsStmt) &&
		((CreateTableAsStmt *) statement)->objtype == OBJECT_TABLE;
}

/*
 * Returns the subcommand with DETACH PARTITION in a statement, or NULL.  FINALIZE does the rest of a DETACH
 * CONCURRENTLY that was interrupted.
 */
static AlterTableCmd *
find_detach(Node *statement)
{
	if (!IsA(statement, AlterTableStmt))
		return NULL;
	foreach_node(AlterTableCmd, command, ((AlterTableStmt *) statement)->cmds)
		if (command->subtype == AT_DetachPartition ||
			command->subtype == AT_DetachPartitionFinalize)
		return command;
	return NULL;
}

/* Must a subscriber run the statement outside of a transaction block? */
bool
ddl_is_concurrent(Node *statement)
{
	AlterTableCmd *detach = find_detach(statement);

	if (IsA(statement, IndexStmt))
		return ((IndexStmt *) statement)->concurrent;
	if (IsA(statement, DropStmt))
		return ((DropStmt *) statement)->concurrent;
	return detach != NULL && (detach->subtype == AT_DetachPartitionFinalize ||
							  ((PartitionCmd *) detach->def)->concurrent);
}

/* Makes a concurrent statement run inside of a transaction block, with a longer lock, or outside. */
void
ddl_set_concurrent(Node *statement, bool concurrent)
{
	AlterTableCmd *detach = find_detach(statement);

	if (IsA(statement, IndexStmt))
		((IndexStmt *) statement)->concurrent = concurrent;
	if (IsA(statement, DropStmt))
		((DropStmt *) statement)->concurrent = concurrent;
	if (detach != NULL)
	{
		detach->subtype = AT_DetachPartition;
		((PartitionCmd *) detach->def)->concurrent = concurrent;
	}
}

static bool
has_added(const List *changes, const char *column)
{
	foreach_ptr(DdlChange, change, changes)
		if (strcmp(change->change, "column") == 0 && strcmp(change->part, column) == 0)
		return true;
	return false;
}

/*
 * Makes a statement fail if what it creates exists already, where that has columns or the like, which
 * may be others.  A column that "changes" does not name existed where the statement was made, too.
 */
void
ddl_make_strict(Node *statement, const List *changes)
{
	switch (nodeTag(statement))
	{
		case T_CreateStmt:
			((CreateStmt *) statement)->if_not_exists = false;
			break;
		case T_CreateSeqStmt:
			((CreateSeqStmt *) statement)->if_not_exists = false;
			break;
		case T_CreateTableAsStmt:
			((CreateTableAsStmt *) statement)->if_not_exists = false;
			break;
		case T_IndexStmt:
			((IndexStmt *) statement)->if_not_exists = false;
			break;
		case T_AlterTableStmt:
			foreach_node(AlterTableCmd, command, ((AlterTableStmt *) statement)->cmds)
				if (command->subtype == AT_AddColumn &&
					has_added(changes, castNode(ColumnDef, command->def)->colname))
				command->missing_ok = false;
			break;
		default:
			break;
	}
}
