/*
 * touched.c
 *	  Which objects a statement creates, alters and drops.
 *
 * The server tells extensions about every object that it touches (object_access_hook).
 * Therefore nothing here depends on the form of the statement.
 *
 * What is asked about an object is the same at all times, but the answers are not: an object
 * that is dropped, renamed or moved must be looked at before that, and one that is created, or
 * moved into a published schema, after that.  The hook is called before a dropped or altered
 * object changes in the eyes of this process, so the first look is in the hook, and the second
 * one after the statement.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/partition.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "ddl/touched.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

/* An object that was created or altered, to be looked at after the statement. */
typedef struct TouchedObject
{
	Oid			class_id;
	Oid			object_id;
	bool		created;
} TouchedObject;

static object_access_hook_type previous_object_access_hook = NULL;

/* What the statement that is being executed touches; NULL if nobody wants to know. */
static Touched *current = NULL;

static void
add_publications(Touched *touched, List *publications)
{
	touched->publications = list_concat_unique_oid(touched->publications, publications);
}

/* Looks at the table that a relation is, or is part of. */
static void
look_at_table(Touched *touched, Oid relid)
{
	List	   *ancestors = get_rel_relispartition(relid) ? get_partition_ancestors(relid) : NIL;

	add_publications(touched, GetRelationPublications(relid));
	foreach_oid(ancestor, ancestors)
	{
		add_publications(touched, GetRelationPublications(ancestor));
		add_publications(touched, GetSchemaPublications(get_rel_namespace(ancestor)));
	}
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

static void
look_at_relation(Touched *touched, Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;
	Oid			extension;

	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_class) GETSTRUCT(tuple);
	extension = getExtensionOfObject(RelationRelationId, relid);
	if (form->relkind == RELKIND_TOASTVALUE || form->relnamespace == PG_TOAST_NAMESPACE)
		 /* part of its table */ ;
	else if (form->relpersistence == RELPERSISTENCE_TEMP)
		touched->temporary = true;
	else if (form->relpersistence == RELPERSISTENCE_UNLOGGED)
		touched->unlogged = true;
	else if (OidIsValid(extension) && extension == get_extension_oid("weft", true))
		touched->own = true;
	else
	{
		Oid			table = owner_of(relid, form->relkind);

		touched->replicable = true;
		add_publications(touched, GetSchemaPublications(form->relnamespace));
		look_at_table(touched, OidIsValid(table) ? table : relid);
	}
	ReleaseSysCache(tuple);
}

/* Looks at the tables with a column of a type. */
static void
look_at_users(Touched *touched, Oid type)
{
	Relation	catalog = table_open(DependRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(TypeRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(type));
	scan = systable_beginscan(catalog, DependReferenceIndexId, true, NULL, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);

		if (form->classid == RelationRelationId && form->objsubid > 0)
			look_at_table(touched, form->objid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

static void
look_at_type(Touched *touched, Oid type)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	Form_pg_type form;

	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_type) GETSTRUCT(tuple);

	/* The row type of a table is part of the table. */
	if (!OidIsValid(form->typrelid) ||
		get_rel_relkind(form->typrelid) == RELKIND_COMPOSITE_TYPE)
	{
		if (!isTempNamespace(form->typnamespace))
			touched->replicable = true;
		add_publications(touched, GetSchemaPublications(form->typnamespace));
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
	if (OidIsValid(form->contypid))
		look_at_type(touched, form->contypid);
	ReleaseSysCache(tuple);
}

static void
look_at(Touched *touched, Oid class_id, Oid object_id)
{
	switch (class_id)
	{
		case RelationRelationId:
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
	}
}

/* Looks at an object in the hook, with memory that lives as long as "current". */
static void
look_early(Oid class_id, Oid object_id)
{
	MemoryContext old = MemoryContextSwitchTo(current->context);

	look_at(current, class_id, object_id);
	MemoryContextSwitchTo(old);
}

/* Keeps an object for a look after the statement. */
static void
look_later(Oid class_id, Oid object_id, bool created)
{
	MemoryContext old = MemoryContextSwitchTo(current->context);
	TouchedObject *object = palloc(sizeof(TouchedObject));

	object->class_id = class_id;
	object->object_id = object_id;
	object->created = created;
	current->objects = lappend(current->objects, object);
	MemoryContextSwitchTo(old);
}

static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (previous_object_access_hook)
		previous_object_access_hook(access, classId, objectId, subId, arg);
	if (current == NULL ||
		(classId != RelationRelationId && classId != TypeRelationId &&
		 classId != ConstraintRelationId && classId != AttrDefaultRelationId))
		return;
	switch (access)
	{
		case OAT_POST_CREATE:
			look_later(classId, objectId, subId == 0);
			break;
		case OAT_POST_ALTER:
			look_early(classId, objectId);
			look_later(classId, objectId, false);
			break;
		case OAT_DROP:
			look_early(classId, objectId);
			break;
		default:
			break;
	}
}

/* Installs the hook; called once, while the postmaster loads the library. */
void
touched_install(void)
{
	previous_object_access_hook = object_access_hook;
	object_access_hook = object_access;
}

/*
 * Begins to note what is touched; returns what was being noted before, to be given to
 * touched_end().
 */
Touched *
touched_begin(Touched *touched, MemoryContext context)
{
	Touched    *outer = current;

	memset(touched, 0, sizeof(Touched));
	touched->context = context;
	current = touched;
	return outer;
}

/* The server does not tell of every change of a table: notes one that has been altered. */
void
touched_table(Oid relid)
{
	look_later(RelationRelationId, relid, false);
}

/* The statement is over, however it has ended. */
void
touched_end(Touched *outer)
{
	current = outer;
}

/* The statement has succeeded: looks at what it has left. */
void
touched_finish(Touched *touched)
{
	MemoryContext old = MemoryContextSwitchTo(touched->context);

	foreach_ptr(TouchedObject, object, touched->objects)
	{
		look_at(touched, object->class_id, object->object_id);
		if (object->created && object->class_id == RelationRelationId &&
			SearchSysCacheExists1(RELOID, ObjectIdGetDatum(object->object_id)))
			touched->created = list_append_unique_oid(touched->created, object->object_id);
	}
	MemoryContextSwitchTo(old);
}
