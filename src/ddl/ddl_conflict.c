/*
 * ddl_conflict.c
 *	  Schema changes of several members of a node group that have no order.
 *
 * Members A and C make schema changes of which neither has seen the other (seen.c).  A executes
 * its own one first, and C its own one.  If they change the same thing, the schemas would differ from
 * then on: two comments, two definitions of a view, two lengths of a column, two new values of an enum,
 * whose order matters.  Therefore whoever executes the second one, in either order, fails, on all members.
 *
 * What each statement changes is a list of names, from its parse tree alone.  The schema of an object
 * does not count, so statements about objects of the same name in two schemas are taken for one
 * about the same object: they fail without need, which is rare.  Statements that create an object of
 * the same name need no name here: the server refuses the second one.
 *
 * Statements with a group lock are never without order.
 */
#include "postgres.h"

#include "ddl/ddl_conflict.h"
#include "ddl/same_statement.h"
#include "node_identity.h"
#include "nodes/parsenodes.h"
#include "nodes/value.h"
#include "replication/worker_internal.h"
#include "tcop/tcopprot.h"

static List *
add(List *names, const char *kind, const char *name)
{
	return lappend(names, psprintf("%s %s", kind, name));
}

/* Returns the last part of the name of an object, as DROP has it. */
static const char *
last_name(Node *object)
{
	if (IsA(object, List))
		return strVal(llast((List *) object));
	if (IsA(object, ObjectWithArgs))
		return strVal(llast(((ObjectWithArgs *) object)->objname));
	return nodeToString(object);
}

/* New columns commute: their order does not matter. */
static List *
names_of_alter_table(AlterTableStmt *statement)
{
	List	   *names = NIL;

	foreach_node(AlterTableCmd, command, statement->cmds)
		if (command->subtype != AT_AddColumn)
		names = add(names, "table",
					psprintf("%s %d %s", statement->relation->relname, (int) command->subtype,
							 command->name ? command->name : ""));
	return names;
}

static List *
names_of_drop(DropStmt *statement)
{
	List	   *names = NIL;

	foreach_ptr(Node, object, statement->objects)
		names = add(names, "object", last_name(object));
	return names;
}

/* Privileges that are granted commute, those that are revoked do not. */
static List *
names_of_grant(GrantStmt *statement, bool *commutes)
{
	*commutes = statement->is_grant;
	return add(NIL, "privileges", nodeToString(statement->objects));
}

/* Returns what a statement changes. */
static List *
names_of(Node *statement, bool *commutes)
{
	*commutes = false;
	switch (nodeTag(statement))
	{
		case T_AlterEnumStmt:
			return add(NIL, "enum", strVal(llast(((AlterEnumStmt *) statement)->typeName)));
		case T_AlterFunctionStmt:
			return add(NIL, "object",
					   strVal(llast(((AlterFunctionStmt *) statement)->func->objname)));
		case T_AlterTableStmt:
			return names_of_alter_table((AlterTableStmt *) statement);
		case T_CommentStmt:
			return add(NIL, "comment", nodeToString(((CommentStmt *) statement)->object));
		case T_CreateFunctionStmt:
			return add(NIL, "object",
					   strVal(llast(((CreateFunctionStmt *) statement)->funcname)));
		case T_DropStmt:
			return names_of_drop((DropStmt *) statement);
		case T_GrantStmt:
			return names_of_grant((GrantStmt *) statement, commutes);
		case T_ViewStmt:
			return add(NIL, "object", ((ViewStmt *) statement)->view->relname);
		default:
			return NIL;
	}
}

/* Do two statements change the same thing, so that their order matters? */
static bool
conflict(Node *one, Node *other)
{
	bool		one_commutes;
	bool		other_commutes;
	List	   *names = names_of(one, &one_commutes);

	if (names == NIL || equal(one, other))
		return false;
	foreach_ptr(char, other_name, names_of(other, &other_commutes))
		foreach_ptr(char, name, names)
		if (strcmp(name, other_name) == 0 && !(one_commutes && other_commutes))
		return true;
	return false;
}

/*
 * Returns the parse tree of a statement that has been executed somewhere, or NULL if it is not one.  What a
 * backslash means depends on settings, which were others then: such a text is not looked at.
 */
static Node *
parse(const char *text)
{
	List	   *trees;

	if (strchr(text, '\\') != NULL)
		return NULL;
	trees = pg_parse_query(text);
	return list_length(trees) == 1 ? linitial_node(RawStmt, trees)->stmt : NULL;
}

/*
 * Fails if a schema change is about the same thing as another one that was executed here, and neither
 * has seen the other.
 */
void
ddl_conflict_check(const DdlMessage *message)
{
	Node	   *statement;
	bool		commutes;

	if (node_identity_for(MySubscription->name) == NULL)
		return;
	statement = parse(message->statement);
	if (statement == NULL || names_of(statement, &commutes) == NIL)
		return;
	foreach_ptr(char, text, same_statement_unseen(message))
	{
		Node	   *other = parse(text);

		if (other == NULL || !conflict(statement, other))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("the schema change conflicts with one of another member, made at the same time"),
				 errdetail("The other one is: %s", text),
				 errhint("Skip the one of the two that is not wanted on each member that gets it, and repeat the other one where that has been executed, with \"weft.ddl_replication\" set to \"off\".")));
	}
}
