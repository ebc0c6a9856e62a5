/*
 * schema_trust.c
 *	  Which functions and types a publisher's tables may use here.
 *
 * weft.copy_schema() creates tables that belong to its caller C, who may do almost anything
 * on this server.  The expressions in them were written by a table's owner P on the
 * publisher.  Apply evaluates CHECK constraints, generated columns and index expressions
 * with C's rights; whoever inserts a row here evaluates its defaults; and functions that
 * are declared immutable are evaluated with constant arguments when the table is created.
 * Therefore P could have any function called here with any arguments.  To prevent that,
 * these rules are checked before a statement is run:
 *
 * - Functions, operators and types must belong to C or to a superuser, since another role
 *   could have put a trap there.  An enum has no code except its casts, which are looked up
 *   when the table is created, or later by functions that make JSON.
 * - PUBLIC must be allowed to execute the functions, because their other arguments, such as
 *   names of files, are not checked further if a superuser calls them.
 * - A CHECK constraint must not use volatile functions.  A default may use only those that
 *   return the next value of a sequence or have only numbers as arguments.  Functions with
 *   an effect, such as running a query, are volatile, except those that write a table or
 *   view as XML.
 * - Functions that read a value of a type that a text or a number names must not be called:
 *   another role's domain might check the value.
 * - The bound of a partition, which is evaluated at once, must be a constant.
 *
 * The statement is only parsed, so all functions of a name are checked.  pg_dump writes the
 * schema of everything that is not in pg_catalog.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "api/schema_trust.h"
#include "catalog/namespace.h"
#include "catalog/pg_cast.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/catcache.h"
#include "utils/syscache.h"

typedef struct TrustContext
{
	bool		is_check;		/* within a CHECK constraint? */
	const char *problem;		/* NULL if there is none */
} TrustContext;

/*
 * Splits a name.  Returns false if there can be no such object, or if the name includes a
 * database, which pg_dump never writes.
 */
static bool
find_name(TrustContext *context, List *names, Oid *schema, const char **name)
{
	if (list_length(names) > 2)
	{
		context->problem = psprintf("name %s has more than two parts", NameListToString(names));
		return false;
	}
	*name = strVal(llast(names));
	*schema = list_length(names) == 1 ? PG_CATALOG_NAMESPACE :
		get_namespace_oid(strVal(linitial(names)), true);
	return OidIsValid(*schema);
}

static bool
is_trusted(Oid role)
{
	return role == GetUserId() || superuser_arg(role);
}

static bool
is_public(HeapTuple function)
{
	bool		isnull;
	Datum		value = SysCacheGetAttr(PROCOID, function, Anum_pg_proc_proacl, &isnull);
	Acl		   *acl;

	/* By default, PUBLIC has EXECUTE. */
	if (isnull)
		return true;
	acl = DatumGetAclP(value);
	for (int i = 0; i < ACL_NUM(acl); i++)
		if (ACL_DAT(acl)[i].ai_grantee == ACL_ID_PUBLIC &&
			(ACLITEM_GET_PRIVS(ACL_DAT(acl)[i]) & ACL_EXECUTE))
			return true;
	return false;
}

/* Are volatile functions of this name harmless in a default, with these arguments? */
static bool
is_harmless_default(Oid schema, const char *name, List *arguments)
{
	if (schema == PG_CATALOG_NAMESPACE && strcmp(name, "nextval") == 0)
		return true;
	if (schema == get_namespace_oid("weft", true) && strcmp(name, "snowflake_nextval") == 0)
		return true;
	foreach_ptr(Node, argument, arguments)
	{
		A_Const    *constant = (A_Const *) argument;

		if (!IsA(constant, A_Const) || constant->isnull ||
			!(IsA(&constant->val, Integer) || IsA(&constant->val, Float)))
			return false;
	}
	return true;
}

/*
 * Returns what is wrong with a function of the server, or NULL.  Wrong is a function that
 * finds code to run by the type of a value or by the name of a type.
 */
static const char *
server_function_problem(Form_pg_proc form)
{
	bool		is_json = strstr(NameStr(form->proname), "json") != NULL;

	if (strstr(NameStr(form->proname), "_to_xml"))
		return "reads tables";
	if (strncmp(NameStr(form->proname), "pg_input_", strlen("pg_input_")) == 0)
		return "reads values of any type";
	for (int i = 0; i < form->pronargs; i++)
	{
		Oid			type = form->proargtypes.values[i];

		if (type == CSTRINGOID)
			return "reads values of any type";
		if (is_json && (IsPolymorphicType(type) || type == ANYOID || type == RECORDOID))
			return "may call casts";
	}
	return NULL;
}

/*
 * Returns what is wrong with a function, or NULL.  The function of an operator must not be
 * volatile, since its arguments are not looked at.
 */
static const char *
function_problem(HeapTuple function, bool may_be_volatile)
{
	Form_pg_proc form = (Form_pg_proc) GETSTRUCT(function);

	if (!is_trusted(form->proowner))
		return "belongs to another role";
	if (!is_public(function))
		return "is not executable by PUBLIC";
	if (form->provolatile == PROVOLATILE_VOLATILE && !may_be_volatile)
		return "is volatile";
	return form->pronamespace == PG_CATALOG_NAMESPACE ? server_function_problem(form) : NULL;
}

static void
check_function(TrustContext *context, List *names, List *arguments)
{
	Oid			schema;
	const char *name;
	bool		may_be_volatile;
	CatCList   *functions;

	if (!find_name(context, names, &schema, &name))
		return;
	may_be_volatile = !context->is_check && is_harmless_default(schema, name, arguments);
	functions = SearchSysCacheList1(PROCNAMEARGSNSP, CStringGetDatum(name));
	for (int i = 0; i < functions->n_members && context->problem == NULL; i++)
	{
		HeapTuple	function = &functions->members[i]->tuple;
		const char *problem;

		if (((Form_pg_proc) GETSTRUCT(function))->pronamespace != schema)
			continue;
		problem = function_problem(function, may_be_volatile);
		if (problem)
			context->problem = psprintf("function %s %s",
										NameListToQuotedString(names), problem);
	}
	ReleaseSysCacheList(functions);
}

/*
 * Checks fields of a row.  If there is no such field, then the server calls a function of
 * that name.
 */
static void
check_fields(TrustContext *context, List *fields, int first)
{
	for (int i = first; i < list_length(fields) && context->problem == NULL; i++)
	{
		Node	   *field = list_nth(fields, i);

		if (IsA(field, String))
			check_function(context, list_make1(field), list_make1(field));
	}
}

/* Checks an operator.  Those of pg_catalog are harmless. */
static void
check_operator(TrustContext *context, List *names)
{
	Oid			schema;
	const char *name;
	CatCList   *operators;

	if (list_length(names) < 2 || !find_name(context, names, &schema, &name) ||
		schema == PG_CATALOG_NAMESPACE)
		return;
	operators = SearchSysCacheList1(OPERNAMENSP, CStringGetDatum(name));
	for (int i = 0; i < operators->n_members && context->problem == NULL; i++)
	{
		Form_pg_operator operator = (Form_pg_operator) GETSTRUCT(&operators->members[i]->tuple);
		HeapTuple	function;
		const char *problem;

		if (operator->oprnamespace != schema)
			continue;
		function = SearchSysCache1(PROCOID, ObjectIdGetDatum(operator->oprcode));
		problem = !is_trusted(operator->oprowner) ? "belongs to another role" :
			HeapTupleIsValid(function) ? function_problem(function, false) : NULL;
		if (problem)
			context->problem = psprintf("operator %s %s", NameListToString(names), problem);
		if (HeapTupleIsValid(function))
			ReleaseSysCache(function);
	}
	ReleaseSysCacheList(operators);
}

/* Does a type have casts? */
static bool
has_casts(Oid type)
{
	Relation	catalog = table_open(CastRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;
	bool		found = false;

	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_cast cast = (Form_pg_cast) GETSTRUCT(tuple);

		found = cast->castsource == type || cast->casttarget == type;
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return found;
}

static void
check_type(TrustContext *context, TypeName *type)
{
	Oid			schema;
	const char *name;
	HeapTuple	tuple;
	Form_pg_type form;

	if (list_length(type->names) < 2 || !find_name(context, type->names, &schema, &name) ||
		schema == PG_CATALOG_NAMESPACE)
		return;
	tuple = SearchSysCache2(TYPENAMENSP, CStringGetDatum(name), ObjectIdGetDatum(schema));
	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_type) GETSTRUCT(tuple);
	if (!is_trusted(form->typowner) && (form->typtype != TYPTYPE_ENUM || has_casts(form->oid)))
		context->problem = psprintf("type %s belongs to another role",
									NameListToQuotedString(type->names));
	ReleaseSysCache(tuple);
}

static bool
walk(Node *node, void *argument)
{
	TrustContext *context = argument;

	if (node == NULL || context->problem != NULL)
		return context->problem != NULL;
	if (IsA(node, FuncCall))
		check_function(context, ((FuncCall *) node)->funcname, ((FuncCall *) node)->args);
	else if (IsA(node, A_Indirection))
		check_fields(context, ((A_Indirection *) node)->indirection, 0);
	else if (IsA(node, ColumnRef))
		check_fields(context, ((ColumnRef *) node)->fields, 1);
	else if (IsA(node, JsonObjectConstructor) || IsA(node, JsonArrayConstructor) ||
			 IsA(node, JsonScalarExpr))
		context->problem = "a JSON constructor may call casts";
	else if (IsA(node, A_Expr))
		check_operator(context, ((A_Expr *) node)->name);
	else if (IsA(node, TypeName))
		check_type(context, (TypeName *) node);
	return context->problem != NULL || raw_expression_tree_walker(node, walk, argument);
}

static void
walk_index_elements(TrustContext *context, List *elements)
{
	foreach_node(IndexElem, element, elements)
		(void) walk(element->expr, context);
}

static void
walk_constraint(TrustContext *context, Constraint *constraint)
{
	context->is_check = constraint->contype == CONSTR_CHECK;
	(void) walk(constraint->raw_expr, context);
	(void) walk(constraint->where_clause, context);
	context->is_check = false;
	foreach_node(List, exclusion, constraint->exclusions)
	{
		(void) walk(((IndexElem *) linitial(exclusion))->expr, context);
		check_operator(context, (List *) lsecond(exclusion));
	}
}

static void
walk_constraints(TrustContext *context, List *constraints)
{
	foreach_node(Constraint, constraint, constraints)
		walk_constraint(context, constraint);
}

/* Checks a bound; pg_dump writes only constants, MINVALUE and MAXVALUE. */
static void
check_bound(TrustContext *context, PartitionBoundSpec *bound)
{
	List	   *values;

	if (bound == NULL)
		return;
	values = list_concat_copy(bound->listdatums, bound->lowerdatums);
	values = list_concat(values, bound->upperdatums);
	foreach_ptr(Node, value, values)
	{
		if (!IsA(value, A_Const) && !IsA(value, ColumnRef))
			context->problem = "the bound is not a constant";
	}
}

static void
walk_create_table(TrustContext *context, CreateStmt *create)
{
	foreach_ptr(Node, element, create->tableElts)
	{
		if (IsA(element, ColumnDef))
		{
			(void) walk((Node *) ((ColumnDef *) element)->typeName, context);
			walk_constraints(context, ((ColumnDef *) element)->constraints);
		}
		else if (IsA(element, Constraint))
			walk_constraint(context, (Constraint *) element);
	}
	walk_constraints(context, create->constraints);
	if (create->partspec)
		foreach_node(PartitionElem, element, create->partspec->partParams)
			(void) walk(element->expr, context);
	(void) walk((Node *) create->ofTypename, context);
	check_bound(context, create->partbound);
}

static void
walk_alter_table(TrustContext *context, AlterTableStmt *alter)
{
	foreach_node(AlterTableCmd, command, alter->cmds)
	{
		if (command->subtype == AT_ColumnDefault)
			(void) walk(command->def, context);
		else if (command->subtype == AT_AddConstraint)
			walk_constraint(context, (Constraint *) command->def);
		else if (command->subtype == AT_AttachPartition)
			check_bound(context, ((PartitionCmd *) command->def)->bound);
	}
}

/* Returns why a statement must not be run, or NULL. */
const char *
schema_trust_problem(Node *tree)
{
	TrustContext context = {0};

	switch (nodeTag(tree))
	{
		case T_CreateStmt:
			walk_create_table(&context, (CreateStmt *) tree);
			break;
		case T_CreateSeqStmt:
			foreach_node(DefElem, option, ((CreateSeqStmt *) tree)->options)
				if (option->arg && IsA(option->arg, TypeName))
				(void) walk(option->arg, &context);
			break;
		case T_AlterTableStmt:
			walk_alter_table(&context, (AlterTableStmt *) tree);
			break;
		case T_IndexStmt:
			walk_index_elements(&context, ((IndexStmt *) tree)->indexParams);
			(void) walk(((IndexStmt *) tree)->whereClause, &context);
			break;
		case T_CreateStatsStmt:
			foreach_node(StatsElem, element, ((CreateStatsStmt *) tree)->exprs)
				(void) walk(element->expr, &context);
			break;
		default:
			break;
	}
	return context.problem;
}
