/*
 * publication_settings.c
 *	  What Weft stores for a publication.
 *
 * It is stored as the publication's security label of provider "weft", for the reasons that
 * subscription_settings.c gives.  The label is "ddl=table" or "ddl=all".
 *
 * Schema changes are rows of weft.ddl_queue (ddl/ddl_queue.c).  Therefore a publication with
 * such a label includes that table, implicitly: setting the label adds it.  pg_dump writes the
 * label, but not the membership of a table that belongs to an extension; the restored label
 * adds it again.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_publication_rel.h"
#include "commands/extension.h"
#include "commands/seclabel.h"
#include "compat.h"
#include "miscadmin.h"
#include "node_identity.h"
#include "publication_settings.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#define LABEL_PROVIDER "weft"
#define DDL "ddl="

static const char *const level_names[] = {
	[DDL_LEVEL_NONE] = "none",
	[DDL_LEVEL_TABLE] = "table",
	[DDL_LEVEL_ALL] = "all",
};

/*
 * The publications that publish schema changes, as this process knows them.  A global, since
 * the invalidation callback must find it.
 */
static struct
{
	bool		valid;
	bool		watching;		/* the callback is registered */
	MemoryContext context;
	List	   *publications;	/* of DdlPublication */
	Oid			member_table;	/* changes when this node joins or leaves a
								 * group */
}			known;

/* Parses the name of a level; returns false if there is none of that name. */
bool
publication_settings_parse_level(const char *text, DdlLevel *level)
{
	for (int i = 0; i < lengthof(level_names); i++)
	{
		if (strcmp(text, level_names[i]) == 0)
		{
			*level = i;
			return true;
		}
	}
	return false;
}

static bool
parse_label(const char *label, DdlLevel *level)
{
	return strncmp(label, DDL, strlen(DDL)) == 0 &&
		publication_settings_parse_level(label + strlen(DDL), level);
}

/* Returns weft.ddl_queue, or InvalidOid if the extension is not installed here. */
Oid
publication_settings_queue(void)
{
	Oid			extension = get_extension_oid("weft", true);
	Oid			relid;

	if (!OidIsValid(extension))
		return InvalidOid;
	relid = get_relname_relid("ddl_queue", get_namespace_oid("weft", true));
	if (!OidIsValid(relid) || getExtensionOfObject(RelationRelationId, relid) != extension)
		return InvalidOid;
	return relid;
}

/* Adds weft.ddl_queue to a publication, or removes it.  FOR ALL TABLES includes it anyway. */
static void
set_membership(Oid publication, bool member)
{
	Oid			queue = publication_settings_queue();
	Oid			membership;
	PublicationRelInfo info = {0};

	/* pg_upgrade transfers the tables of extensions, and their memberships. */
	if (!OidIsValid(queue) || IsBinaryUpgrade || GetPublication(publication)->alltables)
		return;
	membership = GetSysCacheOid2(PUBLICATIONRELMAP, Anum_pg_publication_rel_oid,
								 ObjectIdGetDatum(queue), ObjectIdGetDatum(publication));
	if (member == OidIsValid(membership))
		return;
	if (member)
	{
		info.relation = table_open(queue, ShareUpdateExclusiveLock);
		(void) compat_publication_add_relation(publication, &info, true);
		table_close(info.relation, NoLock);
	}
	else
	{
		ObjectAddress address;

		ObjectAddressSet(address, PublicationRelRelationId, membership);
		performDeletion(&address, DROP_CASCADE, PERFORM_DELETION_INTERNAL);
	}
	CommandCounterIncrement();
}

/* Fails if a publication cannot publish what a level says. */
void
publication_settings_check(Oid publication, DdlLevel level)
{
	Publication *form;

	if (level == DDL_LEVEL_NONE)
		return;
	form = GetPublication(publication);
	if (!OidIsValid(publication_settings_queue()))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("publication \"%s\" cannot publish schema changes because extension \"weft\" is not installed in its database",
						form->name),
				 errhint("Run CREATE EXTENSION weft.")));
	if (!form->pubactions.pubinsert)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("publication \"%s\" cannot publish schema changes because it does not publish inserts",
						form->name),
				 errhint("Include \"insert\" in \"publish\", or set \"ddl\" to \"none\".")));
	if (level == DDL_LEVEL_ALL && !superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to set \"%s\" to \"%s\"", "ddl", level_names[level])));
}

/* Makes all processes read the publication's label again once this transaction commits. */
static void
invalidate_publication(Oid publication)
{
	Relation	catalog = table_open(PublicationRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCache1(PUBLICATIONOID, ObjectIdGetDatum(publication));

	if (HeapTupleIsValid(tuple))
	{
		CacheInvalidateHeapTuple(catalog, tuple, NULL);
		ReleaseSysCache(tuple);
	}
	table_close(catalog, NoLock);
}

/* Checks SECURITY LABEL FOR weft ON PUBLICATION, with which a dump restores the settings. */
void
publication_settings_check_label(Oid publication, const char *label)
{
	DdlLevel	level = DDL_LEVEL_NONE;

	if (label != NULL && !parse_label(label, &level))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid security label \"%s\"", label),
				 errhint("Use \"%s\" and one of \"none\", \"table\" and \"all\".", DDL)));
	publication_settings_check(publication, level);
	set_membership(publication, level != DDL_LEVEL_NONE);
	invalidate_publication(publication);
}

/* Returns which schema changes a publication publishes. */
DdlLevel
publication_settings_get(Oid publication)
{
	DdlLevel	level = DDL_LEVEL_NONE;
	ObjectAddress object;
	char	   *label;

	ObjectAddressSet(object, PublicationRelationId, publication);
	label = GetSecurityLabel(&object, LABEL_PROVIDER);
	if (label != NULL && !parse_label(label, &level))
		return DDL_LEVEL_NONE;
	return level;
}

/*
 * Stores which schema changes a publication publishes.  The caller has checked the level, and
 * that the user may change the publication.
 */
void
publication_settings_set(Oid publication, DdlLevel level)
{
	ObjectAddress object;

	ObjectAddressSet(object, PublicationRelationId, publication);
	SetSecurityLabel(&object, LABEL_PROVIDER,
					 level == DDL_LEVEL_NONE ? NULL : psprintf("%s%s", DDL, level_names[level]));
	set_membership(publication, level != DDL_LEVEL_NONE);
	invalidate_publication(publication);
}

/* Adds weft.ddl_queue to a publication again if a statement has removed it. */
void
publication_settings_complete(Oid publication)
{
	if (publication_settings_get(publication) != DDL_LEVEL_NONE)
		set_membership(publication, true);
}

static void
publication_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	known.valid = false;
}

/* A table has changed. */
static void
table_changed(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == known.member_table)
		known.valid = false;
}

static void
remember(Form_pg_publication form, DdlLevel level, bool group)
{
	MemoryContext old = MemoryContextSwitchTo(known.context);
	DdlPublication *entry = palloc(sizeof(DdlPublication));

	entry->oid = form->oid;
	entry->name = pstrdup(NameStr(form->pubname));
	entry->owner = form->pubowner;
	entry->level = level;
	entry->all_tables = form->puballtables || group;
	entry->via_root = form->pubviaroot;
	entry->group = group;
	known.publications = lappend(known.publications, entry);
	MemoryContextSwitchTo(old);
}

static void
read_publications(void)
{
	Relation	catalog = table_open(PublicationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	const char *group = node_identity_publication(&known.member_table);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_publication form = (Form_pg_publication) GETSTRUCT(tuple);
		DdlLevel	level = publication_settings_get(form->oid);

		if (level != DDL_LEVEL_NONE)
			remember(form, level, group && strcmp(NameStr(form->pubname), group) == 0);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

/* Returns a copy of what is known, in the current memory context. */
static List *
copy_known(void)
{
	List	   *result = NIL;

	foreach_ptr(DdlPublication, publication, known.publications)
	{
		DdlPublication *copy = palloc(sizeof(DdlPublication));

		*copy = *publication;
		copy->name = pstrdup(publication->name);
		result = lappend(result, copy);
	}
	return result;
}

/* Reads the publications again if they may have changed. */
static void
refresh(void)
{
	if (!known.watching)
	{
		known.context = AllocSetContextCreate(TopMemoryContext, "weft publications",
											  ALLOCSET_SMALL_SIZES);
		CacheRegisterSyscacheCallback(PUBLICATIONOID, publication_changed, (Datum) 0);
		CacheRegisterRelcacheCallback(table_changed, (Datum) 0);
		known.watching = true;
	}
	if (!known.valid)
	{
		MemoryContextReset(known.context);
		known.publications = NIL;

		/* An invalidation that arrives meanwhile resets this. */
		known.valid = true;
		PG_TRY();
		{
			read_publications();
		}
		PG_CATCH();
		{
			known.valid = false;
			PG_RE_THROW();
		}
		PG_END_TRY();
	}
}

/*
 * Returns the publications of this database that publish schema changes, as a list of
 * DdlPublication in the current memory context: whoever goes through it may look at catalogs,
 * which may make this process forget what it knows.
 */
List *
publication_settings_list(void)
{
	refresh();
	return copy_known();
}

/* Is there a node group's publication that publishes schema changes? */
bool
publication_settings_of_group(void)
{
	refresh();
	foreach_ptr(DdlPublication, publication, known.publications)
		if (publication->group)
		return true;
	return false;
}
