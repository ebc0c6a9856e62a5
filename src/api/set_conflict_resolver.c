/*
 * set_conflict_resolver.c
 *	  weft.alter_node_set_conflict_resolver().
 */
#include "postgres.h"

#include "api/conflict_tables.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_type.h"
#include "conflict/resolver.h"
#include "conflict_kind.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

PG_FUNCTION_INFO_V1(weft_alter_node_set_conflict_resolver);

/* Is this the name of this node in its group, if there is a group? */
static bool
is_local_node(const char *name)
{
	bool		result = false;

	SPI_connect();
	if (SPI_execute("SELECT node_name::pg_catalog.text FROM weft.node WHERE is_local",
					true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read the name of this node");
	if (SPI_processed == 1)
		result = strcmp(SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1),
						name) == 0;
	SPI_finish();
	return result;
}

/*
 * Returns the name under which resolvers are stored: the empty name if "name" is empty or
 * this node's, otherwise that of a subscription, which the caller must own.
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
				 errhint("Each node has its own resolvers, so run this on every node. "
						 "The empty name stands for this node.")));
	if (!object_ownercheck(SubscriptionRelationId, subid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_SUBSCRIPTION, name);
	return name;
}

/*
 * weft.alter_node_set_conflict_resolver(node_name name, conflict_type text,
 * conflict_resolver text)
 *
 * Sets how this node resolves a type of conflict, for all of its subscriptions or for the
 * one that is named.  Writers use the new resolver from their next change on.  Fails if
 * one of the names is unknown.
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
				 errmsg("unknown conflict type \"%s\"", kind_name),
				 errhint("Valid types are insert_exists, update_origin_differs, update_exists, update_missing, delete_origin_differs, delete_missing, and multiple_unique_conflicts.")));
	if (!conflict_resolver_parse(resolver_name, &resolver))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unknown conflict resolver \"%s\"", resolver_name),
				 errhint("Valid resolvers are last_update_wins, apply_remote, keep_local, skip, and error.")));
	if (kind > LAST_SERVER_KIND)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("conflicts of type \"%s\" are only recorded, not resolved",
						kind_name)));
	values[0] = DirectFunctionCall1(namein,
									CStringGetDatum(resolve_node_name(NameStr(*PG_GETARG_NAME(0)))));

	conflict_tables_change("conflict_resolver",
						   "INSERT INTO weft.conflict_resolver (subname, conflict_type, conflict_resolver)"
						   " VALUES ($1, $2, $3) ON CONFLICT (subname, conflict_type)"
						   " DO UPDATE SET conflict_resolver = EXCLUDED.conflict_resolver",
						   3, types, values);
	PG_RETURN_VOID();
}
