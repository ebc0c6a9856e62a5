/*
 * needs_lock.c
 *	  Which schema changes of a node group need a lock on their tables.
 *
 * A member A executes a statement S; another member C goes on writing rows, and applies S later.
 * S needs no lock if, whatever C writes before or after that,
 *	 - C can execute S with the rows that it has, if A could;
 *	 - every member can store the rows that C has written without S after it has executed S;
 *	 - all members end with the same rows, in whatever order they get S and C's rows.
 * (A member that gets rows which C has written with S before it gets S waits for S, see
 * apply/schema_wait.c.)
 *
 * Only statements that are known to be like that need no lock; every other one does.  Some
 * that look harmless are not:
 *	 - SET DEFAULT and DROP DEFAULT: a row that C has written without a new column gets the
 *	   column's default when S = ADD COLUMN is executed on a member that has the row, and the
 *	   default of that moment on a member that gets the row later.  So the default must not
 *	   change before all members have the column.
 *	 - ADD COLUMN with a default, with REPLICA IDENTITY FULL: C's UPDATE names the old row without
 *	   the column, and no row with the column is equal to that.
 *	 - An index on an expression: it may fail for a row of C's, and so may its predicate.  The few
 *	   expressions that never fail are allowed.
 *	 - A partition: if the parent has a default partition, C may store rows there that belong to
 *	   the new partition, and then it cannot create that one.
 *	 - 'now' and the like: every member takes its own time for it.
 *
 * The answer depends on the tables as they are before the statement.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/tablecmds.h"
#include "ddl/needs_lock.h"
#include "nodes/parsenodes.h"
#include "nodes/value.h"
#include "parser/parse_type.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

/* Is a string one that means another time at each moment? */
static bool
is_moment(const char *string)
{
	static const char *const words[] = {"now", "today", "tomorrow", "yesterday"};

	for (int i = 0; i < lengthof(words); i++)
	{
		const char *found = string;

		while (*found != '\0' && pg_strncasecmp(found, words[i], strlen(words[i])) != 0)
			found++;
		if (*found != '\0')
			return true;
	}
	return false;
}

/* Does an expression, as the parser has left it, have the same value everywhere and at any time? */
static bool
is_constant(Node *expression)
{
	A_Const    *constant = (A_Const *) expression;

	if (IsA(expression, TypeCast))
		return is_constant(((TypeCast *) expression)->arg);
	return IsA(expression, A_Const) &&
		(constant->isnull || !IsA(&constant->val, String) ||
		 !is_moment(constant->val.sval.sval));
}

static bool
is_null(Node *expression)
{
	if (IsA(expression, TypeCast))
		return is_null(((TypeCast *) expression)->arg);
	return IsA(expression, A_Const) && ((A_Const *) expression)->isnull;
}

/* Returns a table that exists, or InvalidOid. */
static Oid
find_table(const RangeVar *name)
{
	return RangeVarGetRelid(name, NoLock, true);
}

/* Has a table, or any of its partitions and children, REPLICA IDENTITY FULL? */
static bool
any_is_full(Oid relid)
{
	foreach_oid(each, find_all_inheritors(relid, NoLock, NULL))
	{
		HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(each));
		bool		full;

		/* It has been dropped meanwhile. */
		if (!HeapTupleIsValid(tuple))
			return true;
		full = ((Form_pg_class) GETSTRUCT(tuple))->relreplident == REPLICA_IDENTITY_FULL;
		ReleaseSysCache(tuple);
		if (full)
			return true;
	}
	return false;
}

/* A domain may refuse the NULL that old rows get. */
static bool
type_fits(const TypeName *name)
{
	Type		type = LookupTypeName(NULL, name, NULL, true);
	bool		result;

	if (type == NULL)
		return false;
	result = ((Form_pg_type) GETSTRUCT(type))->typtype != TYPTYPE_DOMAIN;
	ReleaseSysCache(type);
	return result;
}

/* ADD COLUMN that is nullable, or has a constant default. */
static bool
add_column_fits(Oid relid, ColumnDef *column)
{
	bool		not_null = column->is_not_null;
	bool		has_default = column->raw_default != NULL;

	if (column->typeName == NULL || !type_fits(column->typeName) ||
		column->identity != '\0' || column->generated != '\0' ||
		(column->raw_default != NULL && !is_constant(column->raw_default)))
		return false;
	foreach_node(Constraint, constraint, column->constraints)
	{
		switch (constraint->contype)
		{
			case CONSTR_NULL:
				break;
			case CONSTR_NOTNULL:
				not_null = true;
				break;
			case CONSTR_DEFAULT:
				if (!is_constant(constraint->raw_expr))
					return false;
				if (!is_null(constraint->raw_expr))
					has_default = true;
				break;
			default:
				return false;
		}
	}
	if (has_default)
		return !any_is_full(relid);
	return !not_null;
}

/* ALTER COLUMN TYPE that makes a varchar longer, or a text. */
static bool
widens_varchar(Oid relid, const char *name, ColumnDef *column)
{
	HeapTuple	tuple;
	Oid			old_type;
	int32		old_typmod;
	Type		type;
	int32		typmod;
	Oid			type_oid;

	if (column->raw_default != NULL || column->collClause != NULL)
		return false;
	tuple = SearchSysCacheAttName(relid, name);
	if (!HeapTupleIsValid(tuple))
		return false;
	old_type = ((Form_pg_attribute) GETSTRUCT(tuple))->atttypid;
	old_typmod = ((Form_pg_attribute) GETSTRUCT(tuple))->atttypmod;
	if (((Form_pg_attribute) GETSTRUCT(tuple))->attcollation != get_typcollation(old_type))
		old_type = InvalidOid;	/* the statement would change that */
	ReleaseSysCache(tuple);
	type = LookupTypeName(NULL, column->typeName, &typmod, true);
	if (type == NULL)
		return false;
	type_oid = typeTypeId(type);
	ReleaseSysCache(type);
	if (old_type != VARCHAROID)
		return false;
	if (type_oid == TEXTOID)
		return true;
	return type_oid == VARCHAROID && (typmod < 0 || (old_typmod >= 0 && typmod >= old_typmod));
}

/* Does a subcommand of ALTER TABLE for an existing table fit all rows? */
static bool
command_fits(Oid relid, AlterTableCmd *command)
{
	switch (command->subtype)
	{
		case AT_AddColumn:
			return add_column_fits(relid, castNode(ColumnDef, command->def));
		case AT_AlterColumnType:
			return widens_varchar(relid, command->name, castNode(ColumnDef, command->def));

		case AT_DropNotNull:
			/* about statistics, and how rows are stored */
		case AT_ClusterOn:
		case AT_DropCluster:
		case AT_ResetOptions:
		case AT_ResetRelOptions:
		case AT_SetCompression:
		case AT_SetOptions:
		case AT_SetRelOptions:
		case AT_SetStatistics:
		case AT_SetStorage:
			return true;
		default:
			return false;
	}
}

static bool
alter_table_fits(AlterTableStmt *statement)
{
	Oid			relid;

	switch (statement->objtype)
	{
		case OBJECT_VIEW:
		case OBJECT_MATVIEW:
			return true;
		case OBJECT_INDEX:
		case OBJECT_TABLE:
			break;
		default:
			return false;
	}
	relid = find_table(statement->relation);
	if (!OidIsValid(relid))
		return false;
	foreach_node(AlterTableCmd, command, statement->cmds)
		if (!command_fits(relid, command))
		return false;
	return true;
}

/* Does an operator of the predicate of an index never fail? */
static bool
operator_is_safe(A_Expr *expression)
{
	static const char *const names[] = {
		"=", "<>", "<", ">", "<=", ">=", "~~", "!~~",
	};

	if (list_length(expression->name) != 1)
		return false;
	if (expression->kind != AEXPR_OP && expression->kind != AEXPR_IN &&
		expression->kind != AEXPR_LIKE && expression->kind != AEXPR_BETWEEN &&
		expression->kind != AEXPR_DISTINCT && expression->kind != AEXPR_NOT_DISTINCT)
		return false;
	if (expression->kind == AEXPR_BETWEEN)
		return true;
	for (int i = 0; i < lengthof(names); i++)
		if (strcmp(strVal(linitial(expression->name)), names[i]) == 0)
			return true;
	return false;
}

static bool expression_is_safe(Node *expression);

static bool
expressions_are_safe(List *expressions)
{
	foreach_ptr(Node, each, expressions)
		if (!expression_is_safe(each))
		return false;
	return true;
}

/* lower() and upper() of a string never fail. */
static bool
function_is_safe(FuncCall *call)
{
	const char *name = strVal(llast(call->funcname));

	return list_length(call->funcname) == 1 && list_length(call->args) == 1 &&
		(strcmp(name, "lower") == 0 || strcmp(name, "upper") == 0) &&
		expressions_are_safe(call->args);
}

/* Can an expression, as the parser has left it, fail for no row? */
static bool
expression_is_safe(Node *expression)
{
	if (expression == NULL)
		return true;
	switch (nodeTag(expression))
	{
		case T_ColumnRef:
			return true;
		case T_A_Const:
			return is_constant(expression);
		case T_List:
			return expressions_are_safe((List *) expression);
		case T_A_Expr:
			return operator_is_safe((A_Expr *) expression) &&
				expression_is_safe(((A_Expr *) expression)->lexpr) &&
				expression_is_safe(((A_Expr *) expression)->rexpr);
		case T_BoolExpr:
			return expressions_are_safe(((BoolExpr *) expression)->args);
		case T_NullTest:
			return expression_is_safe((Node *) ((NullTest *) expression)->arg);
		case T_BooleanTest:
			return expression_is_safe((Node *) ((BooleanTest *) expression)->arg);
		case T_CoalesceExpr:
			return expressions_are_safe(((CoalesceExpr *) expression)->args);
		case T_FuncCall:
			return function_is_safe((FuncCall *) expression);
		default:
			return false;
	}
}

/* An index that refuses no row, and fails for none. */
static bool
index_fits(IndexStmt *statement)
{
	if (statement->unique || statement->primary || statement->isconstraint ||
		statement->excludeOpNames != NIL)
		return false;
	foreach_node(IndexElem, element, statement->indexParams)
		if (!expression_is_safe(element->expr))
		return false;
	return expression_is_safe(statement->whereClause);
}

static bool
has_default_partition(Oid relid)
{
	return OidIsValid(get_default_partition_oid(relid));
}

static bool
create_table_fits(CreateStmt *statement)
{
	Oid			parent;

	if (statement->partbound == NULL)
		return true;
	parent = find_table(linitial_node(RangeVar, statement->inhRelations));
	return OidIsValid(parent) && !statement->partbound->is_default &&
		!has_default_partition(parent);
}

/* The statements within CREATE SCHEMA. */
static bool
create_schema_fits(CreateSchemaStmt *statement)
{
	foreach_ptr(Node, element, statement->schemaElts)
		if (ddl_needs_lock(element))
		return false;
	return true;
}

/* An index that refuses no row, and identifies none. */
static bool
drop_index_fits(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(relid));
	Form_pg_index form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_index) GETSTRUCT(tuple);
	result = !form->indisunique && !form->indisexclusion && !form->indisreplident;
	ReleaseSysCache(tuple);
	return result;
}

/* What nothing depends on, and no row needs. */
static bool
drop_fits(DropStmt *statement)
{
	if (statement->behavior != DROP_RESTRICT)
		return false;
	switch (statement->removeType)
	{
		case OBJECT_AGGREGATE:
		case OBJECT_FUNCTION:
		case OBJECT_MATVIEW:
		case OBJECT_PROCEDURE:
		case OBJECT_ROUTINE:
		case OBJECT_STATISTIC_EXT:
		case OBJECT_VIEW:
			return true;
		case OBJECT_INDEX:
			foreach_node(List, name, statement->objects)
			{
				Oid			relid = find_table(makeRangeVarFromNameList(name));

				if (!OidIsValid(relid) || !drop_index_fits(relid))
					return false;
			}
			return true;
		default:
			return false;
	}
}

/* Does a statement fit the old and new rows of all members, at any time and in any order? */
static bool
fits(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_AlterTableStmt:
			return alter_table_fits((AlterTableStmt *) statement);
		case T_AlterEnumStmt:
			return ((AlterEnumStmt *) statement)->oldVal == NULL;
		case T_CreateStmt:
			return create_table_fits((CreateStmt *) statement);
		case T_CreateSchemaStmt:
			return create_schema_fits((CreateSchemaStmt *) statement);
		case T_DropStmt:
			return drop_fits((DropStmt *) statement);
		case T_IndexStmt:
			return index_fits((IndexStmt *) statement);

			/* new objects, on which no row depends yet */
		case T_CompositeTypeStmt:
		case T_CreateAmStmt:
		case T_CreateCastStmt:
		case T_CreateConversionStmt:
		case T_CreateDomainStmt:
		case T_CreateEnumStmt:
		case T_CreateExtensionStmt:
		case T_CreateOpClassStmt:
		case T_CreateOpFamilyStmt:
		case T_CreatePLangStmt:
		case T_CreateRangeStmt:
		case T_CreateSeqStmt:
		case T_CreateStatsStmt:
		case T_CreateTableAsStmt:
		case T_CreateTransformStmt:
		case T_DefineStmt:
			/* functions, views, comments, rights, statistics */
		case T_AlterDefaultPrivilegesStmt:
		case T_AlterFunctionStmt:
		case T_AlterObjectDependsStmt:
		case T_AlterStatsStmt:
		case T_CommentStmt:
		case T_CreateFunctionStmt:
		case T_GrantStmt:
		case T_ViewStmt:
			return true;

		default:
			return false;
	}
}

/*
 * Does a schema change, as the parser has left it, need a lock on its tables in a node group?
 * To be asked in a transaction, on the member where it is made, and before it is executed.
 */
bool
ddl_needs_lock(Node *statement)
{
	return !fits(statement);
}

/* How a schema change locks its tables, or more. */
LOCKMODE
ddl_lock_mode(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_AlterTableStmt:
			return AlterTableGetLockLevel(((AlterTableStmt *) statement)->cmds);
		case T_CreateTrigStmt:
			return ShareRowExclusiveLock;
		case T_IndexStmt:
			return ShareLock;
		default:
			return AccessExclusiveLock;
	}
}
