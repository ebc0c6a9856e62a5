/*
 * partition_bound.c
 *	  Bounds of partitions that are not the same on every server.
 *
 * A bound may be an expression, such as now(), or a constant that means the current time, such as
 * 'today'.  The server computes it when it attaches the partition.  A subscriber would compute
 * another one, and the publisher's rows would not fit there.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_partitioned_table.h"
#include "catalog/pg_type.h"
#include "ddl/default_value.h"
#include "ddl/expression.h"
#include "ddl/partition_bound.h"
#include "parser/parse_coerce.h"
#include "parser/parse_collate.h"
#include "parser/parse_expr.h"
#include "parser/parse_node.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

/* May a column of the partition key be a date or a time?  An expression may be. */
static bool
is_moment(Oid parent, int column)
{
	HeapTuple	tuple = SearchSysCache1(PARTRELID, ObjectIdGetDatum(parent));
	Form_pg_partitioned_table form;
	AttrNumber	number = InvalidAttrNumber;
	char		category;
	bool		preferred;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_partitioned_table) GETSTRUCT(tuple);
	if (column < form->partnatts)
		number = form->partattrs.values[column];
	ReleaseSysCache(tuple);
	if (number == InvalidAttrNumber)
		return true;
	get_type_category_preferred(get_atttype(parent, number), &category, &preferred);
	return category == TYPCATEGORY_DATETIME;
}

static bool
value_varies(Node *value, Oid parent, int column, const char *source)
{
	ParseState *pstate;
	Node	   *expression;

	/* MINVALUE and MAXVALUE are what they are. */
	if (IsA(value, ColumnRef))
		return false;
	if (default_names_moment(value) && is_moment(parent, column))
		return true;
	pstate = make_parsestate(NULL);
	pstate->p_sourcetext = source;
	expression = transformExpr(pstate, copyObject(value), EXPR_KIND_PARTITION_BOUND);
	assign_expr_collations(pstate, expression);
	free_parsestate(pstate);
	return expression_is_mutable(expression);
}

static bool
any_varies(List *values, Oid parent, bool list, const char *source)
{
	int			column = 0;

	foreach_ptr(Node, value, values)
	{
		if (value_varies(value, parent, list ? 0 : column, source))
			return true;
		column++;
	}
	return false;
}

/* Would a subscriber compute other bounds? */
bool
partition_bound_varies(PartitionBoundSpec *bound, Oid parent, const char *source)
{
	return any_varies(bound->listdatums, parent, true, source) ||
		any_varies(bound->lowerdatums, parent, false, source) ||
		any_varies(bound->upperdatums, parent, false, source);
}
