/*
 * refuse.c
 *	  Refuses statements that a subscriber could not repeat.
 *
 * A schema change is repeated from its text.  If it stores values in existing rows, these must
 * be the same on the subscriber; and if rows are published from then on that were not before, the
 * subscriber would lack them.  Such a statement is refused before it does anything.
 *
 * What stores values:
 *
 *	ADD COLUMN with a default	refused if that is volatile, or belongs to the type.  The value
 *								of a stable one is sent along (default_value.c).  serial and
 *								identity are volatile.
 *	ALTER COLUMN TYPE			refused if the new value depends on more than the row and on the
 *								parameters that a schema change carries.
 *	generated columns			pass: the server wants them to be immutable.
 *
 * A partition is refused if its bounds are not constant (partition_bound.c).  DETACH PARTITION ... CONCURRENTLY is refused
 * where publish_via_partition_root would lose rows (check_detach()).
 *
 * What publishes rows that were not published before: SET LOGGED; ATTACH PARTITION and SET
 * SCHEMA, of a table that a publication does not publish yet.  A table that is set UNLOGGED would
 * be left behind on the subscriber, where nobody would drop it.
 *
 * All of these pass if there are no rows, except for SET LOGGED and SET UNLOGGED, where the table is on one of
 * the servers only.  Another session could insert rows between a look at the table and the
 * statement.  Therefore the table is locked as the statement is about to lock it: in the same mode,
 * after the same check of privileges, and before partitions and children.  So this adds no deadlock.
 * It is done only for statements that may have to be refused.
 *
 * REPACK (CONCURRENTLY) is refused in a node group, although it is not replicated.  It stores copies of the rows, which
 * look as if they had all been changed then, on this member.  An older change of another member that arrives
 * afterwards would lose, here alone.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_publication.h"
#include "commands/defrem.h"
#include "commands/tablecmds.h"
#include "compat.h"
#include "ddl/default_value.h"
#include "ddl/expression.h"
#include "ddl/partition_bound.h"
#include "ddl/refuse.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "parser/parse_coerce.h"
#include "parser/parse_collate.h"
#include "parser/parse_expr.h"
#include "parser/parse_relation.h"
#include "parser/parse_type.h"
#include "publication_settings.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* Would this publication get a schema change of the current user? */
static bool
gets_statements(const DdlPublication *publication)
{
	return has_privs_of_role(publication->owner, GetUserId());
}

/* Would a schema change be published, of what belongs to these publications? */
static bool
is_published(List *publications, DdlLevel level)
{
	foreach_ptr(DdlPublication, publication, publication_settings_list())
		if (publication->level >= level && gets_statements(publication) &&
			(publication->all_tables || list_member_oid(publications, publication->oid)))
		return true;
	return false;
}

/* The publications that name a table, its schema, or a table that it is a partition of. */
static List *
publications_of(Oid relid)
{
	List	   *result = compat_relation_publications(relid);

	result = list_concat(result, GetSchemaPublications(get_rel_namespace(relid)));
	if (!get_rel_relispartition(relid))
		return result;
	foreach_oid(ancestor, get_partition_ancestors(relid))
	{
		result = list_concat(result, compat_relation_publications(ancestor));
		result = list_concat(result, GetSchemaPublications(get_rel_namespace(ancestor)));
	}
	return result;
}

static bool
rows_are_published(Oid relid)
{
	return get_rel_persistence(relid) == RELPERSISTENCE_PERMANENT &&
		is_published(publications_of(relid), DDL_LEVEL_TABLE);
}

/* Has a table a row that this transaction sees? */
static bool
has_rows(Oid relid)
{
	Relation	rel = table_open(relid, NoLock);
	TupleTableSlot *slot;
	TableScanDesc scan;
	Snapshot	snapshot;
	bool		result;

	if (!RELKIND_HAS_TABLE_AM(rel->rd_rel->relkind))
	{
		table_close(rel, NoLock);
		return false;
	}
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	slot = table_slot_create(rel, NULL);
	scan = compat_table_beginscan(rel, snapshot);
	result = table_scan_getnextslot(scan, ForwardScanDirection, slot);
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
	return result;
}

/*
 * A table that an ALTER TABLE would rewrite, among that one, its partitions and children, and that
 * has rows that are published; or InvalidOid.
 */
static Oid
find_rows(AlterTableStmt *statement, Oid relid, LOCKMODE lockmode)
{
	List	   *tables = statement->relation->inh ?
		find_all_inheritors(relid, lockmode, NULL) : list_make1_oid(relid);

	foreach_oid(table, tables)
		if (rows_are_published(table) && has_rows(table))
		return table;
	return InvalidOid;
}

static void
refuse_column(ColumnDef *column, DefaultKind kind, Oid table)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot replicate that column \"%s\" gets another value in each row",
					column->colname),
			 kind == DEFAULT_VOLATILE ?
			 errdetail("Its default is volatile, and table \"%s\" has rows.",
					   get_rel_name(table)) :
			 errdetail("Its type has a default that is not immutable, and table \"%s\" has rows.",
					   get_rel_name(table)),
			 errhint("Add the column without a default, then set the default, and update the rows.")));
}

/* The expression that computes the new value of a column; NULL if there is none. */
static Node *
conversion(Relation rel, AlterTableCmd *command, const char *source)
{
	ColumnDef  *column = (ColumnDef *) command->def;
	AttrNumber	number = get_attnum(RelationGetRelid(rel), command->name);
	ParseState *pstate = make_parsestate(NULL);
	ParseNamespaceItem *item;
	Form_pg_attribute old;
	Node	   *result;
	Oid			type;
	int32		typmod;

	if (number <= 0)
		return NULL;
	old = TupleDescAttr(RelationGetDescr(rel), number - 1);
	pstate->p_sourcetext = source;
	item = addRangeTableEntryForRelation(pstate, rel, AccessShareLock, NULL, false, true);
	addNSItemToQuery(pstate, item, false, true, true);
	typenameTypeIdAndMod(pstate, column->typeName, &type, &typmod);
	if (column->raw_default)
		result = transformExpr(pstate, copyObject(column->raw_default),
							   EXPR_KIND_ALTER_COL_TRANSFORM);
	else
		result = (Node *) makeVar(1, number, old->atttypid, old->atttypmod,
								  old->attcollation, 0);
	result = coerce_to_target_type(pstate, result, exprType(result), type, typmod,
								   COERCION_ASSIGNMENT, COERCE_IMPLICIT_CAST, -1);
	if (result)
		assign_expr_collations(pstate, result);
	free_parsestate(pstate);
	return result;
}

/* Would ALTER COLUMN TYPE compute other values on a subscriber? */
static bool
type_change_differs(Oid relid, AlterTableCmd *command, const char *source)
{
	Node	   *given = ((ColumnDef *) command->def)->raw_default;
	Relation	rel = relation_open(relid, NoLock);
	Node	   *expression = conversion(rel, command, source);

	relation_close(rel, NoLock);

	/* The parser has computed 'now'. */
	return expression != NULL &&
		(expression_depends_on_server(expression) ||
		 (given != NULL && default_names_moment(given)));
}

static void
refuse_type_change(AlterTableCmd *command, Oid table)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot replicate that column \"%s\" gets another type", command->name),
			 errdetail("Its new value depends on more than the row, and table \"%s\" has rows.",
					   get_rel_name(table)),
			 errhint("Add a column of the new type, and update the rows. Or use immutable functions only.")));
}

/* ALTER TABLE computes values of existing rows. */
static void
check_values(AlterTableStmt *statement, Oid relid, LOCKMODE lockmode, const char *source,
			 List **values)
{
	bool		stable = false;
	Oid			table;

	foreach_node(AlterTableCmd, command, statement->cmds)
	{
		ColumnDef  *column = (ColumnDef *) command->def;
		DefaultKind kind;

		if (command->subtype == AT_AlterColumnType &&
			type_change_differs(relid, command, source) &&
			OidIsValid(table = find_rows(statement, relid, lockmode)))
			refuse_type_change(command, table);
		if (command->subtype != AT_AddColumn ||
			(command->missing_ok && get_attnum(relid, column->colname) != InvalidAttrNumber))
			continue;
		kind = default_kind(column, source);
		if (kind >= DEFAULT_STABLE_OF_TYPE &&
			OidIsValid(table = find_rows(statement, relid, lockmode)))
			refuse_column(column, kind, table);
		stable = stable || kind == DEFAULT_STABLE;
	}
	if (stable && OidIsValid(find_rows(statement, relid, lockmode)))
		*values = default_values(statement, source);
}

/*
 * SET LOGGED and SET UNLOGGED: a table that was, or will be, on this server only.  A sequence has no
 * rows, so it is replicated anyway.
 */
static void
refuse_persistence(Oid relid, char before)
{
	if (get_rel_persistence(relid) != before || get_rel_relkind(relid) == RELKIND_SEQUENCE ||
		!is_published(publications_of(relid), DDL_LEVEL_TABLE))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 before == RELPERSISTENCE_UNLOGGED ?
			 errmsg("cannot replicate that \"%s\" becomes logged", get_rel_name(relid)) :
			 errmsg("cannot replicate that \"%s\" becomes unlogged", get_rel_name(relid)),
			 errdetail("Subscribers have logged tables only."),
			 errhint("Create a new one, insert the rows there, and drop this one.")));
}

/*
 * A table is about to belong to these publications.  Fails if one of them gets the statement, but
 * has not published the table's rows so far.
 */
static void
refuse_joining(Oid relid, List *publications, LOCKMODE lockmode)
{
	List	   *old = publications_of(relid);

	foreach_ptr(DdlPublication, publication, publication_settings_list())
	{
		if (publication->all_tables || !gets_statements(publication) ||
			!list_member_oid(publications, publication->oid) ||
			list_member_oid(old, publication->oid))
			continue;
		foreach_oid(table, find_all_inheritors(relid, lockmode, NULL))
		{
			if (!has_rows(table))
				continue;
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot replicate that table \"%s\" joins publication \"%s\"",
							get_rel_name(relid), publication->name),
					 errdetail("It has rows, which were not published."),
					 errhint("Add the table to the publication first, and refresh the subscriptions. Or insert the rows afterwards.")));
		}
	}
}

/* Called in a node group. */
void
refuse_repack(Node *statement)
{
	foreach_node(DefElem, option, compat_repack_options(statement))
		if (strcmp(option->defname, "concurrently") == 0 && defGetBoolean(option))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot run REPACK (CONCURRENTLY) in a node group"),
				 errdetail("All rows would look as if they had just been changed on this node, and changes of other nodes could lose conflicts."),
				 errhint("Run REPACK without CONCURRENTLY.")));
}

/* A partition is about to be created, or attached. */
static void
check_bound(PartitionBoundSpec *bound, Oid parent, const char *source)
{
	if (!rows_are_published(parent) || !partition_bound_varies(bound, parent, source))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot replicate a partition of \"%s\" whose bounds are not constant",
					get_rel_name(parent)),
			 errdetail("Subscribers would compute other bounds."),
			 errhint("Use constants as the bounds.")));
}

static void
check_create_table(CreateStmt *statement, const char *source)
{
	Oid			parent;

	if (statement->partbound == NULL ||
		statement->relation->relpersistence != RELPERSISTENCE_PERMANENT)
		return;
	parent = RangeVarGetRelid(linitial_node(RangeVar, statement->inhRelations), NoLock, true);
	if (OidIsValid(parent))
		check_bound(statement->partbound, parent, source);
}

static void
check_attach(Oid parent, PartitionCmd *command, const char *source)
{
	Oid			relid = RangeVarGetRelidExtended(command->name, AccessExclusiveLock,
												 RVR_MISSING_OK, RangeVarCallbackOwnsRelation,
												 NULL);

	if (!OidIsValid(relid))
		return;
	refuse_joining(relid, publications_of(parent), AccessExclusiveLock);
	if (command->bound != NULL)
		check_bound(command->bound, parent, source);
}

/*
 * ALTER INDEX ... ATTACH PARTITION.  A CREATE INDEX CONCURRENTLY that fails leaves an invalid index behind, which
 * subscribers do not have.
 */
static void
check_attach_index(AlterTableStmt *statement)
{
	foreach_node(AlterTableCmd, command, statement->cmds)
	{
		Oid			relid;

		if (command->subtype != AT_AttachPartition)
			continue;
		relid = RangeVarGetRelid(((PartitionCmd *) command->def)->name, NoLock, true);
		if (!OidIsValid(relid) || get_rel_relkind(relid) != RELKIND_INDEX ||
			get_index_isvalid(relid) ||
			!is_published(publications_of(IndexGetRelation(relid, false)), DDL_LEVEL_TABLE))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate that the invalid index \"%s\" is attached",
						get_rel_name(relid)),
				 errdetail("Subscribers do not have an index whose creation has failed."),
				 errhint("Execute REINDEX INDEX before.")));
	}
}

/* Do publications send the rows of a partitioned table's partitions under the name of the root? */
static bool
is_sent_as_root(Oid relid)
{
	List	   *publications = publications_of(relid);

	foreach_ptr(DdlPublication, publication, publication_settings_list())
		if (publication->via_root && gets_statements(publication) &&
			(publication->all_tables || list_member_oid(publications, publication->oid)))
		return true;
	return false;
}

/*
 * DETACH PARTITION ... CONCURRENTLY consists of two transactions, and FINALIZE is the second one.  Between them, the
 * server sends the partition's rows under its own name already; if the publication is FOR ALL TABLES, its plugin crashes.
 */
static void
check_detach(AlterTableStmt *statement)
{
	foreach_node(AlterTableCmd, command, statement->cmds)
	{
		bool		finalize = command->subtype == AT_DetachPartitionFinalize;
		Oid			relid;

		if (!finalize && (command->subtype != AT_DetachPartition ||
						  !((PartitionCmd *) command->def)->concurrent))
			continue;
		relid = RangeVarGetRelid(statement->relation, NoLock, true);
		if (!OidIsValid(relid) || !is_sent_as_root(relid))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate that a partition of \"%s\" is detached concurrently",
						get_rel_name(relid)),
				 errdetail("A publication sends the partition's rows as those of the partitioned table. What is stored in the partition before the statement ends would not be replicated."),
				 finalize ?
				 errhint("Set \"weft.ddl_replication\" to \"off\", execute the statement on each server, and make the rows of the partition the same.") :
				 errhint("Use DETACH PARTITION without CONCURRENTLY.")));
	}
}

/* May a subcommand of ALTER TABLE have to be refused? */
static bool
is_suspect(AlterTableType type)
{
	return type == AT_AddColumn || type == AT_AlterColumnType || type == AT_AttachPartition ||
		type == AT_SetLogged || type == AT_SetUnLogged;
}

static void
check_alter_table(AlterTableStmt *statement, const char *source, List **values)
{
	LOCKMODE	lockmode = AlterTableGetLockLevel(statement->cmds);
	bool		suspect = false;
	Oid			relid;

	if (statement->objtype == OBJECT_INDEX)
		check_attach_index(statement);
	check_detach(statement);
	foreach_node(AlterTableCmd, command, statement->cmds)
		suspect = suspect || is_suspect(command->subtype);
	if (!suspect || (statement->objtype != OBJECT_TABLE && statement->objtype != OBJECT_SEQUENCE))
		return;
	relid = AlterTableLookupRelation(statement, lockmode);
	if (!OidIsValid(relid) || get_rel_persistence(relid) == RELPERSISTENCE_TEMP)
		return;
	foreach_node(AlterTableCmd, command, statement->cmds)
	{
		if (command->subtype == AT_SetLogged)
			refuse_persistence(relid, RELPERSISTENCE_UNLOGGED);
		if (command->subtype == AT_SetUnLogged)
			refuse_persistence(relid, RELPERSISTENCE_PERMANENT);
		if (command->subtype == AT_AttachPartition)
			check_attach(relid, (PartitionCmd *) command->def, source);
	}
	check_values(statement, relid, lockmode, source, values);
}

/* ALTER TABLE ... SET SCHEMA, to one that a publication includes. */
static void
check_set_schema(AlterObjectSchemaStmt *statement)
{
	Oid			schema = get_namespace_oid(statement->newschema, true);
	List	   *publications;
	Oid			relid;

	if (statement->objectType != OBJECT_TABLE || !OidIsValid(schema))
		return;
	publications = GetSchemaPublications(schema);
	if (publications == NIL)
		return;
	relid = RangeVarGetRelidExtended(statement->relation, AccessExclusiveLock,
									 RVR_MISSING_OK, RangeVarCallbackOwnsRelation, NULL);
	if (OidIsValid(relid) && get_rel_persistence(relid) == RELPERSISTENCE_PERMANENT)
		refuse_joining(relid, publications, AccessExclusiveLock);
}

/* EXPLAIN ANALYZE creates a materialized view, but its text is not the view's definition. */
static void
check_explain(ExplainStmt *statement)
{
	CreateTableAsStmt *create = (CreateTableAsStmt *) ((Query *) statement->query)->utilityStmt;

	if (create->objtype == OBJECT_MATVIEW && is_published(NIL, DDL_LEVEL_ALL))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate a materialized view that EXPLAIN ANALYZE creates"),
				 errhint("Use CREATE MATERIALIZED VIEW.")));
}

/*
 * Fails if a subscriber could not repeat a schema change.  *values is set to what new columns get
 * (DdlValue).
 */
void
refuse_unreplayable(Node *statement, const char *source, List **values)
{
	*values = NIL;
	if (IsA(statement, AlterTableStmt))
		check_alter_table((AlterTableStmt *) statement, source, values);
	else if (IsA(statement, CreateStmt))
		check_create_table((CreateStmt *) statement, source);
	else if (IsA(statement, AlterObjectSchemaStmt))
		check_set_schema((AlterObjectSchemaStmt *) statement);
	else if (IsA(statement, ExplainStmt))
		check_explain((ExplainStmt *) statement);
}
