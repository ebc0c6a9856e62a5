/*
 * default_value.c
 *	  What a new column's default gives the existing rows.
 *
 * ALTER TABLE t ADD COLUMN c timestamptz DEFAULT now() stores one value in all existing rows, and
 * on the subscriber it would be another one.  Therefore the publisher computes the value
 * and sends it along, and the subscriber executes
 *
 *		ALTER TABLE t ADD COLUMN c timestamptz DEFAULT 'the value', ALTER COLUMN c SET DEFAULT now()
 *
 * The server computes the default of new columns before it sets another one, whatever else the
 * statement does.
 *
 * A default such as 'today' means the current time only when it is parsed.  It is a constant, so the subscriber
 * keeps the publisher's.
 *
 * The server computes the value on the publisher as well, later in the same statement.  A stable
 * function gives the same result both times.
 */
#include "postgres.h"

#include "catalog/heap.h"
#include "ddl/ddl_message.h"
#include "ddl/default_value.h"
#include "ddl/expression.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "parser/parse_node.h"
#include "parser/parse_type.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

/* Words that the input functions of dates and times replace by the current time. */
static const char *const moments[] = {"now", "today", "tomorrow", "yesterday"};

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/* Is a type one of those that the parser turns into an integer with a sequence? */
static bool
is_serial(const TypeName *type)
{
	static const char *const names[] = {
		"serial", "serial2", "serial4", "serial8", "smallserial", "bigserial",
	};

	if (type == NULL || list_length(type->names) != 1 || type->pct_type)
		return false;
	for (int i = 0; i < lengthof(names); i++)
		if (strcmp(strVal(linitial(type->names)), names[i]) == 0)
			return true;
	return false;
}

static Constraint *
find_constraint(ColumnDef *column, ConstrType type)
{
	foreach_ptr(Node, each, column->constraints)
		if (IsA(each, Constraint) && ((Constraint *) each)->contype == type)
		return (Constraint *) each;
	return NULL;
}

/*
 * Does a text contain a word that means the current time?  It may be anywhere: ' now', '10:00 today', '[now,)', '{now}'.
 */
static bool
has_moment(const char *text)
{
	while (*text !='\0')
	{
		int			length = strspn(text, letters);

		for (int i = 0; i < lengthof(moments); i++)
			if (strlen(moments[i]) == length && pg_strncasecmp(text, moments[i], length) == 0)
				return true;
		text	  +=Max(length, 1);
	}
	return false;
}

/* Has an expression, as parsed, a constant that may mean the current time? */
static bool
names_moment(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, A_Const) && !((A_Const *) node)->isnull &&
		IsA(&((A_Const *) node)->val, String) && has_moment(strVal(&((A_Const *) node)->val)))
		return true;
	return raw_expression_tree_walker(node, names_moment, context);
}

/* Does an expression, as parsed, have a constant that may mean the current time? */
bool
default_names_moment(Node *expression)
{
	return names_moment(expression, NULL);
}

/* Returns the default of a column, converted to its type, or NULL. */
static Node *
cook(ColumnDef *column, const char *source)
{
	Constraint *constraint = find_constraint(column, CONSTR_DEFAULT);
	ParseState *pstate = make_parsestate(NULL);
	Oid			type;
	int32		typmod;
	Node	   *result;

	if (constraint == NULL)
		return NULL;
	pstate->p_sourcetext = source;
	typenameTypeIdAndMod(pstate, column->typeName, &type, &typmod);
	result = cookDefault(pstate, copyObject(constraint->raw_expr), type, typmod,
						 column->colname, '\0');
	free_parsestate(pstate);
	return result;
}

/* The default of a domain, or another type, which a column gets that has none. */
static DefaultKind
kind_of_type(ColumnDef *column)
{
	Node	   *expression = get_typdefault(typenameTypeId(NULL, column->typeName));

	if (expression == NULL || !expression_is_mutable(expression))
		return DEFAULT_SAME;
	return expression_varies_by_row(expression) ? DEFAULT_VOLATILE : DEFAULT_STABLE_OF_TYPE;
}

/* What does a new column's default give the existing rows? */
DefaultKind
default_kind(ColumnDef *column, const char *source)
{
	Node	   *expression;

	if (is_serial(column->typeName) || find_constraint(column, CONSTR_IDENTITY))
		return DEFAULT_VOLATILE;
	if (find_constraint(column, CONSTR_GENERATED))
		return DEFAULT_SAME;
	expression = cook(column, source);
	if (expression == NULL)
		return kind_of_type(column);
	if (expression_varies_by_row(expression))
		return DEFAULT_VOLATILE;
	if (expression_is_mutable(expression) ||
		names_moment(find_constraint(column, CONSTR_DEFAULT)->raw_expr, NULL))
		return DEFAULT_STABLE;
	return DEFAULT_SAME;
}

/* Computes a default; returns its value as text, or NULL. */
static char *
compute(Node *expression)
{
	EState	   *estate = CreateExecutorState();
	ExprContext *context = GetPerTupleExprContext(estate);
	ExprState  *state = ExecPrepareExpr((Expr *) expression, estate);
	bool		isnull;
	Datum		value = ExecEvalExprSwitchContext(state, context, &isnull);
	char	   *result = NULL;
	Oid			output;
	bool		is_varlena;

	if (!isnull)
	{
		getTypeOutputInfo(exprType(expression), &output, &is_varlena);
		result = pstrdup(OidOutputFunctionCall(output, value));
	}
	FreeExecutorState(estate);
	return result;
}

static void
set(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
							 true, 0, false);
}

/*
 * Computes the stable defaults among those of new columns, as a list of DdlValue.  Their text is
 * such that it means the same under all of a session's settings.
 */
List *
default_values(AlterTableStmt *statement, const char *source)
{
	int			level = NewGUCNestLevel();
	List	   *result = NIL;

	foreach_node(AlterTableCmd, command, statement->cmds)
	{
		ColumnDef  *column = (ColumnDef *) command->def;
		DdlValue   *value;
		Node	   *expression;

		if (command->subtype != AT_AddColumn ||
			default_kind(column, source) != DEFAULT_STABLE)
			continue;
		expression = cook(column, source);
		set("DateStyle", "ISO");
		set("IntervalStyle", "postgres");
		set("extra_float_digits", "3");
		value = palloc(sizeof(DdlValue));
		value->column = pstrdup(column->colname);
		value->value = compute(expression);
		value->constant = !expression_is_mutable(expression);
		result = lappend(result, value);
		AtEOXact_GUC(true, level);
		level = NewGUCNestLevel();
	}
	AtEOXact_GUC(true, level);
	return result;
}

/* The default of the new column of that name, in the statement's tree. */
static Constraint *
find_default(AlterTableStmt *statement, const char *column)
{
	foreach_node(AlterTableCmd, command, statement->cmds)
		if (command->subtype == AT_AddColumn &&
			strcmp(((ColumnDef *) command->def)->colname, column) == 0)
		return find_constraint((ColumnDef *) command->def, CONSTR_DEFAULT);
	return NULL;
}

/*
 * Sets the default of a new column once that has been added.  The statement itself may set
 * another one after that, which must win.
 */
static void
set_default_later(AlterTableStmt *statement, char *column, Node *expression)
{
	AlterTableCmd *command = makeNode(AlterTableCmd);
	int			place = 0;

	while (((AlterTableCmd *) list_nth(statement->cmds, place))->subtype != AT_AddColumn)
		place++;
	command->subtype = AT_ColumnDefault;
	command->name = column;
	command->def = expression;
	command->behavior = DROP_RESTRICT;
	statement->cmds = list_insert_nth(statement->cmds, place + 1, command);
}

/* Puts a constant in the place of a column's default. */
static void
replace_default(AlterTableStmt *statement, Constraint *constraint, DdlValue *value)
{
	A_Const    *constant = makeNode(A_Const);

	if (!value->constant)
		set_default_later(statement, value->column, constraint->raw_expr);
	constant->location = -1;
	constant->isnull = value->value == NULL;
	if (value->value)
	{
		constant->val.sval.type = T_String;
		constant->val.sval.sval = value->value;
	}
	constraint->raw_expr = (Node *) constant;
}

/* Makes a statement of the publisher store the values that it has stored there. */
void
default_value_apply(Node *statement, List *values)
{
	foreach_ptr(DdlValue, value, values)
	{
		Constraint *constraint = IsA(statement, AlterTableStmt) ?
			find_default((AlterTableStmt *) statement, value->column) : NULL;

		if (constraint == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("the message about a schema change is malformed: column \"%s\" has no default",
							value->column)));
		replace_default((AlterTableStmt *) statement, constraint, value);
	}
}
