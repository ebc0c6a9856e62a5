/*
 * set_delta_columns.c
 *	  weft.set_delta_columns().
 */
#include "postgres.h"

#include "access/table.h"
#include "api/conflict_tables.h"
#include "catalog/pg_type.h"
#include "conflict/unique_index.h"
#include "fmgr.h"
#include "nodes/bitmapset.h"
#include "optimizer/optimizer.h"
#include "replication/logicalrelation.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(weft_set_delta_columns);

/* Does an expression over a table use one of its columns? */
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

/* Fails if a constraint or index on a column demands what a sum cannot promise. */
static void
check_delta_promises(Relation rel, const char *name, AttrNumber number)
{
	const char *check = find_check(rel, number);

	if (check)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("column \"%s\" of relation \"%s\" cannot be a delta column", name,
						RelationGetRelationName(rel)),
				 errdetail("The sum of changes made on several members might violate check constraint \"%s\".",
						   check),
				 errhint("Drop the constraint on all members.")));
	if (bms_is_member(number - 1, conflict_unique_columns(rel)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("column \"%s\" of relation \"%s\" cannot be a delta column", name,
						RelationGetRelationName(rel)),
				 errdetail("The column is part of a unique index.")));
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
				 errdetail("The column has type %s.", format_type_be(attribute->atttypid)),
				 errhint("Use smallint, integer, bigint, or numeric.")));
	if (!attribute->attnotnull)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("column \"%s\" of relation \"%s\" cannot be a delta column", name,
						RelationGetRelationName(rel)),
				 errdetail("The column allows null values."),
				 errhint("Run ALTER TABLE ... ALTER COLUMN ... SET NOT NULL.")));
	if (attribute->attgenerated ||
		bms_is_member(number - FirstLowInvalidHeapAttributeNumber,
					  RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_PRIMARY_KEY)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("column \"%s\" of relation \"%s\" cannot be a delta column", name,
						RelationGetRelationName(rel)),
				 errdetail("The column is generated or part of the primary key.")));
	check_delta_promises(rel, name, number);
}

/*
 * weft.set_delta_columns(relation regclass, columns name[])
 *
 * Makes exactly these columns of a table counters; with an empty list, none.  Fails if the
 * caller does not own the table, if the table has no primary key or not REPLICA IDENTITY
 * FULL, or if a column is not a number, or not NOT NULL.
 */
Datum
weft_set_delta_columns(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	ArrayType  *columns = PG_GETARG_ARRAYTYPE_P(1);
	Relation	rel = conflict_tables_open(relid);
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
					 errmsg("column names must not be null")));
		check_delta_column(rel, NameStr(*DatumGetName(names[i])));
	}

	conflict_tables_change("delta_column", "DELETE FROM weft.delta_column WHERE relation = $1",
						   1, types, values);
	conflict_tables_change("delta_column",
						   "INSERT INTO weft.delta_column (relation, column_name)"
						   " SELECT DISTINCT $1, c FROM pg_catalog.unnest($2) c",
						   2, types, values);

	/* Makes writers look at the table again. */
	CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}
