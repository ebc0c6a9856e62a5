/*
 * conflicts.c
 *	  SQL functions about conflicts: how they are resolved, which columns are
 *	  counters, which tables remember their deletes.
 *
 * The tables they write belong to the extension's owner, and nobody else may write
 * them: the functions check what the caller may do, and become that owner for the
 * one statement.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_type.h"
#include "conflict/resolver.h"
#include "conflict/unique_index.h"
#include "conflict_kind.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/bitmapset.h"
#include "optimizer/optimizer.h"
#include "replication/logicalrelation.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(weft_alter_node_set_conflict_resolver);
PG_FUNCTION_INFO_V1(weft_set_delta_columns);
PG_FUNCTION_INFO_V1(weft_track_deletes);

/* The owner of a table of ours. */
static Oid
owner_of(const char *table)
{
	Oid			relid = get_relname_relid(table, get_namespace_oid("weft", false));
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			result;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "table weft.%s is missing", table);
	result = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return result;
}

/* Runs a statement that changes one of our tables, as its owner. */
static void
change_table(const char *table, const char *statement, int count, Oid *types, Datum *values)
{
	Oid			user;
	int			context;
	int			level = NewGUCNestLevel();

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(owner_of(table), context | SECURITY_LOCAL_USERID_CHANGE);
	RestrictSearchPath();
	SPI_connect();
	if (SPI_execute_with_args(statement, count, types, values, NULL, false, 0) < 0)
		elog(ERROR, "could not change table weft.%s", table);
	SPI_finish();
	AtEOXact_GUC(false, level);
	SetUserIdAndSecContext(user, context);
}

/* Is that the name of this node in its group?  There may be no group. */
static bool
is_local_node(const char *name)
{
	bool		result = false;

	SPI_connect();
	if (SPI_execute("SELECT node_name::pg_catalog.text FROM weft.node WHERE is_local",
					true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not find out the name of this node");
	if (SPI_processed == 1)
		result = strcmp(SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1),
						name) == 0;
	SPI_finish();
	return result;
}

/*
 * Finds out what a node's name stands for.  Returns the empty name for this node,
 * which has it, too, or that of a subscription, which the caller must own.
 */
static const char *
resolve_node_name(const char *name)
{
	Oid			subid;

	if (name[0] == '\0' || is_local_node(name))
		return "";
	subid = get_subscription_oid(name, true);
	if (!OidIsValid(subid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("\"%s\" is neither this node nor a subscription", name),
				 errhint("Each node has its own resolvers: run this on every one. "
						 "The empty name stands for this node.")));
	if (!object_ownercheck(SubscriptionRelationId, subid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_SUBSCRIPTION, name);
	return name;
}

/*
 * weft.alter_node_set_conflict_resolver(node_name name, conflict_type text,
 * conflict_resolver text)
 *
 * Sets how this node resolves a type of conflict, for all its subscriptions or for
 * the one that is named.  Writers take notice with their next change.  Fails if one
 * of the names is unknown.
 */
Datum
weft_alter_node_set_conflict_resolver(PG_FUNCTION_ARGS)
{
	char	   *kind_name = text_to_cstring(PG_GETARG_TEXT_PP(1));
	char	   *resolver_name = text_to_cstring(PG_GETARG_TEXT_PP(2));
	ConflictKind kind;
	ConflictResolver resolver;
	Oid			types[] = {NAMEOID, TEXTOID, TEXTOID};
	Datum		values[] = {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1), PG_GETARG_DATUM(2)};

	if (!conflict_kind_parse(kind_name, &kind))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unknown type of conflict \"%s\"", kind_name),
				 errhint("Types are insert_exists, update_origin_differs, update_exists, update_missing, delete_origin_differs, delete_missing, and multiple_unique_conflicts.")));
	if (!conflict_resolver_parse(resolver_name, &resolver))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unknown conflict resolver \"%s\"", resolver_name),
				 errhint("Resolvers are last_update_wins, apply_remote, keep_local, skip, and error.")));
	if (kind > LAST_SERVER_KIND)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("conflicts of type \"%s\" are recorded, and cannot be resolved",
						kind_name)));
	values[0] = DirectFunctionCall1(namein,
									CStringGetDatum(resolve_node_name(NameStr(*PG_GETARG_NAME(0)))));

	change_table("conflict_resolver",
				 "INSERT INTO weft.conflict_resolver (subname, conflict_type, conflict_resolver)"
				 " VALUES ($1, $2, $3) ON CONFLICT (subname, conflict_type)"
				 " DO UPDATE SET conflict_resolver = EXCLUDED.conflict_resolver",
				 3, types, values);
	PG_RETURN_VOID();
}

static void
require_owner(Oid relid)
{
	char	   *name = get_rel_name(relid);

	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (!object_ownercheck(RelationRelationId, relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(get_rel_relkind(relid)), name);
}

/*
 * Opens a table that the caller must own.  Others must not queue for its lock, since
 * whoever comes after them would wait for them.  While the owner waits for the lock,
 * the table may get another owner, or be dropped.
 */
static Relation
open_own_table(Oid relid)
{
	Relation	rel;

	require_owner(relid);
	rel = table_open(relid, ShareRowExclusiveLock);
	require_owner(relid);
	if (rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not an ordinary table", RelationGetRelationName(rel)),
				 errhint("Name the partitions of a partitioned table one by one.")));
	return rel;
}

/* Does an expression of a table's use one of its columns? */
static bool
uses_column(Node *expression, AttrNumber number)
{
	Bitmapset  *columns = NULL;

	pull_varattnos(expression, 1, &columns);
	return bms_is_member(number - FirstLowInvalidHeapAttributeNumber, columns);
}

/* Returns the name of a check constraint on a column, or NULL. */
static const char *
find_check(Relation rel, AttrNumber number)
{
	TupleConstr *constraints = RelationGetDescr(rel)->constr;

	for (int i = 0; constraints && i < constraints->num_check; i++)
		if (uses_column(stringToNode(constraints->check[i].ccbin), number))
			return constraints->check[i].ccname;
	return NULL;
}

/* Fails if a column cannot be a counter, for want of what a sum can promise. */
static void
check_delta_promises(Relation rel, const char *name, AttrNumber number)
{
	const char *check = find_check(rel, number);

	if (check)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("column \"%s\" of relation \"%s\" cannot be a delta column", name,
						RelationGetRelationName(rel)),
				 errdetail("Check constraint \"%s\" is about it, which the sum of changes that were made on several members need not satisfy.",
						   check),
				 errhint("Drop the constraint on all members.")));
	if (bms_is_member(number - 1, conflict_unique_columns(rel)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("column \"%s\" of relation \"%s\" cannot be a delta column", name,
						RelationGetRelationName(rel)),
				 errdetail("It is part of a unique index.")));
}

/* Fails if a column cannot be a counter. */
static void
check_delta_column(Relation rel, const char *name)
{
	AttrNumber	number = get_attnum(RelationGetRelid(rel), name);
	Form_pg_attribute attribute;

	if (number <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of relation \"%s\" does not exist", name,
						RelationGetRelationName(rel))));
	attribute = TupleDescAttr(RelationGetDescr(rel), number - 1);
	if (attribute->atttypid != INT2OID && attribute->atttypid != INT4OID &&
		attribute->atttypid != INT8OID && attribute->atttypid != NUMERICOID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of relation \"%s\" cannot be a delta column", name,
						RelationGetRelationName(rel)),
				 errdetail("Its type is %s.", format_type_be(attribute->atttypid)),
				 errhint("Use smallint, integer, bigint, or numeric.")));
	if (!attribute->attnotnull)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("column \"%s\" of relation \"%s\" cannot be a delta column", name,
						RelationGetRelationName(rel)),
				 errdetail("It may be null."),
				 errhint("Set it to NOT NULL.")));
	if (attribute->attgenerated ||
		bms_is_member(number - FirstLowInvalidHeapAttributeNumber,
					  RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_PRIMARY_KEY)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("column \"%s\" of relation \"%s\" cannot be a delta column", name,
						RelationGetRelationName(rel)),
				 errdetail("It is generated or part of the primary key.")));
	check_delta_promises(rel, name, number);
}

/*
 * weft.set_delta_columns(relation regclass, columns name[])
 *
 * Makes columns of a table counters, and none of its other ones; an empty list makes
 * them ordinary ones again.  Fails if the table is not the caller's, has no primary
 * key, or has not replica identity full, and if a column is not a number that is
 * never null.
 */
Datum
weft_set_delta_columns(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	ArrayType  *columns = PG_GETARG_ARRAYTYPE_P(1);
	Relation	rel = open_own_table(relid);
	Oid			types[] = {REGCLASSOID, NAMEARRAYOID};
	Datum		values[] = {ObjectIdGetDatum(relid), PointerGetDatum(columns)};
	Datum	   *names;
	bool	   *nulls;
	int			count;

	deconstruct_array(columns, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR,
					  &names, &nulls, &count);
	if (count > 0 && rel->rd_rel->relreplident != REPLICA_IDENTITY_FULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("delta columns need the old row, which table \"%s\" does not publish",
						RelationGetRelationName(rel)),
				 errhint("Run ALTER TABLE ... REPLICA IDENTITY FULL on all members.")));
	if (count > 0 && !OidIsValid(GetRelationIdentityOrPK(rel)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has no primary key", RelationGetRelationName(rel))));
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("the name of a column must not be null")));
		check_delta_column(rel, NameStr(*DatumGetName(names[i])));
	}

	change_table("delta_column", "DELETE FROM weft.delta_column WHERE relation = $1",
				 1, types, values);
	change_table("delta_column",
				 "INSERT INTO weft.delta_column (relation, column_name)"
				 " SELECT DISTINCT $1, c FROM pg_catalog.unnest($2) c",
				 2, types, values);

	/* Writers look at the table again. */
	CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}

static void
run(const char *statement)
{
	SPI_connect();
	if (SPI_execute(statement, false, 0) < 0)
		elog(ERROR, "could not execute: %s", statement);
	SPI_finish();
}

/*
 * Of which columns an UPDATE is to be remembered: " OF " and those of the table that are
 * of its key or decide unique values, with commas between.  What a trigger changes
 * before the row is stored, the statement does not say.
 */
static char *
tracked_columns(Relation rel, Oid index)
{
	StringInfoData result;
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form = (Form_pg_index) GETSTRUCT(tuple);
	Bitmapset  *columns = conflict_unique_columns(rel);
	int			column = -1;

	initStringInfo(&result);
	for (int i = 0; i < form->indnkeyatts; i++)
		columns = bms_add_member(columns, form->indkey.values[i] - 1);
	ReleaseSysCache(tuple);
	if (rel->trigdesc && rel->trigdesc->trig_update_before_row)
		return result.data;
	while ((column = bms_next_member(columns, column)) >= 0)
		appendStringInfo(&result, "%s%s", result.len > 0 ? ", " : " OF ",
						 quote_identifier(get_attname(RelationGetRelid(rel), column + 1, false)));
	return result.data;
}

/*
 * weft.track_deletes(relation regclass, enabled boolean)
 *
 * Has a table remember the keys of rows that sessions of this node delete, and the
 * unique values that they change, or no longer.  Fails if the table is not the caller's or has no primary key or replica
 * identity index.  Does no harm if it is so already.
 */
Datum
weft_track_deletes(PG_FUNCTION_ARGS)
{
	Relation	rel = open_own_table(PG_GETARG_OID(0));
	Oid			index = GetRelationIdentityOrPK(rel);
	const char *name =
		quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
								   RelationGetRelationName(rel));

	if (PG_GETARG_BOOL(1) && !OidIsValid(index))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has no primary key or replica identity index",
						RelationGetRelationName(rel))));
	if (PG_GETARG_BOOL(1))
	{
		run(psprintf("CREATE OR REPLACE TRIGGER weft_record_delete AFTER DELETE ON %s"
					 " FOR EACH ROW EXECUTE FUNCTION weft.record_delete()", name));
		run(psprintf("CREATE OR REPLACE TRIGGER weft_record_key_change AFTER UPDATE%s ON %s"
					 " FOR EACH ROW EXECUTE FUNCTION weft.record_delete()",
					 tracked_columns(rel, index), name));
	}
	else
	{
		run(psprintf("DROP TRIGGER IF EXISTS weft_record_delete ON %s", name));
		run(psprintf("DROP TRIGGER IF EXISTS weft_record_key_change ON %s", name));
	}
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}
