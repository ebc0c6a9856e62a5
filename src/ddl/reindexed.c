/*
 * reindexed.c
 *	  REINDEX that makes invalid indexes valid.
 *
 * A CREATE INDEX CONCURRENTLY that fails leaves an invalid index behind, which subscribers do not know
 * (convert.c).  REINDEX of it is one way to complete it.  REINDEX is no schema change otherwise.  Therefore, an
 * index that it has made valid is published as CREATE INDEX ... IF NOT EXISTS: the index may be what an interrupted
 * DROP INDEX CONCURRENTLY has left, which subscribers still have.
 *
 * REINDEX CONCURRENTLY gives the name of the index to a new one.  Therefore indexes are known by their names.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "commands/defrem.h"
#include "ddl/reindexed.h"
#include "nodes/makefuncs.h"
#include "utils/lsyscache.h"

/* An index that was invalid. */
typedef struct Invalid
{
	Oid			table;
	char	   *name;
} Invalid;

static List *
add(List *invalid, Oid index, Oid table)
{
	Invalid    *result;

	if (get_rel_relkind(index) != RELKIND_INDEX ||
		get_rel_persistence(index) != RELPERSISTENCE_PERMANENT)
		return invalid;
	result = palloc(sizeof(Invalid));
	result->table = table;
	result->name = get_rel_name(index);
	return lappend(invalid, result);
}

/* Returns the indexes that are invalid before a REINDEX: the one that it names, or all of the database. */
List *
reindexed_before(const ReindexStmt *statement)
{
	List	   *result = NIL;
	Relation	catalog;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (statement->kind == REINDEX_OBJECT_INDEX)
	{
		Oid			index = RangeVarGetRelid(statement->relation, NoLock, true);

		if (OidIsValid(index) && get_rel_relkind(index) == RELKIND_INDEX)
			return get_index_isvalid(index) ? NIL :
				add(NIL, index, IndexGetRelation(index, true));
	}
	catalog = table_open(IndexRelationId, AccessShareLock);
	scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_index form = (Form_pg_index) GETSTRUCT(tuple);

		if (!form->indisvalid)
			result = add(result, form->indexrelid, form->indrelid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return result;
}

/* Returns those of them that are valid now. */
List *
reindexed_after(List *before)
{
	List	   *result = NIL;

	foreach_ptr(Invalid, invalid, before)
	{
		Oid			index = get_relname_relid(invalid->name, get_rel_namespace(invalid->table));

		if (OidIsValid(index) && get_rel_relkind(index) == RELKIND_INDEX &&
			IndexGetRelation(index, true) == invalid->table && get_index_isvalid(index))
			result = lappend_oid(result, index);
	}
	return result;
}

/* Returns a statement that would create an index in the way in which it was rebuilt. */
IndexStmt *
reindexed_create(Oid index, const ReindexStmt *statement)
{
	IndexStmt  *result = makeNode(IndexStmt);
	Oid			table = IndexGetRelation(index, false);

	result->idxname = get_rel_name(index);
	result->relation = makeRangeVar(get_namespace_name(get_rel_namespace(table)),
									get_rel_name(table), -1);
	result->if_not_exists = true;
	foreach_node(DefElem, option, statement->params)
		if (strcmp(option->defname, "concurrently") == 0)
		result->concurrent = defGetBoolean(option);
	return result;
}
