/*
 * touched_look.c
 *	  A look at one object: what it is part of, which publications want it.
 *
 * Each class of objects is looked at in its own way.  What is not in the catalogs any more is known from what the
 * statement that is being executed has touched until now.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_amop.h"
#include "catalog/pg_amproc.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_cast.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_database.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_default_acl.h"
#include "catalog/pg_event_trigger.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_foreign_table.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_largeobject.h"
#include "catalog/pg_largeobject_metadata.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_parameter_acl.h"
#include "catalog/pg_policy.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_publication_namespace.h"
#include "catalog/pg_publication_rel.h"
#include "catalog/pg_rewrite.h"
#include "catalog/pg_statistic_ext.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_tablespace.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "catalog/pg_user_mapping.h"
#include "commands/extension.h"
#include "compat.h"
#include "ddl/filter.h"
#include "ddl/local_object.h"
#include "ddl/touched_look.h"
#include "ddl/type_users.h"
#include "publication_settings.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

/* What the statement that is being executed touches; NULL if nobody wants to know. */
static Touched *current = NULL;

/* Returns what the statement that is being executed has touched until now, or NULL. */
Touched *
touched_current(void)
{
	return current;
}

/* Changes what touched_current() returns, to another statement's or to NULL; returns what it was. */
Touched *
touched_set_current(Touched *touched)
{
	Touched    *result = current;

	current = touched;
	return result;
}

/* Is a relation among those that a statement, or NULL, has created? */
bool
touched_created_by(const Touched *touched, Oid relid)
{
	if (touched == NULL)
		return false;
	foreach_ptr(TouchedObject, object, touched->objects)
		if (object->created && object->class_id == RelationRelationId &&
			object->object_id == relid)
		return true;
	return false;
}

/* Has the statement that is being executed created this relation? */
bool
touched_has_created(Oid relid)
{
	return touched_created_by(current, relid);
}

/* Adds publications that want what is touched: a list of OIDs. */
void
touched_add_publications(Touched *touched, List *publications)
{
	touched->publications = list_concat_unique_oid(touched->publications, publications);
}

/* Returns the publications that name a table or schema, or did so before this statement. */
static List *
publications_naming(Oid class_id, Oid object_id)
{
	List	   *result = class_id == RelationRelationId ?
		compat_relation_publications(object_id) : GetSchemaPublications(object_id);

	if (current != NULL)
		foreach_ptr(Membership, membership, current->memberships)
			if (membership->class_id == class_id && membership->object_id == object_id)
			result = list_append_unique_oid(result, membership->publication);
	return result;
}

/* Returns the publications that include a table, apart from those FOR ALL TABLES. */
List *
touched_publications_of(Oid relid)
{
	List	   *tables = list_make1_oid(relid);
	List	   *result = NIL;

	if (get_rel_relispartition(relid))
		tables = list_concat(tables, get_partition_ancestors(relid));
	foreach_oid(table, tables)
	{
		result = list_concat_unique_oid(result, publications_naming(RelationRelationId, table));
		result = list_concat_unique_oid(result, publications_naming(NamespaceRelationId,
																	get_rel_namespace(table)));
	}
	return result;
}

static bool
has_table_in_schema(Oid publication, Oid schema)
{
	foreach_oid(relid, compat_publication_relations(publication, PUBLICATION_PART_ROOT))
		if (get_rel_namespace(relid) == schema)
		return true;
	if (current != NULL)
		foreach_ptr(Membership, membership, current->memberships)
			if (membership->publication == publication &&
				membership->class_id == RelationRelationId &&
				get_rel_namespace(membership->object_id) == schema)
			return true;
	return false;
}

/*
 * Adds the publications that get everything in a schema: those of the schema itself, and, at
 * level "all", those of a table in it.
 */
static void
look_at_neighbours(Touched *touched, Oid schema)
{
	touched_add_publications(touched, publications_naming(NamespaceRelationId, schema));
	foreach_ptr(DdlPublication, publication, publication_settings_list())
		if (publication->level == DDL_LEVEL_ALL && !publication->all_tables &&
			has_table_in_schema(publication->oid, schema))
		touched_add_publications(touched, list_make1_oid(publication->oid));
}

/* Is an object Weft's own? */
static bool
is_own(Oid class_id, Oid object_id)
{
	Oid			weft = get_extension_oid("weft", true);

	if (!OidIsValid(weft))
		return false;
	if (class_id == NamespaceRelationId)
		return object_id == get_namespace_oid("weft", true);
	if (class_id == ExtensionRelationId)
		return object_id == weft;
	return getExtensionOfObject(class_id, object_id) == weft;
}

/* Returns the table that an index or a sequence belongs to, or InvalidOid. */
static Oid
owner_of(Oid relid, char relkind)
{
	Oid			table = InvalidOid;
	int32		column;

	switch (relkind)
	{
		case RELKIND_INDEX:
		case RELKIND_PARTITIONED_INDEX:
			return IndexGetRelation(relid, true);
		case RELKIND_SEQUENCE:
			if (!sequenceIsOwned(relid, DEPENDENCY_AUTO, &table, &column) &&
				!sequenceIsOwned(relid, DEPENDENCY_INTERNAL, &table, &column))
				return InvalidOid;
			return table;
		default:
			return InvalidOid;
	}
}

/* Notes a table, and whether it is one that the node group does not replicate. */
static void
look_at_table(Touched *touched, Oid relid)
{
	List	   *publications = touched_publications_of(relid);

	if (touched_created_by(touched, relid) || touched_has_created(relid))
		return;
	touched->altered = list_append_unique_oid(touched->altered, relid);
	foreach_ptr(DdlPublication, publication, publication_settings_list())
		if (publication->group && !list_member_oid(publications, publication->oid))
		touched_add_publications(touched, list_make1_oid(TOUCHED_STRAY));
}

/* Adds the qualified name of a relation. */
void
touched_add_name(Touched *touched, char *name)
{
	foreach_ptr(char, other, touched->relations)
		if (strcmp(other, name) == 0)
		return;
	touched->relations = lappend(touched->relations, name);
}

/* Notes the name that a relation has now. */
static void
note_name(Touched *touched, Oid relid)
{
	char	   *name = get_rel_name(relid);

	if (name != NULL)
		touched_add_name(touched,
						 quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)), name));
}

/* Is a relation on this server only?  An unlogged sequence need not be (local_object.c). */
static bool
is_unlogged(Form_pg_class form)
{
	Oid			owner;

	if (form->relpersistence != RELPERSISTENCE_UNLOGGED || form->relkind != RELKIND_SEQUENCE)
		return form->relpersistence == RELPERSISTENCE_UNLOGGED;
	owner = owner_of(form->oid, form->relkind);
	return OidIsValid(owner) && local_object_persistence(owner) == RELPERSISTENCE_UNLOGGED;
}

static void
look_at_relation(Touched *touched, Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;

	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_class) GETSTRUCT(tuple);
	if (form->relkind == RELKIND_TOASTVALUE || form->relnamespace == PG_TOAST_NAMESPACE)
		 /* part of its table */ ;
	else if (form->relpersistence == RELPERSISTENCE_TEMP)
		touched->temporary = true;
	else if (is_unlogged(form))
		touched->unlogged = true;
	else if (is_own(RelationRelationId, relid))
		touched->own = true;
	else if (filter_excludes_schema(form->relnamespace))
		touched->filtered = true;
	else
	{
		Oid			owner = owner_of(relid, form->relkind);
		Oid			table = OidIsValid(owner) ? owner : relid;
		char		relkind = get_rel_relkind(table);

		touched->replicable = true;
		note_name(touched, relid);
		if (OidIsValid(owner))
			note_name(touched, owner);
		if (relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE ||
			relkind == RELKIND_SEQUENCE || relkind == RELKIND_COMPOSITE_TYPE)
			touched->tables = true;
		if (relkind == RELKIND_RELATION)
			look_at_table(touched, table);
		look_at_neighbours(touched, form->relnamespace);
		touched_add_publications(touched, touched_publications_of(table));
	}
	ReleaseSysCache(tuple);
}

/* Looks at the tables with a column of a type, or of an array, a domain and so on of it. */
static void
look_at_users(Touched *touched, Oid type)
{
	foreach_oid(relid, type_users(type))
		touched_add_publications(touched, touched_publications_of(relid));
}

/* Looks at an object in a schema. */
static void
look_at_member(Touched *touched, Oid schema)
{
	if (isAnyTempNamespace(schema))
		touched->temporary = true;
	else if (filter_excludes_schema(schema))
		touched->filtered = true;
	else
	{
		touched->replicable = true;
		look_at_neighbours(touched, schema);
	}
}

/* Is a type's relation that of a table?  That of a composite type is dropped before the type. */
static bool
is_row_type(Form_pg_type form)
{
	char		relkind = OidIsValid(form->typrelid) ? get_rel_relkind(form->typrelid) : '\0';

	return relkind != '\0' && relkind != RELKIND_COMPOSITE_TYPE;
}

static void
look_at_type(Touched *touched, Oid type)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	Form_pg_type form;

	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_type) GETSTRUCT(tuple);

	/*
	 * An array's type is part of the type of its elements, as a table's row
	 * type is of the table.
	 */
	if (is_own(TypeRelationId, type))
		touched->own = true;
	else if (IsTrueArrayType(form))
		look_at_type(touched, form->typelem);
	else if (!is_row_type(form))
	{
		look_at_member(touched, form->typnamespace);
		if (form->typtype != TYPTYPE_BASE && form->typtype != TYPTYPE_PSEUDO &&
			!isAnyTempNamespace(form->typnamespace))
			touched->tables = true;
		look_at_users(touched, type);
	}
	ReleaseSysCache(tuple);
}

static void
look_at_constraint(Touched *touched, Oid constraint)
{
	HeapTuple	tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(constraint));
	Form_pg_constraint form;

	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_constraint) GETSTRUCT(tuple);
	if (OidIsValid(form->conrelid))
		look_at_relation(touched, form->conrelid);

	/* A foreign key needs the other table's index. */
	if (OidIsValid(form->confrelid))
		note_name(touched, form->confrelid);
	if (OidIsValid(form->contypid))
		touched_look_at(touched, TypeRelationId, form->contypid);
	ReleaseSysCache(tuple);
}

/* Returns an attribute of a catalog's row that is an OID; InvalidOid if there is no such row. */
Oid
touched_look_oid(Oid class_id, Oid object_id, AttrNumber attribute)
{
	Relation	catalog = table_open(class_id, AccessShareLock);
	HeapTuple	tuple = get_catalog_object_by_oid(catalog, get_object_attnum_oid(class_id),
												  object_id);
	Oid			result = InvalidOid;
	bool		isnull;

	if (HeapTupleIsValid(tuple))
	{
		Datum		value = heap_getattr(tuple, attribute, RelationGetDescr(catalog), &isnull);

		result = isnull ? InvalidOid : DatumGetObjectId(value);
		heap_freetuple(tuple);
	}
	table_close(catalog, AccessShareLock);
	return result;
}

/*
 * Looks at the relation that an object is attached to.  The object itself, such as a trigger, is
 * not replicated at level "table".
 */
static void
look_at_base(Touched *touched, Oid relid)
{
	bool		tables = touched->tables;

	look_at_relation(touched, relid);
	touched->tables = tables;
}

/*
 * Looks at the table of a trigger that the server has made for a constraint.  A foreign key has
 * some on the table that it refers to.  They are part of the constraint, which belongs to the other
 * table alone: publications that include only the former need not know the latter.
 */
static void
look_at_internal_trigger(Touched *touched, Oid relid)
{
	Touched		look;

	/* A new table that refers to itself is looked at anyway. */
	if (touched_created_by(touched, relid))
		return;
	look = touched_look(RelationRelationId, relid);
	touched->relations = list_concat(touched->relations, look.relations);
	touched->altered = list_concat_unique_oid(touched->altered, look.altered);
	if (list_member_oid(look.publications, TOUCHED_STRAY))
		touched_add_publications(touched, list_make1_oid(TOUCHED_STRAY));
}

static void
look_at_trigger(Touched *touched, Oid trigger)
{
	Relation	catalog = table_open(TriggerRelationId, AccessShareLock);
	HeapTuple	tuple = get_catalog_object_by_oid(catalog, Anum_pg_trigger_oid, trigger);
	Form_pg_trigger form;

	if (HeapTupleIsValid(tuple))
	{
		form = (Form_pg_trigger) GETSTRUCT(tuple);
		if (form->tgisinternal)
			look_at_internal_trigger(touched, form->tgrelid);
		else
			look_at_base(touched, form->tgrelid);
		heap_freetuple(tuple);
	}
	table_close(catalog, AccessShareLock);
}

/* Looks at an object of a class that has no function of its own here. */
static void
look_at_other(Touched *touched, Oid class_id, Oid object_id)
{
	AttrNumber	attribute;

	if (!is_objectclass_supported(class_id))
		return;
	if (is_own(class_id, object_id))
	{
		touched->own = true;
		return;
	}
	attribute = get_object_attnum_namespace(class_id);
	if (attribute == InvalidAttrNumber)
		touched->replicable = true;
	else
		look_at_member(touched, touched_look_oid(class_id, object_id, attribute));
}

/* Is a type the row type of a table, or an array of such rows? */
static bool
is_of_table(Oid type)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	Form_pg_type form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_type) GETSTRUCT(tuple);
	result = IsTrueArrayType(form) ? is_of_table(form->typelem) : is_row_type(form);
	ReleaseSysCache(tuple);
	return result;
}

/* Keeps that an object depends on one that subscribers do not have. */
void
touched_set_dependent(Touched *touched, Oid class_id, Oid object_id, int sub_id, LocalReason reason)
{
	ObjectAddress address;

	if (reason == LOCAL_NOT)
		return;
	ObjectAddressSubSet(address, class_id, object_id, sub_id);
	touched->dependent = getObjectDescription(&address, true);
	touched->reason = reason;
}

/* Can an object be left out that depends on one that subscribers do not have? */
static bool
can_be_left_out(Oid class_id, Oid object_id)
{
	switch (class_id)
	{
		case RelationRelationId:
			switch (get_rel_relkind(object_id))
			{
				case RELKIND_VIEW:
				case RELKIND_MATVIEW:
				case RELKIND_INDEX:
				case RELKIND_PARTITIONED_INDEX:
				case RELKIND_SEQUENCE:
				case RELKIND_COMPOSITE_TYPE:
					return true;
				default:
					return false;
			}
		case CastRelationId:
		case EventTriggerRelationId:
		case OperatorClassRelationId:
		case OperatorFamilyRelationId:
		case OperatorRelationId:
		case PolicyRelationId:
		case ProcedureRelationId:
		case RewriteRelationId:
		case StatisticExtRelationId:
		case TriggerRelationId:
			return true;
		case TypeRelationId:
			return !is_of_table(object_id);
		default:
			return false;
	}
}

/*
 * May a statement about an object be about others, too, and fail on a subscriber that lacks this one?  Indexes,
 * triggers and the like of a partition are left out one by one.
 */
static bool
is_independent(Oid class_id, Oid object_id)
{
	switch (class_id)
	{
		case RelationRelationId:
			return local_object_persistence(object_id) == RELPERSISTENCE_PERMANENT &&
				get_rel_relkind(object_id) != RELKIND_INDEX &&
				get_rel_relkind(object_id) != RELKIND_PARTITIONED_INDEX;
		case PolicyRelationId:
		case RewriteRelationId:
		case StatisticExtRelationId:
		case TriggerRelationId:
			return false;
		default:
			return true;
	}
}

/* Has the relation of a composite type, or of the elements of an array, been dropped as a local one? */
static bool
was_local_type(Oid type)
{
	return current != NULL &&
		(list_member_oid(current->local_types, type) ||
		 list_member_oid(current->local_types, get_element_type(type)));
}

/* Has the query of a view been dropped as a local one? */
static bool
was_local_view(Oid relid)
{
	return current != NULL && list_member_oid(current->local_views, relid);
}

/* Notes that an object is left out, because it depends on one that subscribers do not have. */
static bool
is_left_out(Touched *touched, Oid class_id, Oid object_id)
{
	LocalReason reason;

	if (!can_be_left_out(class_id, object_id))
		return false;
	if ((class_id == TypeRelationId && was_local_type(object_id)) ||
		(class_id == RelationRelationId && was_local_view(object_id)))
	{
		touched->temporary = true;
		return true;
	}
	reason = local_object_reason(class_id, object_id, LOCAL_ALL_COLUMNS);
	if (reason == LOCAL_TEMPORARY)
		touched->temporary = true;
	else if (reason == LOCAL_UNLOGGED)
		touched->unlogged = true;
	if (is_independent(class_id, object_id))
		touched_set_dependent(touched, class_id, object_id, 0, reason);
	return reason != LOCAL_NOT;
}

static void
look_at_default_acl(Touched *touched, Oid object_id)
{
	Oid			schema = touched_look_oid(DefaultAclRelationId, object_id,
										  Anum_pg_default_acl_defaclnamespace);

	if (OidIsValid(schema))
		look_at_member(touched, schema);
	else
		touched->replicable = true;
}

/* Looks at an object of the class whose catalog has the OID class_id. */
void
touched_look_at(Touched *touched, Oid class_id, Oid object_id)
{
	if (is_left_out(touched, class_id, object_id))
		return;
	switch (class_id)
	{
		case RelationRelationId:
		case IndexRelationId:
		case InheritsRelationId:
		case ForeignTableRelationId:
			look_at_relation(touched, object_id);
			break;
		case TypeRelationId:
			look_at_type(touched, object_id);
			break;
		case ConstraintRelationId:
			look_at_constraint(touched, object_id);
			break;
		case AttrDefaultRelationId:
			look_at_relation(touched, GetAttrDefaultColumnAddress(object_id).objectId);
			break;
		case TriggerRelationId:
			look_at_trigger(touched, object_id);
			break;
		case RewriteRelationId:
			look_at_base(touched, touched_look_oid(class_id, object_id, Anum_pg_rewrite_ev_class));
			break;
		case PolicyRelationId:
			look_at_base(touched, touched_look_oid(class_id, object_id, Anum_pg_policy_polrelid));
			break;
		case StatisticExtRelationId:
			look_at_base(touched, touched_look_oid(class_id, object_id,
												   Anum_pg_statistic_ext_stxrelid));
			break;
		case AccessMethodOperatorRelationId:
			look_at_other(touched, OperatorFamilyRelationId,
						  touched_look_oid(class_id, object_id, Anum_pg_amop_amopfamily));
			break;
		case AccessMethodProcedureRelationId:
			look_at_other(touched, OperatorFamilyRelationId,
						  touched_look_oid(class_id, object_id, Anum_pg_amproc_amprocfamily));
			break;
		case NamespaceRelationId:
			if (is_own(class_id, object_id))
				touched->own = true;
			else
				look_at_member(touched, object_id);
			break;
		case DefaultAclRelationId:
			look_at_default_acl(touched, object_id);
			break;

			/*
			 * of the whole server, or of replication itself, or with
			 * passwords
			 */
		case AuthIdRelationId:
		case DatabaseRelationId:
		case DbRoleSettingRelationId:
		case LargeObjectRelationId:
		case LargeObjectMetadataRelationId:
		case ParameterAclRelationId:
		case PublicationRelationId:
		case PublicationNamespaceRelationId:
		case PublicationRelRelationId:
		case SubscriptionRelationId:
		case TableSpaceRelationId:
		case UserMappingRelationId:
			break;

		default:
			look_at_other(touched, class_id, object_id);
			break;
	}
}

/* Looks at one object, and at nothing else. */
Touched
touched_look(Oid class_id, Oid object_id)
{
	Touched		result = {0};

	touched_look_at(&result, class_id, object_id);
	return result;
}
