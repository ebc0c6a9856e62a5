/*
 * tablespace.c
 *	  Removes tablespaces from statements.
 *
 * Tablespaces are directories of one server, and are not replicated.  A subscriber stores in its
 * default tablespace what the publisher stores elsewhere.
 */
#include "postgres.h"

#include "ddl/tablespace.h"
#include "nodes/parsenodes.h"

static void
forget_of_constraints(List *constraints)
{
	foreach_ptr(Node, constraint, constraints)
		if (IsA(constraint, Constraint))
		((Constraint *) constraint)->indexspace = NULL;
}

static void
forget_of_elements(List *elements)
{
	forget_of_constraints(elements);
	foreach_ptr(Node, element, elements)
		if (IsA(element, ColumnDef))
		forget_of_constraints(((ColumnDef *) element)->constraints);
}

static void
forget_of_alter_table(AlterTableStmt *statement)
{
	List	   *commands = NIL;

	foreach_node(AlterTableCmd, command, statement->cmds)
	{
		if (command->subtype == AT_SetTableSpace)
			continue;
		if (command->def != NULL)
			forget_of_elements(list_make1(command->def));
		commands = lappend(commands, command);
	}
	statement->cmds = commands;
}

/* Removes tablespaces from a statement; returns false if nothing is left of it. */
bool
tablespace_forget(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreateStmt:
			((CreateStmt *) statement)->tablespacename = NULL;
			forget_of_elements(((CreateStmt *) statement)->tableElts);
			break;
		case T_IndexStmt:
			((IndexStmt *) statement)->tableSpace = NULL;
			break;
		case T_CreateTableAsStmt:
			((CreateTableAsStmt *) statement)->into->tableSpaceName = NULL;
			break;
		case T_AlterTableStmt:
			forget_of_alter_table((AlterTableStmt *) statement);
			return ((AlterTableStmt *) statement)->cmds != NIL;
		case T_CreateSchemaStmt:
			foreach_ptr(Node, element, ((CreateSchemaStmt *) statement)->schemaElts)
				(void) tablespace_forget(element);
			break;
		default:
			break;
	}
	return true;
}
