/*
 * describe.c
 *	  What a schema change is published as.
 *
 * Each publication gets the text of a statement, or statements in its place, each of one object, if
 * the text means something else on a subscriber, or too much for the publication (dropped.c,
 * owned.c); or nothing.  Publications that get the same text share a message.  A statement is
 * described when it has succeeded, or once rows are about to be stored while it is being
 * executed, and again at its end (capture.c).
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "ddl/changes.h"
#include "ddl/convert.h"
#include "ddl/created_names.h"
#include "ddl/ddl_kind.h"
#include "ddl/ddl_queue.h"
#include "ddl/describe.h"
#include "ddl/dropped.h"
#include "ddl/dropped_column.h"
#include "ddl/group_tables.h"
#include "ddl/local_object.h"
#include "ddl/membership.h"
#include "ddl/never_notice.h"
#include "ddl/owned.h"
#include "ddl/powers.h"
#include "ddl/seen.h"
#include "ddl/session_role.h"
#include "ddl/statement_settings.h"
#include "ddl/touched.h"
#include "gate.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "publication_settings.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

/*
 * Does a publication want a statement about an object that these publications include?  One
 * that does not belong to a superuser gets only statements of roles that its owner could be: the
 * text may be nobody else's business.
 */
static bool
wants(bool is_of_tables, List *publications, const void *arg)
{
	const DdlPublication *publication = arg;

	if (!is_of_tables && publication->level < DDL_LEVEL_ALL)
		return false;
	if (!has_privs_of_role(publication->owner, GetUserId()))
		return false;
	if (list_member_oid(publications, publication->oid))
		return true;

	/* A table that the group does not replicate need not exist elsewhere. */
	if (publication->group && list_member_oid(publications, TOUCHED_STRAY))
		return false;
	return publication->all_tables;
}

static bool
is_about_owned(Node *statement)
{
	return IsA(statement, DropOwnedStmt) || IsA(statement, ReassignOwnedStmt);
}

/* Does a publication get the text of the statement? */
static bool
wants_text(const DdlPublication *publication, const Capture *capture)
{
	const Touched *touched = &capture->touched;

	if (list_member_oid(capture->requested, publication->oid))
		return true;
	if (!capture->automatic || is_about_owned(capture->statement) ||
		IsA(capture->statement, ImportForeignSchemaStmt))
		return false;
	return wants(capture->kind == DDL_OF_TABLES && touched->tables, touched->publications,
				 publication) &&
		dropped_all_wanted(touched->dropped, wants, publication);
}

/* Is a table itself among those whose rows a publication sends, if it includes them? */
static bool
sends_rows(const DdlPublication *publication, Oid relid)
{
	return get_rel_persistence(relid) == RELPERSISTENCE_PERMANENT &&
		membership_is_direct(publication, relid);
}

/* Lists the new tables that a publication includes. */
static List *
add_tables(List *tables, const DdlPublication *publication, const List *created)
{
	foreach_oid(relid, created)
	{
		DdlTable   *table;

		if (!sends_rows(publication, relid) ||
			!((publication->all_tables && !publication->group) ||
			  list_member_oid(touched_publications_of(relid), publication->oid)))
			continue;
		table = palloc0(sizeof(DdlTable));
		table->publication = pstrdup(publication->name);
		table->schema = get_namespace_name(get_rel_namespace(relid));
		table->name = get_rel_name(relid);
		tables = lappend(tables, table);
	}
	return tables;
}

/* Is there nothing in what a statement has touched that can be replicated? */
static bool
is_local(const Capture *capture)
{
	const Touched *touched = &capture->touched;

	if (capture->local_partition)
		return true;
	if (touched->replicable || is_about_owned(capture->statement))
		return false;
	if (capture->requested != NIL)
		return touched->temporary || touched->unlogged || touched->own;

	/*
	 * The server does not tell of every object that is replicated at level
	 * "all" only.
	 */
	return capture->kind == DDL_OF_TABLES || IsA(capture->statement, DropStmt) ||
		touched->temporary || touched->unlogged || touched->own || touched->filtered;
}

/* Fails if a publication would get the text, and subscribers lack what that is about. */
static void
check_local(const Capture *capture)
{
	const Touched *touched = &capture->touched;
	const RangeVar *like = capture->like;

	if (touched->dependent)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate %s, because %s depends on an object that is %s",
						capture->tag, touched->dependent,
						local_object_name(touched->reason)),
				 errdetail("Subscribers do not have temporary and unlogged tables, and what belongs to them."),
				 errhint("Use permanent objects only.")));
	if (like != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate a table that is LIKE the table \"%s\", which is temporary or unlogged",
						like->relname),
				 errdetail("Subscribers do not have such tables."),
				 errhint("Use CREATE TABLE ... AS TABLE %s WITH NO DATA.",
						 quote_qualified_identifier(like->schemaname, like->relname))));
}

/* Fails if the text means something else in another session. */
static void
check_text(const Capture *capture)
{
	const char *parameter = convert_current_value(capture->statement);

	if (parameter != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate the current value of parameter \"%s\"", parameter),
				 errhint("Use SET %s TO a value.", parameter)));

	/* Other statements name one object, or are published in parts. */
	if (capture->touched.temporary && IsA(capture->statement, GrantStmt))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate a schema change of both temporary and permanent objects"),
				 errhint("Use one statement for each.")));
}

/* Returns the role that the statement calls SESSION_USER, or NULL. */
static char *
session_role(const Capture *capture)
{
	if (capture->replayed && capture->outer == NULL)
		return capture->replayed->session_role;
	return session_role_is_named(capture->statement) ?
		GetUserNameFromId(GetSessionUserId(), false) : NULL;
}

/* Returns the message with a text; makes one if there is none. */
static DdlMessage *
message_with(List **messages, const Capture *capture, const char *text, const char *schema)
{
	DdlMessage *message;

	foreach_ptr(DdlMessage, each, *messages)
		if (!each->only_tables && strcmp(each->statement, text) == 0)
		return each;
	message = palloc0(sizeof(DdlMessage));
	message->lock = gate_own_lock();
	message->tag = pstrdup(capture->tag);
	message->role = GetUserNameFromId(GetUserId(), false);
	message->powers = powers_of(GetUserId());
	message->session_role = session_role(capture);
	message->statement = pstrdup(text);
	message->server_version = capture->replayed ? capture->replayed->server_version : 0;
	message->concurrently = capture->concurrently;
	message->settings = statement_settings_copy(capture->settings);
	if (publication_settings_of_group())
	{
		message->seen = seen_get(&message->copied);
		if (!ddl_queue_has_origin())
			message->made_at = GetXLogInsertRecPtr();
		message->changes = changes_of(capture->statement, capture->touched.names,
									  capture->read);
	}
	foreach_ptr(char, name, capture->touched.relations)
		message->touched = lappend(message->touched, pstrdup(name));
	message->values = capture->values;
	message->may_be_gone = capture->may_be_gone;
	if (schema)
		statement_settings_set_schema(message->settings, schema);
	*messages = lappend(*messages, message);
	return message;
}

/* The text to be executed on a subscriber, or NULL if nothing is to be. */
static const char *
replayable_text(const Capture *capture)
{
	char	   *text = NULL;

	if (capture->create_as)
		text = convert_table(capture->touched.created);

	else if (capture->create_index)
		text = convert_index(capture->touched.created, capture->concurrently,
							 capture->if_not_exists);
	return text ? text : capture->text;
}

static void
add_text(List **messages, const Capture *capture, const DdlPublication *publication)
{
	const char *text = replayable_text(capture);
	DdlMessage *message;

	if (text == NULL)
		return;
	message = message_with(messages, capture, text, NULL);
	message->names = capture->names;
	message->publications = lappend(message->publications, pstrdup(publication->name));
	message->tables = add_tables(message->tables, publication, capture->touched.created);
	membership_compare(message, capture->members, publication);
	message->explicitly = capture->requested != NIL;
}

static void
add_part(List **messages, const Capture *capture, const DdlPublication *publication,
		 const char *text, const char *schema)
{
	DdlMessage *message = message_with(messages, capture, text, schema);

	/* Several columns with privileges make the same statement. */
	if (message->publications != NIL &&
		strcmp(llast(message->publications), publication->name) == 0)
		return;
	Assert(list_length(pg_parse_query(text)) == 1);
	message->tag = pstrdup(CreateCommandName(linitial_node(RawStmt, pg_parse_query(text))->stmt));
	message->publications = lappend(message->publications, pstrdup(publication->name));
}

/* Adds what a publication wants of a statement whose text it does not get. */
static void
add_parts(List **messages, const Capture *capture, const DdlPublication *publication)
{
	bool		cascade = IsA(capture->statement, DropStmt) ?
		((DropStmt *) capture->statement)->behavior == DROP_CASCADE :
		IsA(capture->statement, DropOwnedStmt) &&
		((DropOwnedStmt *) capture->statement)->behavior == DROP_CASCADE;
	List	   *drops = NIL;

	foreach_ptr(DdlPart, part, capture->parts)
	{
		if (!wants(part->is_of_tables, part->publications, publication))
			continue;
		if (part->lacks)
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("cannot replicate %s, because subscribers would not permit it",
							capture->tag),
					 errdetail("They execute %s, which needs %s.", part->text, part->lacks),
					 errhint("Grant what is missing, or let a superuser execute the statement.")));
		add_part(messages, capture, publication, part->text, part->schema);
	}

	/*
	 * Their order matters without CASCADE, and another publication may get
	 * the same statements in another order, between others.
	 */
	foreach_ptr(char, text, dropped_statements(capture->touched.dropped, cascade, wants,
											   publication))
		add_part(cascade ? messages : &drops, capture, publication, text, NULL);
	*messages = list_concat(*messages, drops);
}

/* Adds the tables that a publication no longer includes, because what named them was dropped. */
static void
add_left(List **messages, const Capture *capture, const DdlPublication *publication, bool text)
{
	List	   *named = NIL;
	List	   *own = NIL;
	DdlMessage *message;

	foreach_ptr(Membership, membership, capture->touched.memberships)
		if (membership->class_id == RelationRelationId && membership->publication == publication->oid)
		named = lappend_oid(named, membership->object_id);
	if (named == NIL || publication->group || capture->text == NULL)
		return;
	message = message_with(text ? messages : &own, capture, capture->text, NULL);
	membership_add_left(message, named, publication);
	if (text ||message->left == NIL)
		return;
	message->only_tables = true;
	message->publications = list_make1(pstrdup(publication->name));
	*messages = list_concat(*messages, own);
}

/*
 * Returns what is dropped without a lock of the group on its table.  The statement may drop tables that
 * its transaction's lock does not include.
 */
static List *
without_lock(const Capture *capture)
{
	int64		lock = gate_own_lock();
	List	   *result = NIL;

	if (lock == 0 && capture->replayed)
		lock = capture->replayed->lock;
	foreach_ptr(DroppedColumn, object, capture->touched.lost)
		if (!gate_locks(lock, object->relid))
		result = lappend(result, object);
	return result;
}

/* The group's publication gets the statement. */
static void
change_group(const DdlPublication *publication, const Capture *capture)
{
	const Touched *touched = &capture->touched;

	group_tables_add(publication->oid, touched->created);
	group_tables_changed(touched->altered);
	dropped_column_record(without_lock(capture));
}

/* Describes a statement that has succeeded, for each publication that wants it. */
List *
describe_statement(Capture *capture)
{
	List	   *messages = NIL;

	touched_finish(&capture->touched);
	if (is_local(capture))
	{
		if (capture->requested != NIL)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("%s has changed nothing that can be replicated", capture->tag)));
		if (capture->touched.unlogged)
			never_notice_unlogged();
		return NIL;
	}
	capture->names = capture->replayed && capture->outer == NULL ? capture->replayed->names :
		created_names_list(capture->touched.created, capture->touched.constraints);
	foreach_ptr(DdlPublication, publication, publication_settings_list())
	{
		bool text = wants_text(publication, capture);

		if (text &&publication->group)
			change_group(publication, capture);
		if (text)
		{
			check_local(capture);
			add_text(&messages, capture, publication);
		}
		else if (capture->automatic)
			add_parts(&messages, capture, publication);
		add_left(&messages, capture, publication, text);
		publication_settings_complete(publication->oid);
	}
	if (messages != NIL)
	{
		check_text(capture);
		never_notice_tablespace(capture->statement);
	}
	return messages;
}

/* Does a publication get a statement about an extension, before that is executed? */
static bool
wants_early(const DdlPublication *publication, const Capture *capture)
{
	return list_member_oid(capture->requested, publication->oid) ||
		(capture->automatic && wants(false, NIL, publication));
}

/* Describes a statement about an extension, for each publication that wants it, before it is executed. */
List *
describe_early(Capture *capture)
{
	List	   *messages = NIL;

	foreach_ptr(DdlPublication, publication, publication_settings_list())
		if (wants_early(publication, capture))
		add_text(&messages, capture, publication);
	return messages;
}

/* Returns the second message about an extension, if it has tables. */
List *
describe_tables(Capture *capture)
{
	List	   *messages;

	touched_finish(&capture->touched);
	messages = describe_early(capture);
	foreach_ptr(DdlMessage, message, messages)
	{
		message->only_tables = true;
		if (message->tables == NIL)
			messages = foreach_delete_current(messages, message);
	}
	return messages;
}
