/*
 * refuse.c
 *	  Refuses statements that a subscriber could not repeat.
 *
 * A statement is refused before it does anything, if a publication that publishes schema
 * changes would send its rows.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_publication.h"
#include "ddl/refuse.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "optimizer/optimizer.h"
#include "parser/parse_expr.h"
#include "parser/parse_node.h"
#include "publication_settings.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

/*
 * Would a schema change by this role be published, of what belongs to these publications?
 */
static bool
is_published(List *publications)
{
	foreach_ptr(DdlPublication, publication, publication_settings_list())
		if (has_privs_of_role(publication->owner, GetUserId()) &&
			(publication->all_tables || list_member_oid(publications, publication->oid)))
		return true;
	return false;
}

/* CREATE TABLE AS and SELECT INTO store rows before there is a table on the subscriber. */
static void
refuse_create_as(CreateTableAsStmt *statement)
{
	RangeVar   *name = statement->into->rel;
	Oid			schema;

	if (statement->objtype != OBJECT_TABLE || statement->into->skipData ||
		name->relpersistence != RELPERSISTENCE_PERMANENT)
		return;
	schema = RangeVarGetCreationNamespace(name);
	if (isAnyTempNamespace(schema) || !is_published(GetSchemaPublications(schema)))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot replicate %s with rows",
					statement->is_select_into ? "SELECT INTO" : "CREATE TABLE AS"),
			 errhint("Use CREATE TABLE and INSERT.")));
}

/* Is a type one of those that the parser turns into an integer with a sequence? */
static bool
is_serial(const TypeName *type)
{
	static const char *const names[] = {
		"serial", "serial2", "serial4", "serial8", "smallserial", "bigserial",
	};

	if (type == NULL || list_length(type->names) != 1)
		return false;
	for (int i = 0; i < lengthof(names); i++)
		if (strcmp(strVal(linitial(type->names)), names[i]) == 0)
			return true;
	return false;
}

/* Would a new column give existing rows other values on each server? */
static bool
is_volatile(ColumnDef *column)
{
	if (is_serial(column->typeName))
		return true;
	foreach_node(Constraint, constraint, column->constraints)
	{
		ParseState *pstate = make_parsestate(NULL);

		if (constraint->contype == CONSTR_IDENTITY)
			return true;
		if (constraint->contype == CONSTR_DEFAULT &&
			contain_volatile_functions(transformExpr(pstate, copyObject(constraint->raw_expr),
													 EXPR_KIND_COLUMN_DEFAULT)))
			return true;
		free_parsestate(pstate);
	}
	return false;
}

/* Has a table, or any of its partitions and children, a page? */
static bool
may_have_rows(Oid relid)
{
	foreach_oid(each, find_all_inheritors(relid, AccessShareLock, NULL))
	{
		Relation	rel = table_open(each, NoLock);
		bool		result = RELKIND_HAS_STORAGE(rel->rd_rel->relkind) &&
			RelationGetNumberOfBlocks(rel) > 0;

		table_close(rel, NoLock);
		if (result)
			return true;
	}
	return false;
}

static bool
table_is_published(Oid relid)
{
	List	   *publications = GetRelationPublications(relid);

	publications = list_concat(publications, GetSchemaPublications(get_rel_namespace(relid)));
	if (get_rel_relispartition(relid))
		foreach_oid(ancestor, get_partition_ancestors(relid))
	{
		publications = list_concat(publications, GetRelationPublications(ancestor));
		publications = list_concat(publications,
								   GetSchemaPublications(get_rel_namespace(ancestor)));
	}
	return is_published(publications);
}

/* ADD COLUMN with a volatile default computes a value for each row. */
static void
refuse_add_column(AlterTableStmt *statement)
{
	foreach_node(AlterTableCmd, command, statement->cmds)
	{
		Oid			relid;

		if (command->subtype != AT_AddColumn || !is_volatile((ColumnDef *) command->def))
			continue;
		relid = RangeVarGetRelid(statement->relation, AccessShareLock, true);
		if (!OidIsValid(relid) || get_rel_persistence(relid) != RELPERSISTENCE_PERMANENT ||
			!table_is_published(relid) || !may_have_rows(relid))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate that column \"%s\" gets another value in each row",
						((ColumnDef *) command->def)->colname),
				 errdetail("Its default is volatile, and table \"%s\" has rows.",
						   get_rel_name(relid)),
				 errhint("Add the column without a default, then set the default, and update the rows.")));
	}
}

/* Fails if a subscriber could not repeat a statement. */
void
refuse_unreplayable(Node *statement)
{
	if (IsA(statement, CreateTableAsStmt))
		refuse_create_as((CreateTableAsStmt *) statement);
	else if (IsA(statement, AlterTableStmt))
		refuse_add_column((AlterTableStmt *) statement);
}
