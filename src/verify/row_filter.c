/*
 * row_filter.c
 *	  Decides whether a publisher's row filter may be evaluated here.
 *
 * The text comes from the publisher, which may be somebody else's.  Here it would run with the rights
 * of the subscription's owner.  Therefore, it is accepted only if it has no code of any user in it:
 *
 * 1. It is parsed, but not analyzed yet.  It must be one expression; its functions and operators
 *	  must be those of pg_catalog, its types built-in, and so must be the types of the columns
 *	  that it names.  This comes first, because the analysis evaluates constants: the
 *	  input function of a composite type, for instance, evaluates the CHECK constraints of domains in it.
 * 2. It is analyzed for the local table, with a search path that contains nothing but pg_catalog.  All objects in
 *	  the result are checked again, as the server does for row filters.
 * 3. The text is made anew of the result.
 *
 * The second question is whether it means the same here.  What two machines may disagree on is how a
 * collation orders text and which characters are letters.  Functions that are known not to
 * depend on that are accepted; with other ones, the collation must be "C".
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_proc.h"
#include "compat.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_clause.h"
#include "parser/parse_collate.h"
#include "parser/parse_relation.h"
#include "parser/parse_type.h"
#include "parser/parser.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/pg_locale.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/ruleutils.h"
#include "verify/row_filter.h"

/* Objects with smaller OIDs are the server's, and cannot be dropped or replaced by others. */
#define BUILT_IN(oid) ((oid) < FirstUnpinnedObjectId)

typedef struct FilterCheck
{
	Relation	rel;
	const char *problem;		/* NULL if there is none yet */
} FilterCheck;

/* Is this the name of something that can only be found in pg_catalog? */
static bool
in_pg_catalog(List *name)
{
	return list_length(name) == 1 ||
		(list_length(name) == 2 && strcmp(strVal(linitial(name)), "pg_catalog") == 0);
}

static const char *
check_column(Relation rel, const ColumnRef *ref)
{
	TupleDesc	desc = RelationGetDescr(rel);

	if (list_length(ref->fields) == 1 && IsA(linitial(ref->fields), String))
		for (int i = 0; i < desc->natts; i++)
		{
			Form_pg_attribute att = TupleDescAttr(desc, i);

			if (att->attisdropped ||
				strcmp(NameStr(att->attname), strVal(linitial(ref->fields))) != 0)
				continue;
			return BUILT_IN(att->atttypid) ? NULL : "a column has a type that is not built-in";
		}
	return "a column does not exist here";
}

static const char *
check_type_name(const TypeName *type)
{
	Oid			oid;

	if (type->pct_type || type->setof)
		return "it contains an unusual name of a type";
	oid = LookupTypeNameOid(NULL, type, true);
	if (!OidIsValid(oid) || !BUILT_IN(oid))
		return "it uses a type that is not built-in";
	return NULL;
}

/* Checks what the parser has made of the text, before it is analyzed. */
static bool
check_raw(Node *node, void *context)
{
	FilterCheck *check = context;

	if (node == NULL)
		return false;
	check_stack_depth();
	switch (nodeTag(node))
	{
		case T_ColumnRef:
			check->problem = check_column(check->rel, (ColumnRef *) node);
			return check->problem != NULL;
		case T_TypeName:
			check->problem = check_type_name((TypeName *) node);
			break;
		case T_FuncCall:
			if (!in_pg_catalog(((FuncCall *) node)->funcname))
				check->problem = "it calls a function that is not built-in";
			break;
		case T_A_Expr:
			if (!in_pg_catalog(((A_Expr *) node)->name))
				check->problem = "it uses an operator that is not built-in";
			break;
		case T_String:
		case T_A_Const:
		case T_A_ArrayExpr:
		case T_BoolExpr:
		case T_BooleanTest:
		case T_CaseExpr:
		case T_CaseWhen:
		case T_CoalesceExpr:
		case T_CollateClause:
		case T_List:
		case T_MinMaxExpr:
		case T_NullTest:
		case T_RowExpr:
		case T_TypeCast:
			break;
		default:
			check->problem = "it contains more than columns, constants, functions and operators";
	}
	return check->problem != NULL || raw_expression_tree_walker(node, check_raw, context);
}

/* Is the result of the function the same under all deterministic collations? */
static bool
ignores_collation(Oid function)
{
	switch (function)
	{
		case F_TEXTEQ:
		case F_TEXTNE:
		case F_TEXTLIKE:
		case F_TEXTNLIKE:
		case F_BPCHAREQ:
		case F_BPCHARNE:
		case F_BPCHARLIKE:
		case F_BPCHARNLIKE:
		case F_STARTS_WITH:
		case F_LENGTH_TEXT:
		case F_LENGTH_BPCHAR:
		case F_CHAR_LENGTH_TEXT:
		case F_OCTET_LENGTH_TEXT:
		case F_SUBSTR_TEXT_INT4:
		case F_SUBSTR_TEXT_INT4_INT4:
		case F_SUBSTRING_TEXT_INT4:
		case F_SUBSTRING_TEXT_INT4_INT4:
		case F_LEFT:
		case F_RIGHT:
		case F_STRPOS:
		case F_POSITION_TEXT_TEXT:
		case F_TEXTCAT:
		case F_TEXT_BPCHAR:
		case F_BTRIM_TEXT:
		case F_LTRIM_TEXT:
		case F_RTRIM_TEXT:
		case F_HASHTEXT:
		case F_HASHTEXTEXTENDED:
		case F_MD5_TEXT:
			return true;
		default:
			return false;
	}
}

static bool
same_under(Oid function, Oid collation)
{
	return compat_collation_is_c(collation) ||
		(ignores_collation(function) && get_collation_isdeterministic(collation));
}

static bool
is_not_allowed(Oid function, void *context)
{
	return !BUILT_IN(function) || func_volatile(function) != PROVOLATILE_IMMUTABLE;
}

/* The function of a node that has an input collation, or InvalidOid. */
static Oid
function_of(Node *node)
{
	switch (nodeTag(node))
	{
		case T_FuncExpr:
			return ((FuncExpr *) node)->funcid;
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
			return ((OpExpr *) node)->opfuncid;
		case T_ScalarArrayOpExpr:
			return ((ScalarArrayOpExpr *) node)->opfuncid;
		default:
			return InvalidOid;
	}
}

static const char *
check_node(Node *node)
{
	Oid			collation = exprInputCollation(node);

	switch (nodeTag(node))
	{
		case T_Var:
			if (((Var *) node)->varattno <= 0)
				return "it depends on something other than a column's value";
			break;
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
			if (!BUILT_IN(((OpExpr *) node)->opno))
				return "it uses an operator that is not built-in";
			break;
		case T_ScalarArrayOpExpr:
			if (!BUILT_IN(((ScalarArrayOpExpr *) node)->opno))
				return "it uses an operator that is not built-in";
			break;
		case T_ArrayCoerceExpr:
		case T_ArrayExpr:
		case T_BoolExpr:
		case T_BooleanTest:
		case T_CaseExpr:
		case T_CaseTestExpr:
		case T_CoalesceExpr:
		case T_CoerceViaIO:
		case T_CollateExpr:
		case T_Const:
		case T_FuncExpr:
		case T_MinMaxExpr:
		case T_NullTest:
		case T_RelabelType:
			break;
		default:
			return "it contains more than columns, constants, functions and operators";
	}
	if (!BUILT_IN(exprType(node)))
		return "it uses a type that is not built-in";
	if (exprCollation(node) >= FirstNormalObjectId || collation >= FirstNormalObjectId)
		return "it uses a collation that is not built-in";
	if (check_functions_in_node(node, is_not_allowed, NULL))
		return "it calls a function that is not built-in or not immutable";
	if (OidIsValid(collation) && !same_under(function_of(node), collation))
		return "its result depends on a collation";
	return NULL;
}

/* Checks what the analysis has made of it. */
static bool
check_analyzed(Node *node, void *context)
{
	FilterCheck *check = context;

	if (node == NULL)
		return false;
	if (!IsA(node, List))
		check->problem = check_node(node);
	return check->problem != NULL || expression_tree_walker(node, check_analyzed, context);
}

/* Returns the only expression of "SELECT expression", or NULL if there is anything else. */
static Node *
only_expression(const char *text)
{
	List	   *statements = raw_parser(psprintf("SELECT %s", text), RAW_PARSE_DEFAULT);
	SelectStmt *bare = makeNode(SelectStmt);
	SelectStmt *select;
	ResTarget  *target;

	if (list_length(statements) != 1)
		return NULL;
	select = (SelectStmt *) linitial_node(RawStmt, statements)->stmt;
	if (!IsA(select, SelectStmt) || list_length(select->targetList) != 1)
		return NULL;
	target = linitial_node(ResTarget, select->targetList);
	if (target->name != NULL || target->indirection != NIL)
		return NULL;

	/* Nothing but the target list may distinguish it from an empty SELECT. */
	bare->targetList = select->targetList;
	bare->limitOption = LIMIT_OPTION_COUNT;
	select->limitOption = LIMIT_OPTION_COUNT;
	return equal(select, bare) ? target->val : NULL;
}

static const char *
make_local(Relation rel, const char *text, Bitmapset **columns, char **result)
{
	FilterCheck check = {.rel = rel};
	ParseState *pstate = make_parsestate(NULL);
	Node	   *node = only_expression(text);

	if (node == NULL)
		return "it is not an expression";
	if (check_raw(node, &check))
		return check.problem;

	addNSItemToQuery(pstate,
					 addRangeTableEntryForRelation(pstate, rel, AccessShareLock, NULL, false, false),
					 false, true, true);
	/* the kind of expression that may contain the least */
	node = transformWhereClause(pstate, node, EXPR_KIND_INDEX_PREDICATE, "row filter");
	assign_expr_collations(pstate, node);
	if (check_analyzed(node, &check))
		return check.problem;
	pull_varattnos(node, 1, columns);
	*result = deparse_expression(node, deparse_context_for(RelationGetRelationName(rel),
														   RelationGetRelid(rel)),
								 false, false);
	return NULL;
}

/* The same in a subtransaction, because the text may be anything. */
static const char *
try_local(Oid relid, const char *text, Bitmapset **columns, char **result)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	const char *problem = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		Relation	rel = relation_open(relid, AccessShareLock);

		/*
		 * The subtransaction's end resets it.  A temporary table's type comes
		 * last.
		 */
		(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
		problem = make_local(rel, text, columns, result);
		relation_close(rel, NoLock);
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED ||
			error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN ||
			error->sqlerrcode == ERRCODE_OUT_OF_MEMORY)
			ReThrowError(error);
		problem = error->message;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
	return problem;
}

char *
row_filter_local(Oid relid, const char *text, Bitmapset **columns, char **problem)
{
	Bitmapset  *attributes = NULL;
	char	   *result = NULL;
	const char *reason = try_local(relid, text, &attributes, &result);
	int			attribute = -1;

	if (reason != NULL)
	{
		*problem = psprintf("The row filter %s cannot be used here: %s.", text, reason);
		return NULL;
	}
	while ((attribute = bms_next_member(attributes, attribute)) >= 0)
		*columns = bms_add_member(*columns, attribute + FirstLowInvalidHeapAttributeNumber);
	*problem = NULL;
	return result;
}
