/*
 * membership.c
 *	  Which existing tables enter and leave publications.
 *
 * A table that is created belongs to a subscription from its first row on.  One that has rows
 * already, and that a publication includes only now, must be copied; one that a publication no longer includes
 * must leave the subscription, since it would not be copied when it comes back.  The subscriber
 * cannot know either from the statement, so the message says it (ddl_tables.c).  There are three
 * causes: a schema change of a table (SET SCHEMA, ATTACH, DETACH); ALTER PUBLICATION, which is
 * not replicated, but announced; and DROP ... CASCADE of what a publication needs to include a table.
 *
 * A node group's own functions see to its tables.
 *
 * With publish_via_partition_root, a partition is part of its root, which does not enter or leave.
 * Rows that ATTACH brings are not copied then.  A table that a publication includes, and that
 * DETACH takes out of its root, is sent under its own name from then on.  Subscribers have its
 * rows already, so it joins the subscription as a new table does.
 *
 * Wherever the name changes under which rows are sent, a subscriber may be copying them, and must
 * know (renamed_tables.c).  It must not get changes under the old name afterwards: a transaction that has written
 * to a partition before ALTER PUBLICATION, and is committed after it, would send such.  Therefore the statement
 * takes a lock on the partitions that conflicts with writing, as ATTACH and DETACH do.  ADD and DROP of a root change
 * the name, too, if its partitions are published besides.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_publication.h"
#include "commands/extension.h"
#include "compat.h"
#include "ddl/ddl_queue.h"
#include "ddl/membership.h"
#include "ddl/partition_tree.h"
#include "ddl/powers.h"
#include "ddl/statement_settings.h"
#include "guc.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "nodes/queryjumble.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

/* A table that a statement may bring into publications, or take out of them. */
typedef struct Member
{
	Oid			relid;
	List	   *publications;	/* OIDs of those that included it before */
	List	   *of_root;		/* those of them that included it as part of a
								 * partitioned table */
} Member;

/* Returns the publications that include one of these tables. */
static List *
publications_of_any(List *tables)
{
	List	   *result = tables == NIL ? NIL : GetAllTablesPublications();

	foreach_oid(table, tables)
	{
		result = list_concat_unique_oid(result, compat_relation_publications(table));
		result = list_concat_unique_oid(result,
										GetSchemaPublications(get_rel_namespace(table)));
	}
	return result;
}

/* Returns the publications that include a table as part of a partitioned one. */
static List *
publications_of_root(Oid relid)
{
	return publications_of_any(partition_ancestors(relid));
}

/* Returns the publications that include a table itself, or as part of a partitioned one. */
static List *
publications_of(Oid relid)
{
	if (get_rel_persistence(relid) != RELPERSISTENCE_PERMANENT)
		return NIL;
	return list_concat_unique_oid(publications_of_any(list_make1_oid(relid)),
								  publications_of_root(relid));
}

/* Does a publication that includes a table send its rows under that table's own name? */
bool
membership_is_direct(const DdlPublication *publication, Oid relid)
{
	char		relkind = get_rel_relkind(relid);

	if (publication->via_root)
		return (relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE) &&
			!list_member_oid(publications_of_root(relid), publication->oid);
	return relkind == RELKIND_RELATION;
}

/*
 * Does one of these publications send partitions as their root?  Then so do others, to a
 * subscription to both.
 */
static bool
any_via_root(List *publications)
{
	foreach_oid(publication, publications)
		if (GetPublication(publication)->pubviaroot)
		return true;
	return false;
}

/* Returns the names of publications that send rows of a table as those of a root. */
static List *
others_via_root(Oid relid)
{
	List	   *result = NIL;

	foreach_oid(publication, publications_of_root(relid))
		if (GetPublication(publication)->pubviaroot)
		result = lappend(result, get_publication_name(publication, false));
	return result;
}

/* Notes a table, with its partitions, if it exists. */
static List *
add_members(List *members, const RangeVar *name)
{
	Oid			relid = RangeVarGetRelid(name, NoLock, true);

	if (!OidIsValid(relid) ||
		(get_rel_relkind(relid) != RELKIND_RELATION &&
		 get_rel_relkind(relid) != RELKIND_PARTITIONED_TABLE))
		return members;
	foreach_oid(each, find_all_inheritors(relid, NoLock, NULL))
	{
		Member	   *member = palloc(sizeof(Member));

		member->relid = each;
		member->publications = publications_of(each);
		member->of_root = publications_of_root(each);
		members = lappend(members, member);
	}
	return members;
}

/*
 * Called before a schema change: returns what it may bring into publications, or take out of them,
 * for membership_compare().
 */
List *
membership_before(Node *statement)
{
	List	   *result = NIL;

	if (IsA(statement, AlterObjectSchemaStmt) &&
		((AlterObjectSchemaStmt *) statement)->objectType == OBJECT_TABLE)
		return add_members(NIL, ((AlterObjectSchemaStmt *) statement)->relation);
	if (!IsA(statement, AlterTableStmt))
		return NIL;
	foreach_node(AlterTableCmd, command, ((AlterTableStmt *) statement)->cmds)
		if (command->subtype == AT_AttachPartition || command->subtype == AT_DetachPartition)
		result = add_members(result, ((PartitionCmd *) command->def)->name);
	return result;
}

/* The table exists, or this is an error: another session may have dropped it. */
static DdlTable *
describe(Oid relid, const char *publication)
{
	DdlTable   *result = palloc0(sizeof(DdlTable));

	result->publication = pstrdup(publication);
	result->schema = get_namespace_name(get_rel_namespace(relid));
	result->name = get_rel_name(relid);
	if (result->schema == NULL || result->name == NULL)
		elog(ERROR, "cache lookup failed for relation %u", relid);
	return result;
}

/* Notes a table that a publication includes from now on, and which others send its rows as those of a root. */
static void
add_entered(DdlMessage *message, Oid relid, const char *publication)
{
	DdlTable   *table = describe(relid, publication);

	table->others = others_via_root(relid);
	message->entered = lappend(message->entered, table);
}

/* Notes a table that has left a publication, and which others include it. */
static void
add_left(DdlMessage *message, Oid relid, const char *publication, List *others)
{
	DdlTable   *table = describe(relid, publication);

	foreach_oid(other, others)
		table->others = lappend(table->others, get_publication_name(other, false));
	message->left = lappend(message->left, table);
}

/*
 * Notes as which table a publication sends the rows of another one, which were sent under its own name
 * before the statement.
 */
static void
add_attached(DdlMessage *message, Oid relid, const DdlPublication *publication)
{
	foreach_oid(ancestor, get_partition_ancestors(relid))
		if (membership_is_direct(publication, ancestor) &&
			list_member_oid(publications_of(ancestor), publication->oid))
		message->attached = lappend(message->attached, describe(ancestor, publication->name));
}

/* Called after the statement: adds to the message what concerns a publication. */
void
membership_compare(DdlMessage *message, List *before, const DdlPublication *publication)
{
	if (publication->group)
		return;
	foreach_ptr(Member, member, before)
	{
		List	   *now = publications_of(member->relid);
		bool		was = list_member_oid(member->publications, publication->oid);
		bool		is = list_member_oid(now, publication->oid);

		if (was && !is)
			add_left(message, member->relid, publication->name, now);
		if (member->publications != NIL && is && publication->via_root &&
			get_rel_relispartition(member->relid) &&
			!list_member_oid(member->of_root, publication->oid))
			add_attached(message, member->relid, publication);
		if (!is || !membership_is_direct(publication, member->relid))
			continue;
		if (!was)
			add_entered(message, member->relid, publication->name);
		else if (any_via_root(member->of_root))
			message->tables = lappend(message->tables,
									  describe(member->relid, publication->name));
	}
}

/*
 * A statement has dropped what named these tables in a publication: a column in its list of columns or in its row
 * filter, with CASCADE.  Adds to the message those that have left, with their partitions.
 */
void
membership_add_left(DdlMessage *message, const List *relids, const DdlPublication *publication)
{
	foreach_oid(relid, relids)
	{
		if (get_rel_relkind(relid) == '\0' || relid == publication_settings_queue())
			continue;
		foreach_oid(each, find_all_inheritors(relid, NoLock, NULL))
		{
			List	   *now = publications_of(each);

			if (!list_member_oid(now, publication->oid))
				add_left(message, each, publication->name, now);
		}
	}
}

/* Is a publication one of those that publish schema changes, and no node group's? */
static bool
is_concerned(Oid publication)
{
	foreach_ptr(DdlPublication, each, publication_settings_list())
		if (each->oid == publication)
		return !each->group;
	return false;
}

/*
 * Returns the tables that a publication with schema changes sends rows of, weft.ddl_queue included;
 * NIL if it names none.
 */
List *
membership_of_publication(const char *name)
{
	Publication *publication = GetPublicationByName(name, true);
	PublicationPartOpt option;

	if (publication == NULL || publication->alltables || !is_concerned(publication->oid))
		return NIL;
	option = publication->pubviaroot ? PUBLICATION_PART_ROOT : PUBLICATION_PART_LEAF;
	return list_concat_unique_oid(compat_publication_relations(publication->oid, option),
								  GetAllSchemaPublicationRelations(publication->oid, option));
}

/* Is it one FOR ALL TABLES with schema changes? */
static bool
is_all_tables(const char *name)
{
	Publication *publication = GetPublicationByName(name, true);

	return publication != NULL && publication->alltables && is_concerned(publication->oid);
}

/* Does the publication publish schema changes, before and after the statement? */
static bool
is_wanted(List *before, List *now)
{
	Oid			queue = publication_settings_queue();

	return weft_ddl_replication && !creating_extension && !IsBinaryUpgrade &&
		list_member_oid(before, queue) && list_member_oid(now, queue);
}

/* Does a publication send partitions as their root? */
bool
membership_is_via_root(const char *name)
{
	Publication *publication = GetPublicationByName(name, true);

	return publication != NULL && publication->pubviaroot;
}

/* Is a table a part of one of others, or one of them a part of it? */
static bool
is_related(Oid relid, List *others)
{
	foreach_oid(ancestor, partition_ancestors(relid))
		if (list_member_oid(others, ancestor))
		return true;
	foreach_oid(each, partition_tree(relid, NoLock))
		if (each != relid && list_member_oid(others, each))
		return true;
	return false;
}

/*
 * Waits until transactions that have written to a table have ended, and lets no others begin to.  Begins with its root: whoever
 * has written to one of its partitions may go on with others then.  Returns false if the table has been dropped
 * meanwhile.
 */
static bool
lock_against_writing(Oid relid)
{
	List	   *ancestors = partition_ancestors(relid);

	if (ancestors != NIL)
		LockRelationOid(llast_oid(ancestors), ShareLock);
	LockRelationOid(relid, ShareLock);
	if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
		return false;
	(void) partition_tree(relid, ShareLock);
	return true;
}

/*
 * publish_via_partition_root has changed, and with it the names under which rows are sent.  Subscribers that have copied
 * all of these rows need not do it again, and the other names may come back.
 */
static void
add_renamed(DdlMessage *message, const char *name, List *before, List *now)
{
	foreach_ptr(DdlPublication, publication, publication_settings_list())
	{
		if (strcmp(publication->name, name) != 0)
			continue;
		foreach_oid(relid, now)
		{
			DdlTable   *table;

			if (!membership_is_direct(publication, relid) || !is_related(relid, before))
				continue;
			if (!lock_against_writing(relid))
				continue;
			table = describe(relid, name);
			table->others = others_via_root(relid);
			message->tables = lappend(message->tables, table);
		}
	}
}

/*
 * A publication no longer includes a table, and sent the rows of its partitions as the table's.  Notes those that other
 * publications, or this one, send under their own names from now on.
 */
static void
add_parts_of_left(DdlMessage *message, Oid relid)
{
	foreach_oid(each, partition_tree(relid, NoLock))
		foreach_oid(oid, each == relid ? NIL : publications_of(each))
	{
		const DdlPublication publication = {.oid = oid,.via_root = GetPublication(oid)->pubviaroot};
		DdlTable   *table;

		if (!membership_is_direct(&publication, each))
			continue;
		if (!lock_against_writing(relid))
			return;
		table = describe(each, get_publication_name(oid, false));
		table->others = others_via_root(each);
		message->tables = lappend(message->tables, table);
	}
}

/*
 * A publication includes a table.  If partitions were sent under their own names before, waits for those that write to
 * them.  Returns false if the table has been dropped meanwhile.
 */
static bool
lock_parts_of_entered(Oid relid, Oid publication, List *before)
{
	foreach_oid(each, partition_tree(relid, NoLock))
		if (each != relid &&
			(list_member_oid(before, each) ||
			 list_difference_oid(publications_of(each), list_make1_oid(publication)) != NIL))
		return lock_against_writing(relid);
	return SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid));
}

/* ALTER PUBLICATION has added and removed tables. */
static void
add_difference(DdlMessage *message, const char *publication, List *before, List *now)
{
	foreach_oid(relid, list_difference_oid(now, before))
		if (lock_parts_of_entered(relid, get_publication_oid(publication, false), before))
		add_entered(message, relid, publication);
	foreach_oid(relid, list_difference_oid(before, now))
	{
		if (membership_is_via_root(publication))
			add_parts_of_left(message, relid);
		add_left(message, relid, publication, publications_of(relid));
	}
}

/*
 * A publication with schema changes has been altered: announces which tables it includes now, and
 * which it no longer includes.
 */
void
membership_announce(const char *publication, List *before, bool was_via_root,
					const PlannedStmt *pstmt, const char *source)
{
	DdlMessage *message = palloc0(sizeof(DdlMessage));
	List	   *now = membership_of_publication(publication);
	bool		via_root = membership_is_via_root(publication);
	int			location = pstmt->stmt_location;
	int			length = pstmt->stmt_len;
	const char *text;

	if (IsA(pstmt->utilityStmt, CreatePublicationStmt))
		return;
	if (is_all_tables(publication) && was_via_root != via_root)
	{
		before = compat_all_publication_tables(publication, was_via_root);
		now = compat_all_publication_tables(publication, via_root);
	}
	if (!is_wanted(before, now))
		return;
	if (was_via_root != via_root)
		add_renamed(message, publication, before, now);
	else
		add_difference(message, publication, before, now);
	if (message->entered == NIL && message->left == NIL && message->tables == NIL)
		return;
	text = CleanQuerytext(source, &location, &length);

	message->only_tables = true;
	message->tag = pstrdup(CreateCommandName(pstmt->utilityStmt));
	message->role = GetUserNameFromId(GetUserId(), false);
	message->powers = powers_of(GetUserId());
	message->statement = pnstrdup(text, length);
	message->publications = list_make1(pstrdup(publication));
	message->settings = statement_settings_get();
	ddl_queue_insert(message);
}
