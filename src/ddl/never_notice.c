/*
 * never_notice.c
 *	  Says what is never replicated, where somebody might expect it.
 *
 * Each session is told once about each kind, in a database with a publication of all tables
 * that publishes all schema changes.  (Of unlogged tables, also at level "table".)  Nobody expects
 * temporary tables to be replicated.
 */
#include "postgres.h"

#include "access/xact.h"
#include "ddl/never_notice.h"
#include "guc.h"
#include "nodes/parsenodes.h"
#include "publication_settings.h"

typedef enum NeverKind
{
	NEVER_DATABASE,
	NEVER_ROLE,
	NEVER_TABLESPACE,
	NEVER_UNLOGGED,
	NEVER_NOTHING,
} NeverKind;

/* About which of them this session has been told. */
static bool told[NEVER_NOTHING];

/* Is this the first time, and does a publication promise that much? */
static bool
is_due(NeverKind kind, DdlLevel level)
{
	if (told[kind] || !weft_ddl_replication || !IsTransactionState())
		return false;
	foreach_ptr(DdlPublication, publication, publication_settings_list())
		if (publication->all_tables && publication->level >= level)
		return told[kind] = true;
	return false;
}

static NeverKind
kind_of(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreatedbStmt:
		case T_AlterDatabaseStmt:
		case T_AlterDatabaseSetStmt:
			return NEVER_DATABASE;
		case T_CreateRoleStmt:
		case T_AlterRoleStmt:
		case T_AlterRoleSetStmt:
		case T_DropRoleStmt:
		case T_GrantRoleStmt:
			return NEVER_ROLE;
		case T_CreateTableSpaceStmt:
		case T_AlterTableMoveAllStmt:
			return NEVER_TABLESPACE;
		default:
			return NEVER_NOTHING;
	}
}

/* Called for each statement that has succeeded and is not replicated. */
void
never_notice(Node *statement)
{
	NeverKind	kind = kind_of(statement);

	if (kind == NEVER_NOTHING || !is_due(kind, DDL_LEVEL_ALL))
		return;
	switch (kind)
	{
		case NEVER_DATABASE:
			ereport(NOTICE,
					(errmsg("databases and their settings are not replicated")));
			break;
		case NEVER_ROLE:
			ereport(NOTICE,
					(errmsg("roles are not replicated"),
					 errhint("Create and alter roles on each server.")));
			break;
		default:
			ereport(NOTICE,
					(errmsg("tablespaces are not replicated")));
			break;
	}
}

static bool
has_tablespace(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreateStmt:
			return ((CreateStmt *) statement)->tablespacename != NULL;
		case T_IndexStmt:
			return ((IndexStmt *) statement)->tableSpace != NULL;
		case T_CreateTableAsStmt:
			return ((CreateTableAsStmt *) statement)->into->tableSpaceName != NULL;
		case T_AlterTableStmt:
			foreach_node(AlterTableCmd, command, ((AlterTableStmt *) statement)->cmds)
				if (command->subtype == AT_SetTableSpace)
				return true;
			return false;
		default:
			return false;
	}
}

/* Called for each statement that is replicated. */
void
never_notice_tablespace(Node *statement)
{
	if (has_tablespace(statement) && is_due(NEVER_TABLESPACE, DDL_LEVEL_TABLE))
		ereport(NOTICE,
				(errmsg("tablespaces are not replicated")));
}

/* Called for each statement about unlogged tables and sequences only. */
void
never_notice_unlogged(void)
{
	if (is_due(NEVER_UNLOGGED, DDL_LEVEL_TABLE))
		ereport(NOTICE,
				(errmsg("unlogged tables are not replicated")));
}
