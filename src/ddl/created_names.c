/*
 * created_names.c
 *	  Names that the server chooses for what a statement creates.
 *
 * A statement need not name the indexes, constraints and sequences that it creates: CREATE TABLE t (id
 * serial PRIMARY KEY, CHECK (id > 0)), or an index of a partitioned table, which has one in each
 * partition.  The server chooses a name that is not in use, so the names may differ on a subscriber
 * where other names are in use.  Later statements would fail there, or be about something else.  Therefore a
 * schema change carries the names of what it has created, and the subscriber renames what it has
 * called differently.  If such a name is in use for something else, the schema change fails.
 *
 * What is the same on both servers is told by its definition without the name.  What has no counterpart,
 * because versions of the server define it differently, keeps the name that it has.
 *
 * The statement's role owns what the statement has created, or the table that it is part of, and the names are
 * those that it has on the publisher.  So nothing is renamed that the role could not have named itself.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "commands/tablecmds.h"
#include "ddl/created_names.h"
#include "ddl/ddl_message.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/ruleutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/* Something that was created here. */
typedef struct CreatedName
{
	DdlName		name;			/* must be first */
	Oid			relid;			/* of an index or sequence, or InvalidOid */
	Oid			constraint;
	const char *wanted;			/* another name, or NULL */
} CreatedName;

static object_access_hook_type previous_object_access = NULL;

/* What is being created, if "noting"; in TopTransactionContext. */
static bool noting = false;
static List *relations = NIL;
static List *constraints = NIL;

/* Returns a definition without the words around the name, and the name. */
static char *
without_name(const char *definition, const char *before, const char *name)
{
	char	   *words = psprintf("%s%s ", before, quote_identifier(name));
	const char *start = strstr(definition, words);

	if (start == NULL)
		return NULL;
	return psprintf("%.*s %s", (int) (start - definition), definition, start + strlen(words));
}

static char *
sequence_definition(Oid relid)
{
	Oid			table;
	int32		column;

	if (!sequenceIsOwned(relid, DEPENDENCY_AUTO, &table, &column) &&
		!sequenceIsOwned(relid, DEPENDENCY_INTERNAL, &table, &column))
		return NULL;
	return psprintf("SEQUENCE OF %s.%s",
					quote_qualified_identifier(get_namespace_name(get_rel_namespace(table)),
											   get_rel_name(table)),
					quote_identifier(get_attname(table, column, false)));
}

/* Returns the definition of an index or of a column's sequence, or NULL. */
static char *
relation_definition(Oid relid)
{
	char		relkind = get_rel_relkind(relid);

	if (relkind == '\0' || get_rel_persistence(relid) != RELPERSISTENCE_PERMANENT)
		return NULL;
	if (relkind == RELKIND_SEQUENCE)
		return sequence_definition(relid);
	if (relkind != RELKIND_INDEX && relkind != RELKIND_PARTITIONED_INDEX)
		return NULL;
	return without_name(TextDatumGetCString(DirectFunctionCall1(pg_get_indexdef,
																ObjectIdGetDatum(relid))),
						"INDEX ", get_rel_name(relid));
}

/* The same for a constraint.  One that has an index has its name. */
static char *
constraint_definition(Oid constraint, const char *name)
{
	HeapTuple	tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(constraint));
	Form_pg_constraint form;
	bool		named = false;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	form = (Form_pg_constraint) GETSTRUCT(tuple);
	if (form->contype == CONSTRAINT_CHECK || form->contype == CONSTRAINT_FOREIGN ||
		form->contype == CONSTRAINT_NOTNULL)
		named = !OidIsValid(form->conrelid) ||
			get_rel_persistence(form->conrelid) == RELPERSISTENCE_PERMANENT;
	ReleaseSysCache(tuple);
	return named ? without_name(pg_get_constraintdef_command(constraint), "ADD CONSTRAINT ",
								name) : NULL;
}

static List *
add(List *names, char *definition, char *name, Oid relid, Oid constraint)
{
	CreatedName *created;

	if (definition == NULL)
		return names;
	created = palloc0(sizeof(CreatedName));
	created->name.definition = definition;
	created->name.name = name;
	created->relid = relid;
	created->constraint = constraint;
	return lappend(names, created);
}

/* Returns the names (DdlName) and definitions of what a statement has created. */
List *
created_names_list(const List *created_relations, const List *created_constraints)
{
	List	   *result = NIL;

	foreach_oid(relid, created_relations)
		result = add(result, relation_definition(relid), get_rel_name(relid), relid, InvalidOid);
	foreach_oid(constraint, created_constraints)
	{
		char	   *name = get_constraint_name(constraint);

		if (name != NULL)
			result = add(result, constraint_definition(constraint, name), name, InvalidOid,
						 constraint);
	}
	return result;
}

/* Returns the names of those with a definition. */
static List *
find(const List *names, const char *definition)
{
	List	   *result = NIL;

	foreach_ptr(DdlName, name, names)
		if (strcmp(name->definition, definition) == 0)
		result = lappend(result, name);
	return result;
}

/* Returns how many things with the same definition come before one. */
static int
rank_of(const List *created, const CreatedName *one)
{
	int			result = 0;

	foreach_ptr(CreatedName, other, created)
	{
		if (other == one)
			break;
		result += strcmp(other->name.definition, one->name.definition) == 0;
	}
	return result;
}

/* Finds out which name each thing ought to have; returns those that have another one. */
static List *
find_differences(const List *created, const List *names)
{
	List	   *result = NIL;

	foreach_ptr(CreatedName, here, created)
	{
		List	   *others = find(names, here->name.definition);
		DdlName    *other;

		/* Any of several that are the same may have the name of any other. */
		if (list_length(find(created, here->name.definition)) != list_length(others))
			continue;
		other = list_nth(others, rank_of(created, here));
		if (strcmp(other->name, here->name.name) == 0)
			continue;

		/* It is too long in the encoding of this database. */
		if (strlen(other->name) >= NAMEDATALEN)
			continue;
		here->wanted = other->name;
		result = lappend(result, here);
	}
	return result;
}

static void
give_name(const CreatedName *created, const char *name)
{
	if (OidIsValid(created->relid))
		RenameRelationInternal(created->relid, name, false,
							   get_rel_relkind(created->relid) != RELKIND_SEQUENCE);
	else
	{
		HeapTuple	tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(created->constraint));
		Oid			relid = ((Form_pg_constraint) GETSTRUCT(tuple))->conrelid;

		ReleaseSysCache(tuple);
		RenameConstraintById(created->constraint, name);
		if (OidIsValid(relid))
			CacheInvalidateRelcacheByRelid(relid);
	}
	CommandCounterIncrement();
}

static void
object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	MemoryContext old;

	if (previous_object_access)
		previous_object_access(access, class_id, object_id, sub_id, arg);
	if (!noting || access != OAT_POST_CREATE || sub_id != 0)
		return;
	old = MemoryContextSwitchTo(TopTransactionContext);
	if (class_id == RelationRelationId)
		relations = lappend_oid(relations, object_id);
	else if (class_id == ConstraintRelationId)
		constraints = lappend_oid(constraints, object_id);
	MemoryContextSwitchTo(old);
}

/* A publisher's schema change is about to be executed. */
void
created_names_begin(void)
{
	relations = NIL;
	constraints = NIL;
	noting = true;
}

/* It has been executed, or has failed. */
void
created_names_end(void)
{
	noting = false;
}

/* It has succeeded: gives what it has created the names that it has on the publisher. */
void
created_names_settle(const List *names)
{
	List	   *differences;

	if (names == NIL)
		return;

	/* Definitions may be stored out of line. */
	PushActiveSnapshot(GetTransactionSnapshot());
	differences = find_differences(created_names_list(relations, constraints), names);

	/* One may have the name of another one. */
	if (list_length(differences) > 1)
		foreach_ptr(CreatedName, created, differences)
			give_name(created, psprintf("weft %u", OidIsValid(created->relid) ?
										created->relid : created->constraint));
	foreach_ptr(CreatedName, created, differences)
		give_name(created, created->wanted);
	PopActiveSnapshot();
}

/* Installs the hook; called once, while the postmaster loads the library. */
void
created_names_install(void)
{
	previous_object_access = object_access_hook;
	object_access_hook = object_access;
}
