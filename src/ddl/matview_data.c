/*
 * matview_data.c
 *	  Whether a new materialized view can be filled.
 *
 * CREATE MATERIALIZED VIEW fills it from the subscriber's rows.  REFRESH is not replicated, so a
 * materialized view that it reads, and that has been refreshed on the publisher, may be
 * unpopulated here, and nobody can read it.  Then the new one is created WITH NO DATA.
 */
#include "postgres.h"

#include "access/table.h"
#include "ddl/matview_data.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "rewrite/rewriteHandler.h"
#include "utils/rel.h"

static bool reads_unpopulated(Node *node, void *context);

/* Does a relation of a query lead to an unpopulated materialized view? */
static bool
is_unpopulated(Oid relid)
{
	Relation	rel = table_open(relid, AccessShareLock);
	bool		result = rel->rd_rel->relkind == RELKIND_MATVIEW && !RelationIsPopulated(rel);

	if (rel->rd_rel->relkind == RELKIND_VIEW)
		result = reads_unpopulated((Node *) get_view_query(rel), NULL);
	table_close(rel, AccessShareLock);
	return result;
}

static bool
reads_unpopulated(Node *node, void *context)
{
	check_stack_depth();
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
		return ((RangeTblEntry *) node)->rtekind == RTE_RELATION &&
			is_unpopulated(((RangeTblEntry *) node)->relid);
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, reads_unpopulated, context,
								 QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, reads_unpopulated, context);
}

/* Changes a statement that has been analyzed, if it creates a materialized view. */
void
matview_data_choose(Node *statement)
{
	CreateTableAsStmt *create = (CreateTableAsStmt *) statement;

	if (IsA(statement, CreateTableAsStmt) && create->objtype == OBJECT_MATVIEW &&
		reads_unpopulated(create->query, NULL))
		create->into->skipData = true;
}
