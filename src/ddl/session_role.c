/*
 * session_role.c
 *	  SESSION_USER as a role in statements.
 *
 * A statement may name roles as CURRENT_USER or SESSION_USER: ALTER TABLE ... OWNER TO SESSION_USER.  On a
 * subscriber, the current user is the role that has executed the statement on the publisher, but the session belongs to the
 * subscription's owner.  Therefore the message names the publisher's session user, and the subscriber puts that role in
 * place of the word.  SESSION_USER in an expression is a function, which is evaluated when the expression is.
 */
#include "postgres.h"

#include "ddl/session_role.h"
#include "nodes/parsenodes.h"

static List *
add_role(List *roles, RoleSpec *role)
{
	return role ? lappend(roles, role) : roles;
}

static List *
roles_of_grant(GrantStmt *statement)
{
	return add_role(list_copy(statement->grantees), statement->grantor);
}

static List *
roles_of_default_privileges(AlterDefaultPrivilegesStmt *statement)
{
	List	   *roles = roles_of_grant(statement->action);

	foreach_node(DefElem, option, statement->options)
		if (strcmp(option->defname, "roles") == 0)
		roles = list_concat(roles, (List *) option->arg);
	return roles;
}

static List *
roles_of_alter_table(AlterTableStmt *statement)
{
	List	   *roles = NIL;

	foreach_node(AlterTableCmd, command, statement->cmds)
		roles = add_role(roles, command->newowner);
	return roles;
}

/* CREATE ROLE ... IN ROLE, ROLE and ADMIN */
static List *
roles_of_create_role(CreateRoleStmt *statement)
{
	List	   *roles = NIL;

	foreach_node(DefElem, option, statement->options)
		if (strcmp(option->defname, "addroleto") == 0 || strcmp(option->defname, "rolemembers") == 0 ||
			strcmp(option->defname, "adminmembers") == 0)
		roles = list_concat(roles, (List *) option->arg);
	return roles;
}

/* Returns the roles that a statement names, as RoleSpecs. */
static List *
roles_of(Node *statement)
{
	List	   *roles = NIL;

	switch (nodeTag(statement))
	{
		case T_AlterDefaultPrivilegesStmt:
			return roles_of_default_privileges((AlterDefaultPrivilegesStmt *) statement);
		case T_AlterOwnerStmt:
			return add_role(NIL, ((AlterOwnerStmt *) statement)->newowner);
		case T_AlterPolicyStmt:
			return ((AlterPolicyStmt *) statement)->roles;
		case T_AlterRoleSetStmt:
			return add_role(NIL, ((AlterRoleSetStmt *) statement)->role);
		case T_AlterRoleStmt:
			return add_role(NIL, ((AlterRoleStmt *) statement)->role);
		case T_AlterTableStmt:
			return roles_of_alter_table((AlterTableStmt *) statement);
		case T_CreatePolicyStmt:
			return ((CreatePolicyStmt *) statement)->roles;
		case T_CreateRoleStmt:
			return roles_of_create_role((CreateRoleStmt *) statement);
		case T_CreateSchemaStmt:
			roles = add_role(NIL, ((CreateSchemaStmt *) statement)->authrole);
			foreach_ptr(Node, element, ((CreateSchemaStmt *) statement)->schemaElts)
				roles = list_concat(roles, roles_of(element));
			return roles;
		case T_DropOwnedStmt:
			return ((DropOwnedStmt *) statement)->roles;
		case T_DropRoleStmt:
			return ((DropRoleStmt *) statement)->roles;
		case T_GrantRoleStmt:
			return add_role(list_copy(((GrantRoleStmt *) statement)->grantee_roles),
							((GrantRoleStmt *) statement)->grantor);
		case T_GrantStmt:
			return roles_of_grant((GrantStmt *) statement);
		case T_ReassignOwnedStmt:
			return add_role(list_copy(((ReassignOwnedStmt *) statement)->roles),
							((ReassignOwnedStmt *) statement)->newrole);
		default:
			return NIL;
	}
}

/* Does a statement name SESSION_USER? */
bool
session_role_is_named(Node *statement)
{
	foreach_node(RoleSpec, role, roles_of(statement))
		if (role->roletype == ROLESPEC_SESSION_USER)
		return true;
	return false;
}

/* Puts a role in place of SESSION_USER.  "name" is NULL if the message does not say which. */
void
session_role_replace(Node *statement, const char *name)
{
	foreach_node(RoleSpec, role, roles_of(statement))
	{
		if (role->roletype != ROLESPEC_SESSION_USER)
			continue;
		if (name == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot apply a statement about SESSION_USER, because the publisher has not said which role that is"),
					 errhint("Update Weft on the publisher, or install the script of weft.ddl_capture_script() again.")));
		role->roletype = ROLESPEC_CSTRING;
		role->rolename = pstrdup(name);
	}
}
