/*
 * dropped.c
 *	  The objects that a statement has dropped, and statements that drop some of them.
 *
 * A statement that drops several objects may concern a publication in part only: DROP TABLE of
 * a table that it includes and one that it does not, or, at level "table", DROP SCHEMA ...
 * CASCADE.  A subscriber that executed such a text would fail, or would drop tables that are its
 * own.  It gets statements that drop the objects that the publication includes.
 *
 * The server tells of every object that it drops, so those that go with another one, such
 * as the columns and indexes of a table, are left out here.  The statements have IF EXISTS, since
 * a subscription to another publication may have got the text, and names that depend on no setting.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_amop.h"
#include "catalog/pg_amproc.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_auth_members.h"
#include "catalog/pg_cast.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_default_acl.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_policy.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_publication_namespace.h"
#include "catalog/pg_publication_rel.h"
#include "catalog/pg_rewrite.h"
#include "catalog/pg_statistic_ext.h"
#include "catalog/pg_transform.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "catalog/pg_user_mapping.h"
#include "ddl/dropped.h"
#include "ddl/object_name.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

typedef struct ObjectKey
{
	Oid			class_id;
	Oid			object_id;
} ObjectKey;

typedef struct DroppedObject
{
	ObjectKey	key;
	bool		whole;			/* not a column */
	List	   *owners;			/* of ObjectKey: with each it goes anyway */
	List	   *needed;			/* of ObjectKey: others that it depends on */
	ObjectKey	extension;		/* that it belongs to, or zeros */
	char	   *name;			/* of a table */
	char	   *statement;		/* of anything else; may be followed by
								 * CASCADE */
	bool		is_of_tables;
	bool		is_replicable;
	List	   *publications;
} DroppedObject;

/* Returns a copy of an object's row in its catalog. */
static HeapTuple
catalog_row(Oid class_id, Oid object_id, TupleDesc *desc)
{
	Relation	catalog = table_open(class_id, AccessShareLock);
	HeapTuple	tuple = get_catalog_object_by_oid(catalog, get_object_attnum_oid(class_id),
												  object_id);

	*desc = CreateTupleDescCopy(RelationGetDescr(catalog));
	table_close(catalog, AccessShareLock);
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for object %u of catalog %u", object_id, class_id);
	return tuple;
}

static List *
add_key(List *keys, Oid class_id, Oid object_id)
{
	ObjectKey  *key = palloc(sizeof(ObjectKey));

	key->class_id = class_id;
	key->object_id = object_id;
	return lappend(keys, key);
}

/* Finds what an object belongs to; returns false if it cannot be dropped without that. */
static bool
find_owners(DroppedObject *object, int sub_id)
{
	Relation	catalog = table_open(DependRelationId, AccessShareLock);
	bool		result = true;
	ScanKeyData keys[3];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], Anum_pg_depend_classid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(object->key.class_id));
	ScanKeyInit(&keys[1], Anum_pg_depend_objid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(object->key.object_id));
	ScanKeyInit(&keys[2], Anum_pg_depend_objsubid, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(sub_id));
	scan = systable_beginscan(catalog, DependDependerIndexId, true, NULL, 3, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);

		if (form->deptype == DEPENDENCY_AUTO)
			object->owners = add_key(object->owners, form->refclassid, form->refobjid);
		else if (form->deptype == DEPENDENCY_EXTENSION)
		{
			object->extension.class_id = form->refclassid;
			object->extension.object_id = form->refobjid;
		}
		else if (form->deptype == DEPENDENCY_NORMAL)
			object->needed = add_key(object->needed, form->refclassid, form->refobjid);
		else if (form->deptype != DEPENDENCY_AUTO_EXTENSION)
			result = false;
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	if (sub_id != 0)
		object->owners = add_key(object->owners, object->key.class_id, object->key.object_id);
	return result;
}

/* Does a column go with that of a parent? */
static bool
is_inherited(Oid relid, int column)
{
	HeapTuple	tuple = SearchSysCache2(ATTNUM, ObjectIdGetDatum(relid),
										Int16GetDatum(column));
	bool		result = HeapTupleIsValid(tuple) &&
		((Form_pg_attribute) GETSTRUCT(tuple))->attinhcount > 0;

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return result;
}

/* A relation, or a column of one; returns false if it always goes with something else. */
static bool
describe_relation(DroppedObject *object, int sub_id)
{
	Oid			relid = object->key.object_id;
	char		relkind = get_rel_relkind(relid);
	char	   *name = object_name(RelationRelationId, relid);

	if (sub_id != 0)
	{
		object->statement = psprintf("ALTER %s IF EXISTS %s DROP COLUMN IF EXISTS %s",
									 relkind == RELKIND_FOREIGN_TABLE ? "FOREIGN TABLE" : "TABLE",
									 name, quote_identifier(get_attname(relid, sub_id, false)));
		return (relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE ||
				relkind == RELKIND_FOREIGN_TABLE) && !is_inherited(relid, sub_id);
	}
	switch (relkind)
	{
		case RELKIND_RELATION:
		case RELKIND_PARTITIONED_TABLE:
			object->name = name;
			return true;
		case RELKIND_SEQUENCE:
		case RELKIND_INDEX:
		case RELKIND_PARTITIONED_INDEX:
		case RELKIND_VIEW:
		case RELKIND_MATVIEW:
		case RELKIND_FOREIGN_TABLE:
			object->statement = psprintf("DROP %s IF EXISTS %s",
										 object_type(RelationRelationId, relid), name);
			return true;
		default:
			return false;
	}
}

static bool
describe_default(DroppedObject *object)
{
	ObjectAddress column = GetAttrDefaultColumnAddress(object->key.object_id);

	object->statement = psprintf("ALTER TABLE IF EXISTS %s ALTER COLUMN %s DROP DEFAULT",
								 object_name(RelationRelationId, column.objectId),
								 quote_identifier(get_attname(column.objectId,
															  column.objectSubId, false)));
	return get_rel_relkind(column.objectId) != RELKIND_VIEW &&
		get_attgenerated(column.objectId, column.objectSubId) == '\0';
}

static bool
describe_constraint(DroppedObject *object)
{
	HeapTuple	tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(object->key.object_id));
	Form_pg_constraint form;
	const char *name;
	bool		alone;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_constraint) GETSTRUCT(tuple);
	name = quote_identifier(pstrdup(NameStr(form->conname)));
	alone = form->contype != CONSTRAINT_TRIGGER && form->coninhcount == 0;
	if (OidIsValid(form->conrelid))
		object->statement = psprintf("ALTER TABLE IF EXISTS %s DROP CONSTRAINT IF EXISTS %s",
									 object_name(RelationRelationId, form->conrelid), name);
	else
		object->statement = psprintf("ALTER DOMAIN %s DROP CONSTRAINT IF EXISTS %s",
									 object_name(TypeRelationId, form->contypid), name);
	ReleaseSysCache(tuple);
	return alone;
}

/* A trigger, rule, policy or extended statistics; its name has the table. */
static bool
describe_attached(DroppedObject *object)
{
	Oid			class_id = object->key.class_id;
	Oid			object_id = object->key.object_id;
	TupleDesc	desc;

	object->statement = psprintf("DROP %s IF EXISTS %s", object_type(class_id, object_id),
								 object_name(class_id, object_id));
	return class_id != TriggerRelationId ||
		!((Form_pg_trigger) GETSTRUCT(catalog_row(class_id, object_id, &desc)))->tgisinternal;
}

static bool
types_exist(const Oid *types, int count)
{
	for (int i = 0; i < count; i++)
		if (OidIsValid(types[i]) && !SearchSysCacheExists1(TYPEOID, ObjectIdGetDatum(types[i])))
			return false;
	return true;
}

/*
 * Have the types in an object's name been dropped already?  A type and its functions depend on each
 * other, so they may be dropped in any order; but the functions go with the type.
 */
static bool
goes_with_type(const ObjectKey *key)
{
	TupleDesc	desc;
	HeapTuple	tuple;
	Oid			types[2];

	switch (key->class_id)
	{
		case ProcedureRelationId:
			tuple = catalog_row(key->class_id, key->object_id, &desc);
			return !types_exist(((Form_pg_proc) GETSTRUCT(tuple))->proargtypes.values,
								((Form_pg_proc) GETSTRUCT(tuple))->pronargs);
		case OperatorRelationId:
			tuple = catalog_row(key->class_id, key->object_id, &desc);
			types[0] = ((Form_pg_operator) GETSTRUCT(tuple))->oprleft;
			types[1] = ((Form_pg_operator) GETSTRUCT(tuple))->oprright;
			return !types_exist(types, lengthof(types));
		case CastRelationId:
			tuple = catalog_row(key->class_id, key->object_id, &desc);
			types[0] = ((Form_pg_cast) GETSTRUCT(tuple))->castsource;
			types[1] = ((Form_pg_cast) GETSTRUCT(tuple))->casttarget;
			return !types_exist(types, lengthof(types));
		default:
			return false;
	}
}

/* Says how an object is dropped; returns false if it always goes with something else. */
static bool
describe(DroppedObject *object, int sub_id)
{
	switch (object->key.class_id)
	{
		case RelationRelationId:
			return describe_relation(object, sub_id);
		case AttrDefaultRelationId:
			return describe_default(object);
		case ConstraintRelationId:
			return describe_constraint(object);
		case TriggerRelationId:
		case RewriteRelationId:
		case PolicyRelationId:
		case StatisticExtRelationId:
			return describe_attached(object);

			/*
			 * These go with others, are never replicated, or, in the case of
			 * a transform, have a name that no statement takes.
			 */
		case AccessMethodOperatorRelationId:
		case AccessMethodProcedureRelationId:
		case AuthMemRelationId:
		case DefaultAclRelationId:
		case PublicationRelationId:
		case PublicationNamespaceRelationId:
		case PublicationRelRelationId:
		case TransformRelationId:
		case UserMappingRelationId:
			return false;

		default:
			if (goes_with_type(&object->key))
				return false;
			object->statement = psprintf("DROP %s IF EXISTS %s",
										 object_type(object->key.class_id, object->key.object_id),
										 object_name(object->key.class_id, object->key.object_id));
			return true;
	}
}

/*
 * Adds an object that is about to be dropped.  The last three arguments say whether level "table"
 * replicates it, whether any level does, and which publications include it.
 */
List *
dropped_add(List *dropped, Oid class_id, Oid object_id, int sub_id,
			bool is_of_tables, bool is_replicable, List *publications)
{
	DroppedObject *object = palloc0(sizeof(DroppedObject));

	object->key.class_id = class_id;
	object->key.object_id = object_id;
	object->whole = sub_id == 0;
	object->is_of_tables = is_of_tables;
	object->is_replicable = is_replicable;
	object->publications = list_copy(publications);
	if (!find_owners(object, sub_id) || !describe(object, sub_id))
		return dropped;
	return lappend(dropped, object);
}

static bool
is_wanted(const DroppedObject *object, DroppedWanted wanted, const void *arg)
{
	return object->is_replicable && wanted(object->is_of_tables, object->publications, arg);
}

static bool
is_owner(const DroppedObject *object, const ObjectKey *key)
{
	foreach_ptr(ObjectKey, owner, object->owners)
		if (owner->class_id == key->class_id && owner->object_id == key->object_id)
		return true;
	return false;
}

/*
 * A part of a table, such as a default or a foreign key, goes with the table.  But without CASCADE, it must be
 * dropped before what it needs, a function or another table, and its own table may come after that.
 */
static bool
goes_with_owner(const DroppedObject *object, HTAB *whole, bool cascade)
{
	foreach_ptr(ObjectKey, key, object->needed)
		if (!cascade && !is_owner(object, key) && hash_search(whole, key, HASH_FIND, NULL))
		return false;
	foreach_ptr(ObjectKey, owner, object->owners)
		if (hash_search(whole, owner, HASH_FIND, NULL))
		return true;
	return false;
}

/*
 * Returns those objects of a list that are wanted and do not go with another one of these; all are
 * wanted if "wanted" is NULL.  What belongs to an extension cannot be dropped without it.
 */
static List *
roots_of(List *dropped, bool cascade, DroppedWanted wanted, const void *arg)
{
	HASHCTL		control = {.keysize = sizeof(ObjectKey),.entrysize = sizeof(ObjectKey)};
	HTAB	   *whole;
	List	   *result = NIL;

	control.hcxt = CurrentMemoryContext;
	whole = hash_create("dropped objects", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	foreach_ptr(DroppedObject, object, dropped)
		if (object->whole && (wanted == NULL || object->key.class_id == ExtensionRelationId ||
							  is_wanted(object, wanted, arg)))
		(void) hash_search(whole, &object->key, HASH_ENTER, NULL);
	foreach_ptr(DroppedObject, object, dropped)
	{
		if ((wanted == NULL || is_wanted(object, wanted, arg)) &&
			!goes_with_owner(object, whole, cascade) &&
			!hash_search(whole, &object->extension, HASH_FIND, NULL))
			result = lappend(result, object);
	}
	hash_destroy(whole);
	return result;
}

/* Is everything wanted that a statement has dropped? */
bool
dropped_all_wanted(List *dropped, DroppedWanted wanted, const void *arg)
{
	foreach_ptr(DroppedObject, object, roots_of(dropped, true, NULL, NULL))
		if (!is_wanted(object, wanted, arg))
		return false;
	return true;
}

/*
 * Returns the texts of statements that drop what is wanted of a list, in the order in which the server has
 * dropped it: what depends on something comes before that.  Tables that follow each other share a
 * statement.
 */
List *
dropped_statements(List *dropped, bool cascade, DroppedWanted wanted, const void *arg)
{
	const char *end = cascade ? " CASCADE" : "";
	const char *tables = NULL;
	List	   *result = NIL;

	foreach_ptr(DroppedObject, object, roots_of(dropped, cascade, wanted, arg))
	{
		if (object->name)
		{
			tables = tables ? psprintf("%s, %s", tables, object->name) :
				psprintf("DROP TABLE IF EXISTS %s", object->name);
			continue;
		}
		if (tables)
			result = lappend(result, psprintf("%s%s", tables, end));
		tables = NULL;

		/* DROP DEFAULT takes no CASCADE. */
		result = lappend(result, psprintf("%s%s", object->statement,
										  object->key.class_id == AttrDefaultRelationId ? "" : end));
	}
	if (tables)
		result = lappend(result, psprintf("%s%s", tables, end));
	return result;
}
