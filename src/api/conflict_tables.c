/*
 * conflict_tables.c
 *	  What the SQL functions about conflicts share: tables that the caller owns, and the
 *	  tables of schema weft that only the extension's owner may change.
 *
 * The functions check the caller's rights.  Then they become the extension's owner for a
 * single statement.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "api/conflict_tables.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

/* Returns the owner of a table of schema weft. */
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

/* Runs a statement that changes a table of schema weft, as the table's owner. */
void
conflict_tables_change(const char *table, const char *statement, int count, Oid *types, Datum *values)
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
 * Opens a table that the caller must own.  A caller who does not own it must not queue for
 * its lock, because later lockers would wait behind.  Therefore the owner is checked
 * first; it is checked again under the lock, because the table may have been dropped or
 * got another owner meanwhile.
 */
Relation
conflict_tables_open(Oid relid)
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
