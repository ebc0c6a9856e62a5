/*
 * owned.c
 *	  Statements about all objects of a role, object by object.
 *
 * REASSIGN OWNED and DROP OWNED mean whatever a role has in a database.  On a subscriber it may
 * have other objects, which are no publisher's business, and publications and subscriptions.
 * Therefore a subscriber gets one statement for each object that the role has on the
 * publisher: ALTER ... OWNER TO, REVOKE, DROP (dropped.c), and ALTER POLICY for policies that name
 * other roles as well.
 *
 * These may need privileges that a statement about all objects does not need: ALTER ... OWNER TO asks
 * whether the new owner may create objects in the schema.  If the role lacks one of them, a subscriber would
 * not permit the statement.  Therefore it is refused.
 *
 * Objects of the whole server are left out: whoever drops the role on the subscriber, where roles are
 * managed separately, executes DROP OWNED there.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_conversion.h"
#include "catalog/pg_database.h"
#include "catalog/pg_default_acl.h"
#include "catalog/pg_event_trigger.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_language.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_policy.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_shdepend.h"
#include "catalog/pg_statistic_ext.h"
#include "catalog/pg_ts_config.h"
#include "catalog/pg_ts_dict.h"
#include "catalog/pg_type.h"
#include "ddl/object_name.h"
#include "ddl/owned.h"
#include "ddl/touched.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

/* Returns statements about an object of a role. */
typedef List *(*WriteStatements) (Oid class_id, Oid object_id, Oid role);

/*
 * Returns a part with a statement about an object, or NULL if the object is not replicated.  It is
 * looked at as it is now.
 */
DdlPart *
owned_part(Oid class_id, Oid object_id, char *text)
{
	Touched		look = touched_look(class_id, object_id);
	DdlPart    *result;

	if (!look.replicable)
		return NULL;
	result = palloc0(sizeof(DdlPart));
	result->text = text;

	result->is_of_tables = look.tables;
	result->publications = look.publications;
	return result;
}

static const char *
role_name(Oid role)
{
	return role == ACL_ID_PUBLIC ? "PUBLIC" : quote_identifier(GetUserNameFromId(role, false));
}

/* Has a relation an owner and privileges of its own? */
static bool
is_independent(Oid relid)
{
	Oid			table;
	int32		column;

	switch (get_rel_relkind(relid))
	{
		case RELKIND_RELATION:
		case RELKIND_PARTITIONED_TABLE:
		case RELKIND_VIEW:
		case RELKIND_MATVIEW:
		case RELKIND_FOREIGN_TABLE:
			return true;
		case RELKIND_SEQUENCE:
			return !sequenceIsOwned(relid, DEPENDENCY_INTERNAL, &table, &column) &&
				!sequenceIsOwned(relid, DEPENDENCY_AUTO, &table, &column);
		default:
			return false;
	}
}

/* The same for a type. */
static bool
is_independent_type(Oid type)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	Form_pg_type form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_type) GETSTRUCT(tuple);
	result = !IsTrueArrayType(form) && form->typtype != TYPTYPE_MULTIRANGE &&
		(!OidIsValid(form->typrelid) ||
		 get_rel_relkind(form->typrelid) == RELKIND_COMPOSITE_TYPE);
	ReleaseSysCache(tuple);
	return result;
}

static List *
write_owner(Oid class_id, Oid object_id, Oid role)
{
	switch (class_id)
	{
		case RelationRelationId:
			if (!is_independent(object_id))
				return NIL;
			break;
		case TypeRelationId:
			if (!is_independent_type(object_id))
				return NIL;
			break;
		case CollationRelationId:
		case ConversionRelationId:
		case EventTriggerRelationId:
		case ForeignDataWrapperRelationId:
		case ForeignServerRelationId:
		case LanguageRelationId:
		case NamespaceRelationId:
		case OperatorClassRelationId:
		case OperatorFamilyRelationId:
		case OperatorRelationId:
		case ProcedureRelationId:
		case StatisticExtRelationId:
		case TSConfigRelationId:
		case TSDictionaryRelationId:
			break;
		default:
			return NIL;
	}
	return list_make1(psprintf("ALTER %s %s OWNER TO %s", object_type(class_id, object_id),
							   object_name(class_id, object_id), role_name(role)));
}

/* Returns the privilege that a role needs to own an object, and does not have; or NULL. */
static const char *
lacking_create(Oid class_id, Oid object_id, Oid role)
{
	ObjectAddress address;
	Oid			schema;

	if (superuser())
		return NULL;
	if (class_id == NamespaceRelationId)
		return object_aclcheck(DatabaseRelationId, MyDatabaseId, role, ACL_CREATE) == ACLCHECK_OK ?
			NULL : "the privilege CREATE on the database for the new owner";
	if (get_object_attnum_namespace(class_id) == InvalidAttrNumber)
		return NULL;
	ObjectAddressSet(address, class_id, object_id);
	schema = get_object_namespace(&address);
	if (object_aclcheck(NamespaceRelationId, schema, role, ACL_CREATE) == ACLCHECK_OK)
		return NULL;
	return psprintf("the privilege CREATE on schema \"%s\" for the new owner",
					get_namespace_name(schema));
}

/* Returns the words of ALTER DEFAULT PRIVILEGES before and between the verbs. */
static const char *
default_acl_type(char type)
{
	switch (type)
	{
		case DEFACLOBJ_RELATION:
			return "TABLES";
		case DEFACLOBJ_SEQUENCE:
			return "SEQUENCES";
		case DEFACLOBJ_FUNCTION:
			return "FUNCTIONS";
		case DEFACLOBJ_TYPE:
			return "TYPES";
		case DEFACLOBJ_NAMESPACE:
			return "SCHEMAS";
		default:
			return NULL;
	}
}

static char *
default_acl_start(Form_pg_default_acl form)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, "ALTER DEFAULT PRIVILEGES FOR ROLE %s",
					 role_name(form->defaclrole));
	if (OidIsValid(form->defaclnamespace))
		appendStringInfo(&text, " IN SCHEMA %s",
						 quote_identifier(get_namespace_name(form->defaclnamespace)));
	return text.data;
}

/* The default privileges of a role, which are dropped: everything is as if they had not been set. */
static List *
reset_default_acl(Form_pg_default_acl form, Acl *acl, const char *type)
{
	const char *start = default_acl_start(form);
	List	   *result = NIL;

	for (int i = 0; i < ACL_NUM(acl); i++)
		result = lappend(result, psprintf("%s REVOKE ALL ON %s FROM %s CASCADE", start, type,
										  role_name(ACL_DAT(acl)[i].ai_grantee)));
	if (OidIsValid(form->defaclnamespace))
		return result;
	result = lappend(result, psprintf("%s GRANT ALL ON %s TO %s", start, type,
									  role_name(form->defaclrole)));
	if (form->defaclobjtype == DEFACLOBJ_FUNCTION || form->defaclobjtype == DEFACLOBJ_TYPE)
		result = lappend(result, psprintf("%s GRANT ALL ON %s TO PUBLIC", start, type));
	return result;
}

/* Statements about default privileges of, or for, a role. */
static List *
write_default_acl(Oid object_id, Oid role, bool reset)
{
	Relation	catalog = table_open(DefaultAclRelationId, AccessShareLock);
	HeapTuple	tuple = get_catalog_object_by_oid(catalog, Anum_pg_default_acl_oid, object_id);
	List	   *result = NIL;

	if (HeapTupleIsValid(tuple))
	{
		Form_pg_default_acl form = (Form_pg_default_acl) GETSTRUCT(tuple);
		const char *type = default_acl_type(form->defaclobjtype);
		bool		isnull;
		Datum		acl = heap_getattr(tuple, Anum_pg_default_acl_defaclacl,
									   RelationGetDescr(catalog), &isnull);

		if (type != NULL && reset && !isnull)
			result = reset_default_acl(form, DatumGetAclP(acl), type);
		else if (type != NULL && !reset)
			result = list_make1(psprintf("%s REVOKE ALL ON %s FROM %s CASCADE",
										 default_acl_start(form), type, role_name(role)));
	}
	table_close(catalog, AccessShareLock);
	return result;
}

/* Default privileges that DROP OWNED drops; all other objects are dropped by dropped.c. */
static List *
write_reset(Oid class_id, Oid object_id, Oid role)
{
	return class_id == DefaultAclRelationId ? write_default_acl(object_id, role, true) : NIL;
}

static List *
write_revoke(Oid class_id, Oid object_id, Oid role)
{
	const char *type;

	switch (class_id)
	{
		case DefaultAclRelationId:
			return write_default_acl(object_id, role, false);
		case RelationRelationId:
			type = get_rel_relkind(object_id) == RELKIND_SEQUENCE ? "SEQUENCE" : "TABLE";
			break;
		case ForeignServerRelationId:
			type = "FOREIGN SERVER";
			break;
		case TypeRelationId:
		case ForeignDataWrapperRelationId:
		case LanguageRelationId:
		case NamespaceRelationId:
		case ProcedureRelationId:
			type = object_type(class_id, object_id);
			break;
		default:
			return NIL;
	}

	/* The server takes away what others have got from this role, too. */
	return list_make1(psprintf("REVOKE ALL ON %s %s FROM %s CASCADE", type,
							   object_name(class_id, object_id), role_name(role)));
}

/*
 * Returns ALTER POLICY without some roles.  NULL if it has none of them, or no others: then it is dropped.
 */
static char *
write_policy(Oid policy, const List *roles)
{
	Relation	catalog = table_open(PolicyRelationId, AccessShareLock);
	HeapTuple	tuple = get_catalog_object_by_oid(catalog, Anum_pg_policy_oid, policy);
	StringInfoData text;
	const char *separator = " TO ";
	int			left = 0;
	bool		isnull;
	Datum	   *old;
	int			count;

	initStringInfo(&text);
	appendStringInfo(&text, "ALTER POLICY %s", object_name(PolicyRelationId, policy));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for policy %u", policy);
	deconstruct_array_builtin(DatumGetArrayTypeP(heap_getattr(tuple, Anum_pg_policy_polroles,
															  RelationGetDescr(catalog), &isnull)),
							  OIDOID, &old, NULL, &count);
	for (int i = 0; i < count; i++)
	{
		Oid			role = DatumGetObjectId(old[i]);

		if (list_member_oid(roles, role))
			continue;
		appendStringInfo(&text, "%s%s", separator, role_name(role));
		separator = ", ";
		left++;
	}
	table_close(catalog, AccessShareLock);
	return left == 0 || left == count ? NULL : text.data;
}

/* Adds what pg_shdepend says about one role. */
static List *
add_parts(List *parts, Oid role, SharedDependencyType type, WriteStatements write, Oid argument)
{
	Relation	catalog = table_open(SharedDependRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], Anum_pg_shdepend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(AuthIdRelationId));
	ScanKeyInit(&keys[1], Anum_pg_shdepend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(role));
	scan = systable_beginscan(catalog, SharedDependReferenceIndexId, true, NULL, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_shdepend form = (Form_pg_shdepend) GETSTRUCT(tuple);

		if (form->deptype != type || form->dbid != MyDatabaseId)
			continue;
		foreach_ptr(char, text, write(form->classid, form->objid, argument))
		{
			DdlPart    *part = owned_part(form->classid, form->objid, text);

			if (part == NULL)
				continue;
			if (type == SHARED_DEPENDENCY_OWNER && write == write_owner)
				part->lacks = lacking_create(form->classid, form->objid, argument);
			parts = lappend(parts, part);
		}
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return parts;
}

/*
 * Returns the parts of REASSIGN OWNED.  Called before it is executed.
 */
List *
owned_reassign(ReassignOwnedStmt *statement)
{
	Oid			new = get_rolespec_oid(statement->newrole, false);
	List	   *result = NIL;

	foreach_node(RoleSpec, role, statement->roles)
		result = add_parts(result, get_rolespec_oid(role, false), SHARED_DEPENDENCY_OWNER,
						   write_owner, new);
	return result;
}

/* Adds statements that take roles out of the policies that name others as well. */
static List *
add_policies(List *parts, const List *roles)
{
	Relation	catalog = table_open(PolicyRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Oid			policy = ((Form_pg_policy) GETSTRUCT(tuple))->oid;
		char	   *text = write_policy(policy, roles);
		DdlPart    *part = text ? owned_part(PolicyRelationId, policy, text) : NULL;

		if (part == NULL)
			continue;
		if (!object_ownercheck(RelationRelationId,
							   ((Form_pg_policy) GETSTRUCT(tuple))->polrelid, GetUserId()))
			part->lacks = "the ownership of the table";
		parts = lappend(parts, part);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return parts;
}

/*
 * Returns the parts of DROP OWNED that revoke privileges.  Called before it is executed.
 */
List *
owned_revoke(DropOwnedStmt *statement)
{
	List	   *result = NIL;
	List	   *roles = NIL;

	foreach_node(RoleSpec, role, statement->roles)
	{
		Oid			oid = get_rolespec_oid(role, false);

		roles = lappend_oid(roles, oid);
		result = add_parts(result, oid, SHARED_DEPENDENCY_ACL, write_revoke, oid);
		result = add_parts(result, oid, SHARED_DEPENDENCY_OWNER, write_reset, oid);
	}
	result = add_policies(result, roles);

	/* Not even the privileges on tables are. */
	foreach_ptr(DdlPart, part, result)
		part->is_of_tables = false;
	return result;
}
