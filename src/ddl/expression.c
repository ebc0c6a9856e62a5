/*
 * expression.c
 *	  Would an expression have the same value on another server?
 *
 * A schema change that computes values for the rows of a table is repeated on the
 * subscriber, where it computes them again.  An immutable expression gives the same
 * values there.  A volatile one gives others, in each row.  Of a stable one, the value of
 * which is the same for all rows if it does not read them, it depends on what it uses: the
 * parameters that a schema change carries with it (statement_settings.c), such as TimeZone, or
 * the time, the session, and tables.
 *
 * The server plans an expression before it looks at the functions in it, because that inserts
 * the defaults of arguments.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_proc.h"
#include "ddl/expression.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "nodes/primnodes.h"
#include "optimizer/optimizer.h"
#include "utils/lsyscache.h"

/* Stable functions of the server with arguments that depend on more than these. */
static const char *const names[] = {
	"col_description", "currtid2", "cursor_to_xml", "cursor_to_xmlschema", "current_setting",
	"database_to_xml", "database_to_xml_and_xmlschema", "database_to_xmlschema",
	"obj_description", "query_to_xml", "query_to_xml_and_xmlschema", "query_to_xmlschema",
	"row_security_active", "schema_to_xml", "schema_to_xml_and_xmlschema", "schema_to_xmlschema",
	"shobj_description", "table_to_xml", "table_to_xml_and_xmlschema", "table_to_xmlschema",
};

static bool
starts_with(const char *name, const char *prefix)
{
	return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* Does a stable function depend on more than its arguments and the parameters? */
static bool
depends_on_server(Oid function)
{
	int			arguments = get_func_nargs(function);
	char	   *name;

	/* A user's function may do anything. */
	if (function >= FirstNormalObjectId || arguments == 0)
		return true;
	name = get_func_name(function);
	if (name == NULL || starts_with(name, "pg_") || starts_with(name, "has_") ||
		starts_with(name, "txid_") || starts_with(name, "inet_"))
		return true;

	/* It subtracts from the current date. */
	if (strcmp(name, "age") == 0 && arguments == 1)
		return true;
	for (int i = 0; i < lengthof(names); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

static bool
check_function(Oid function, void *context)
{
	switch (func_volatile(function))
	{
		case PROVOLATILE_VOLATILE:
			return true;
		case PROVOLATILE_STABLE:
			return depends_on_server(function);
		default:
			return false;
	}
}

static bool
walk(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, SQLValueFunction) || IsA(node, NextValueExpr))
		return true;
	if (check_functions_in_node(node, check_function, context))
		return true;
	return expression_tree_walker(node, walk, context);
}

/* May it have another value in each row, without reading the row? */
bool
expression_varies_by_row(Node *expression)
{
	return contain_volatile_functions_after_planning((Expr *) expression);
}

/* May it have another value at another time? */
bool
expression_is_mutable(Node *expression)
{
	return contain_mutable_functions_after_planning((Expr *) expression);
}

/*
 * May it have another value on another server, for the same row, and under the same parameters?
 */
bool
expression_depends_on_server(Node *expression)
{
	return walk((Node *) expression_planner((Expr *) copyObject(expression)), NULL);
}
