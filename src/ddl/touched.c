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
#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_publication_namespace.h"
#include "catalog/pg_publication_rel.h"
#include "catalog/pg_rewrite.h"
#include "ddl/changes.h"
#include "ddl/dropped.h"
#include "ddl/dropped_column.h"
#include "ddl/local_object.h"
#include "ddl/touched.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

static object_access_hook_type previous_object_access_hook = NULL;

/* Adds what one look has found to what is known. */
static void
merge(Touched *touched, const Touched *look)
{
	touched_add_publications(touched, look->publications);
	foreach_ptr(char, name, look->relations)
		touched_add_name(touched, name);
	touched->replicable |= look->replicable;
	touched->tables |= look->tables;
	touched->temporary |= look->temporary;
	touched->unlogged |= look->unlogged;
	touched->own |= look->own;
	touched->filtered |= look->filtered;
}

static void
keep_name(Touched *touched, ChangedHow how, Oid class_id, Oid object_id, int sub_id)
{
	if (touched->keep_names)
		touched->names = changes_note(touched->names, how, class_id, object_id, sub_id);
}

/*
 * Looks at an object in the hook, with memory that lives as long as "touched".  What the statement itself
 * has created need not be complete yet: a sequence may lack its owner.
 */
static void
look_early(Touched *touched, Oid class_id, Oid object_id, int sub_id)
{
	MemoryContext old;

	if (class_id == RelationRelationId && touched_created_by(touched, object_id))
		return;
	old = MemoryContextSwitchTo(touched->context);
	touched_look_at(touched, class_id, object_id);
	keep_name(touched, CHANGED_ALTERED, class_id, object_id, sub_id);
	MemoryContextSwitchTo(old);
}

/*
 * CREATE OR REPLACE: looks at what an object has been until now.  The server tells of it as of a new one, which cannot
 * be seen yet.  The query of a view is a rule.
 */
static void
look_replaced(Touched *touched, Oid class_id, Oid object_id)
{
	MemoryContext old = MemoryContextSwitchTo(touched->context);

	if ((class_id == ProcedureRelationId || class_id == RewriteRelationId) &&
		OidIsValid(touched_look_oid(class_id, object_id, get_object_attnum_oid(class_id))))
		touched_look_at(touched, class_id, object_id);
	MemoryContextSwitchTo(old);
}

/* Keeps that a publication names a table, or a schema, although that ends now. */
static void
keep_membership(Touched *touched, Oid class_id, Oid object_id)
{
	bool		is_table = class_id == PublicationRelRelationId;
	HeapTuple	tuple = SearchSysCache1(is_table ? PUBLICATIONREL : PUBLICATIONNAMESPACE,
										ObjectIdGetDatum(object_id));
	Membership *membership = palloc(sizeof(Membership));

	if (!HeapTupleIsValid(tuple))
		return;
	if (is_table)
	{
		membership->class_id = RelationRelationId;
		membership->object_id = ((Form_pg_publication_rel) GETSTRUCT(tuple))->prrelid;
		membership->publication = ((Form_pg_publication_rel) GETSTRUCT(tuple))->prpubid;
	}
	else
	{
		membership->class_id = NamespaceRelationId;
		membership->object_id = ((Form_pg_publication_namespace) GETSTRUCT(tuple))->pnnspid;
		membership->publication = ((Form_pg_publication_namespace) GETSTRUCT(tuple))->pnpubid;
	}
	touched->memberships = lappend(touched->memberships, membership);
	ReleaseSysCache(tuple);
}

/* Keeps the name of a table or column that is being dropped. */
static void
keep_lost(Touched *touched, Oid relid, int column)
{
	DroppedColumn *object;

	if (get_rel_relkind(relid) != RELKIND_RELATION)
		return;
	object = palloc(sizeof(DroppedColumn));
	object->relid = relid;
	object->schema = get_namespace_name(get_rel_namespace(relid));
	object->table = get_rel_name(relid);
	object->column = column == 0 ? pstrdup("") : get_attname(relid, column, false);
	touched->lost = lappend(touched->lost, object);
}

/* Looks at an object that is being dropped, and keeps it if that is wanted. */
static void
look_last(Touched *touched, Oid class_id, Oid object_id, int sub_id)
{
	MemoryContext old = MemoryContextSwitchTo(touched->context);
	Touched		look = touched_look(class_id, object_id);

	if (class_id == PublicationRelRelationId || class_id == PublicationNamespaceRelationId)
		keep_membership(touched, class_id, object_id);
	if (class_id == RelationRelationId)
		keep_lost(touched, object_id, sub_id);
	keep_name(touched, CHANGED_DROPPED, class_id, object_id, sub_id);

	/* Such a part is dropped before the object itself. */
	if (class_id == RewriteRelationId && !look.replicable)
		touched->local_views = lappend_oid(touched->local_views,
										   touched_look_oid(class_id, object_id,
															Anum_pg_rewrite_ev_class));
	if (class_id == RelationRelationId && !look.replicable &&
		get_rel_relkind(object_id) == RELKIND_COMPOSITE_TYPE)
		touched->local_types = lappend_oid(touched->local_types, get_rel_type_id(object_id));
	merge(touched, &look);
	if (touched->keep_dropped)
		touched->dropped = dropped_add(touched->dropped, class_id, object_id, sub_id,
									   look.tables, look.replicable, look.publications);
	MemoryContextSwitchTo(old);
}

/* Keeps an object for a look after the statement. */
static void
look_later(Touched *touched, Oid class_id, Oid object_id, int sub_id, bool created)
{
	MemoryContext old = MemoryContextSwitchTo(touched->context);
	TouchedObject *object = palloc(sizeof(TouchedObject));

	object->class_id = class_id;
	object->object_id = object_id;
	object->sub_id = sub_id;
	object->created = created;
	touched->objects = lappend(touched->objects, object);
	MemoryContextSwitchTo(old);
}

static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	Touched    *touched = touched_current();

	if (previous_object_access_hook)
		previous_object_access_hook(access, classId, objectId, subId, arg);
	if (touched == NULL)
		return;
	switch (access)
	{
		case OAT_POST_CREATE:
			look_replaced(touched, classId, objectId);
			look_later(touched, classId, objectId, subId, subId == 0);
			break;
		case OAT_POST_ALTER:
			look_early(touched, classId, objectId, subId);
			look_later(touched, classId, objectId, subId, false);
			break;
		case OAT_DROP:
			look_last(touched, classId, objectId, subId);
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
	memset(touched, 0, sizeof(Touched));
	touched->context = context;
	return touched_set_current(touched);
}

/* The server does not tell of every change: notes an object that has been altered. */
void
touched_object(Oid class_id, Oid object_id, int sub_id)
{
	look_later(touched_current(), class_id, object_id, sub_id, false);
}

/* The same for a relation that has been created. */
void
touched_new_relation(Oid relid)
{
	look_later(touched_current(), RelationRelationId, relid, 0, true);
}

/* The statement is over, however it has ended. */
void
touched_end(Touched *outer)
{
	(void) touched_set_current(outer);
}

static bool
is_table(Oid relid)
{
	char		relkind = get_rel_relkind(relid);

	return (relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE) &&
		local_object_persistence(relid) == RELPERSISTENCE_PERMANENT;
}

/* Looks for what a part of a table, or a new table, depends on. */
static void
look_at_part(Touched *touched, const TouchedObject *object)
{
	Oid			class_id = object->class_id;
	Oid			object_id = object->object_id;
	Oid			relid = object_id;
	int			sub_id = object->sub_id;

	switch (class_id)
	{
		case RelationRelationId:
			if (object->created)
				sub_id = LOCAL_ALL_COLUMNS;
			else if (sub_id == 0)
				return;
			break;
		case InheritsRelationId:
			class_id = RelationRelationId;
			break;
		case AttrDefaultRelationId:
			object_id = GetAttrDefaultOid(relid, sub_id);
			sub_id = 0;
			break;
		case ConstraintRelationId:
			relid = touched_look_oid(class_id, object_id, Anum_pg_constraint_conrelid);
			break;
		default:
			return;
	}
	if (!OidIsValid(object_id) || !is_table(relid))
		return;
	touched_set_dependent(touched, class_id, object_id, Max(sub_id, 0),
						  local_object_reason(class_id, object_id, sub_id));
}

/* Lists what has been created, and still exists. */
static void
list_created(Touched *touched, const TouchedObject *object)
{
	Datum		key = ObjectIdGetDatum(object->object_id);

	if (!object->created)
		return;
	if (object->class_id == RelationRelationId && SearchSysCacheExists1(RELOID, key))
		touched->created = list_append_unique_oid(touched->created, object->object_id);
	if (object->class_id == ConstraintRelationId && SearchSysCacheExists1(CONSTROID, key))
		touched->constraints = list_append_unique_oid(touched->constraints, object->object_id);
}

/* The statement has succeeded: looks at what it has left. */
void
touched_finish(Touched *touched)
{
	MemoryContext old = MemoryContextSwitchTo(touched->context);

	foreach_ptr(TouchedObject, object, touched->objects)
	{
		touched_look_at(touched, object->class_id, object->object_id);
		keep_name(touched, object->created ? CHANGED_CREATED : CHANGED_ALTERED,
				  object->class_id, object->object_id, object->sub_id);
		look_at_part(touched, object);
		list_created(touched, object);
	}
	MemoryContextSwitchTo(old);
}
