/*
 * capture.c
 *	  Publishes the schema changes that sessions make.
 *
 * Weft sees each statement on its way to the server's code, and when it has succeeded.  Then
 * it is decided which publications want it, and one row of weft.ddl_queue says everything
 * that a subscriber needs to know.  The row is part of the session's own (sub)transaction.
 *
 * The text is the part of the source text that the parser says belongs to the statement, so
 * it is that statement alone: of a string with several, of a function, of DO.  Such statements
 * have no parameters; where a function computes one, it executes a text that it has made.
 *
 * Statements within statements.  What the server itself makes of a statement (a subcommand,
 * such as the elements of CREATE SCHEMA) is part of it.  So is everything in the script of an
 * extension, whose CREATE EXTENSION is the statement.  But a function that is called by a statement S1 may
 * execute a statement S2 of its own, and so may an event trigger.  S2 is published, too,
 * after S1, since it may use what S1 has made; unless a subtransaction with S2 is aborted before S1 ends.
 * If rows are stored while S1 is being executed, S1 and S2 may have made their table.  Therefore both
 * are published before the rows, as far as S1 is known then (rows_follow()).  If it has become
 * another schema change by the time it ends, it fails.
 *
 * Statements in parts.  Some texts mean something else on a subscriber, or too much for a
 * publication (dropped.c, owned.c).  They are published as several statements, each of one object.
 * IMPORT FOREIGN SCHEMA is published as the statements that the foreign-data wrapper makes of it.
 *
 * Extensions.  A subscriber executes the script of CREATE EXTENSION.  The rows that the script
 * stores on the publisher are sent as well, but must not be applied.  Therefore the statement is
 * published before it is executed.  The rows come after it, and belong to tables that exist on
 * the subscriber and are not part of the subscription, so they are ignored.  A second message says
 * that the tables join from there on.  (What scripts do to other tables: script_rows.c.)
 *
 * A process that applies a schema change is captured like a session.  Its row has the origin of
 * what is applied, as all of its rows have, so subscriptions with origin = none do not get it.
 *
 * Longer than 700 lines because what a statement is published as, and when, is one decision.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "ddl/capture.h"
#include "ddl/changes.h"
#include "ddl/concurrent_index.h"
#include "ddl/convert.h"
#include "ddl/created_names.h"
#include "ddl/ddl_kind.h"
#include "ddl/ddl_queue.h"
#include "ddl/dropped.h"
#include "ddl/dropped_column.h"
#include "ddl/filter.h"
#include "ddl/first_change.h"
#include "ddl/group_tables.h"
#include "ddl/local_object.h"
#include "ddl/membership.h"
#include "ddl/named.h"
#include "ddl/never_notice.h"
#include "ddl/owned.h"
#include "ddl/pending.h"
#include "ddl/powers.h"
#include "ddl/refuse.h"
#include "ddl/reindexed.h"
#include "ddl/schema_lock.h"
#include "ddl/script_rows.h"
#include "ddl/seen.h"
#include "ddl/session_role.h"
#include "ddl/statement_settings.h"
#include "ddl/touched.h"
#include "gate.h"
#include "guc.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "publication_settings.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

/* A statement that is being captured. */
typedef struct Capture
{
	MemoryContext context;		/* survives transactions: a statement may use
								 * several */
	struct Capture *outer;		/* the statement that has caused this one */
	List	   *inner;			/* of Pending: what it has caused, so far */
	List	   *own;			/* of Pending: itself, if it has been
								 * described before its end */
	List	   *parts;			/* of DdlPart: what it is published as, if it
								 * is published in parts */
	List	   *requested;		/* OIDs of publications that get it anyway */
	bool		automatic;		/* others may want it */
	bool		early;			/* it is published before it is executed */
	Node	   *statement;
	DdlKind		kind;

	/*
	 * As they were when the statement began.  It may be described within a
	 * function that it has called, such as that of an event trigger, which
	 * may have a role and settings of its own.
	 */
	Oid			role;
	List	   *settings;		/* of DdlSetting */
	const char *tag;
	char	   *text;			/* NULL if it is made of what is created */
	bool		create_as;		/* that is a table, */
	bool		create_index;	/* or an index, if it is one */
	bool		if_not_exists;
	bool		concurrently;
	bool		may_be_gone;	/* see DdlMessage */
	bool		drops_unique;	/* see transaction_event() */
	Oid			table;			/* of a concurrent statement, or InvalidOid */
	List	   *values;
	List	   *names;			/* of DdlName */
	RangeVar   *like;			/* see local_object_like() */
	bool		local_partition;	/* see local_object_is_partition() */
	List	   *members;		/* see membership.c */
	List	   *read;			/* see changes.c */
	Touched		touched;
} Capture;

static ProcessUtility_hook_type previous_process_utility = NULL;

/* The innermost statement that is being captured, or NULL. */
static Capture *current = NULL;

/* The publisher's schema change that this process is about to apply, or NULL. */
static const DdlMessage *replayed = NULL;

/* Publications that weft.replicate_ddl_command() has named for the next statement. */
static List *requested = NIL;

/* Is the statement to be captured, as far as can be said before it is executed? */
static bool
is_wanted(Node *statement, DdlKind kind, ProcessUtilityContext context)
{
	return kind != DDL_NEVER && context != PROCESS_UTILITY_SUBCOMMAND &&
		!creating_extension && !IsBinaryUpgrade && weft_ddl_replication &&
		IsTransactionState() &&
		publication_settings_list() != NIL &&
		OidIsValid(publication_settings_queue()) &&
		!filter_excludes_kind(statement);
}

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

/* Is this a member of a node group, which replicates schema changes? */
static bool
is_in_group(void)
{
	foreach_ptr(DdlPublication, publication, publication_settings_list())
		if (publication->group)
		return true;
	return false;
}

/* Returns the role that the statement calls SESSION_USER, or NULL. */
static char *
session_role(const Capture *capture)
{
	if (replayed && capture->outer == NULL)
		return replayed->session_role;
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
	message->server_version = replayed ? replayed->server_version : 0;
	message->concurrently = capture->concurrently;
	message->settings = statement_settings_copy(capture->settings);
	if (is_in_group())
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
without_lock(const List *lost)
{
	int64		lock = gate_own_lock();
	List	   *result = NIL;

	if (lock == 0 && replayed)
		lock = replayed->lock;
	foreach_ptr(DroppedColumn, object, lost)
		if (!gate_locks(lock, object->relid))
		result = lappend(result, object);
	return result;
}

/* The group's publication gets the statement. */
static void
change_group(const DdlPublication *publication, const Touched *touched)
{
	group_tables_add(publication->oid, touched->created);
	group_tables_changed(touched->altered);
	dropped_column_record(without_lock(touched->lost));
}

/* Describes a statement that has succeeded, for each publication that wants it. */
static List *
describe(Capture *capture)
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
	capture->names = replayed && capture->outer == NULL ? replayed->names :
		created_names_list(capture->touched.created, capture->touched.constraints);
	foreach_ptr(DdlPublication, publication, publication_settings_list())
	{
		bool text = wants_text(publication, capture);

		if (text &&publication->group)
			change_group(publication, &capture->touched);
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

/* Returns the second message about an extension, if it has tables. */
static List *
describe_tables(Capture *capture)
{
	List	   *messages = NIL;

	touched_finish(&capture->touched);
	foreach_ptr(DdlPublication, publication, publication_settings_list())
		if (wants_early(publication, capture))
		add_text(&messages, capture, publication);
	foreach_ptr(DdlMessage, message, messages)
	{
		message->only_tables = true;
		if (message->tables == NIL)
			messages = foreach_delete_current(messages, message);
	}
	return messages;
}

static Capture *
outermost(Capture *capture)
{
	while (capture->outer != NULL)
		capture = capture->outer;
	return capture;
}

/*
 * Publishes what has been done so far, from the outermost statement on.  A concurrent statement is
 * not done before its last transaction.
 */
static void
write_so_far(Capture *capture)
{
	if (capture->outer)
		write_so_far(capture->outer);
	if (!pending_any_written(capture->own) && !capture->early && !capture->concurrently &&
		(capture->automatic || capture->create_as))
	{
		Oid			user;
		int			security;

		GetUserIdAndSecContext(&user, &security);
		SetUserIdAndSecContext(capture->role, security | SECURITY_LOCAL_USERID_CHANGE);
		named_note(capture->statement);
		capture->own = pending_make(describe(capture));
		pending_write(capture->own);
		SetUserIdAndSecContext(user, security);
	}
	pending_write(capture->inner);
}

static bool
is_capturing(void)
{
	return current != NULL;
}

/* Rows are about to be stored, perhaps in a table that has just been made. */
static void
rows_follow(void)
{
	MemoryContext old = MemoryContextSwitchTo(outermost(current)->context);

	write_so_far(current);
	MemoryContextSwitchTo(old);
}

/* Returns what a statement that has succeeded is to publish, or has published. */
static List *
finish(Capture *capture)
{
	List	   *pending = pending_make(capture->early ? describe_tables(capture) : describe(capture));

	if (!pending_any_written(capture->own))
		return pending;
	if (!pending_same(capture->own, pending))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate %s, because rows were stored while it was being executed",
						capture->tag),
				 errhint("Store the rows after the statement.")));
	return capture->own;
}

/*
 * A concurrent statement has released its table before it is published.  If the table has got another owner
 * since, subscribers hear of that first, and the new owner is who may execute the statement there.
 */
static void
become_owner(const Capture *capture)
{
	HeapTuple	tuple;
	Oid			owner = InvalidOid;
	Oid			user;
	int			security;

	if (!OidIsValid(capture->table))
		return;
	LockRelationOid(capture->table, AccessShareLock);
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(capture->table));
	if (HeapTupleIsValid(tuple))
	{
		owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
		ReleaseSysCache(tuple);
	}
	GetUserIdAndSecContext(&user, &security);
	if (OidIsValid(owner) && !has_privs_of_role(user, owner))
		SetUserIdAndSecContext(owner, security | SECURITY_LOCAL_USERID_CHANGE);
}

/* The statement has succeeded: publishes it, or leaves that to the one that has caused it. */
static void
publish(Capture *capture)
{
	Capture    *outer = capture->outer;
	Oid			user;
	int			security;
	MemoryContext old = MemoryContextSwitchTo(outermost(capture)->context);
	List	   *pending;

	/* What runs outside of a transaction block has ended the one before. */
	if (capture->concurrently && is_in_group())
		schema_lock_change();
	GetUserIdAndSecContext(&user, &security);
	become_owner(capture);
	pending = finish(capture);
	SetUserIdAndSecContext(user, security);
	pending = list_concat(pending, capture->inner);
	if (outer)
		outer->inner = list_concat(outer->inner, pending);
	else
		pending_write(pending);
	MemoryContextSwitchTo(old);
}

/*
 * Publishes a statement before it is executed, if its script may store rows.  Its place is behind that of
 * the statement that has caused it.
 */
static void
publish_early(Capture *capture)
{
	List	   *messages = NIL;

	if (XactReadOnly ||
		(!IsA(capture->statement, CreateExtensionStmt) &&
		 !IsA(capture->statement, AlterExtensionStmt)))
		return;
	foreach_ptr(DdlPublication, publication, publication_settings_list())
		if (wants_early(publication, capture))
		add_text(&messages, capture, publication);
	if (messages != NIL && capture->outer)
		write_so_far(capture->outer);
	foreach_ptr(DdlMessage, message, messages)
		ddl_queue_insert(message);
	capture->early = messages != NIL;
}

/* What an aborted subtransaction has made is not published. */
static void
subtransaction_event(SubXactEvent event, SubTransactionId transaction,
					 SubTransactionId parent, void *arg)
{
	if (event != SUBXACT_EVENT_ABORT_SUB && event != SUBXACT_EVENT_COMMIT_SUB)
		return;
	for (Capture *capture = current; capture != NULL; capture = capture->outer)
	{
		pending_note_end(capture->own, event, transaction, parent);
		pending_note_end(capture->inner, event, transaction, parent);
		if (event == SUBXACT_EVENT_ABORT_SUB)
			capture->inner = pending_remove(capture->inner, transaction);
	}
}

/*
 * DROP INDEX CONCURRENTLY has several transactions.  Before the last one, sessions no longer enforce that a unique index
 * is unique, and rows that subscribers would refuse may be committed.  Therefore it is published at the end of the
 * first one.  If it fails later, it leaves an invalid index behind, which subscribers do not have (convert.c).
 */
static void
transaction_event(XactEvent event, void *arg)
{
	MemoryContext old;

	if (event != XACT_EVENT_PRE_COMMIT || current == NULL || !current->drops_unique)
		return;
	current->drops_unique = false;
	old = MemoryContextSwitchTo(current->context);
	current->own = pending_make(describe(current));
	pending_write(current->own);
	MemoryContextSwitchTo(old);
}

/* Notes one of the statements that a foreign-data wrapper makes of IMPORT FOREIGN SCHEMA. */
static void
note_import(PlannedStmt *pstmt, const char *source)
{
	CreateStmt *table = &((CreateForeignTableStmt *) pstmt->utilityStmt)->base;
	Oid			relid = RangeVarGetRelid(table->relation, NoLock, false);
	MemoryContext old = MemoryContextSwitchTo(current->context);
	DdlPart    *part = owned_part(RelationRelationId, relid, convert_text(pstmt, source, current->settings));

	if (part)
	{
		part->schema = pstrdup(table->relation->schemaname);
		current->parts = lappend(current->parts, part);
	}
	MemoryContextSwitchTo(old);
}

/* Is a statement a part of the one that is being captured, with a text of its own? */
static bool
is_import(Node *statement, ProcessUtilityContext context)
{
	return context == PROCESS_UTILITY_SUBCOMMAND && current != NULL &&
		IsA(current->statement, ImportForeignSchemaStmt) &&
		IsA(statement, CreateForeignTableStmt);
}

/* Finds out what text is to be published. */
static void
prepare_text(Capture *capture, const PlannedStmt *pstmt, const char *source)
{
	Node	   *statement = capture->statement;

	capture->create_as = ddl_is_create_as(statement);
	capture->concurrently = ddl_is_concurrent(statement);
	capture->tag = capture->create_as ? GetCommandTagName(CMDTAG_CREATE_TABLE) :
		CreateCommandName(statement);
	if (IsA(statement, IndexStmt))
	{
		capture->create_index = capture->concurrently ||
			((IndexStmt *) statement)->idxname == NULL;
		capture->if_not_exists = ((IndexStmt *) statement)->if_not_exists;
	}
	if (!capture->create_as && !(capture->create_index && capture->concurrently))
		capture->text = convert_text(pstmt, source,
									 replayed && capture->outer == NULL ? NIL : capture->settings);
	capture->may_be_gone = convert_may_be_gone(statement);
	if (capture->concurrently)
	{
		capture->table = concurrent_index_table(statement);
		capture->drops_unique = concurrent_index_must_be_plain(statement);
	}
}

/*
 * Finds out what must be known before the statement is executed.  Fails if it could not be
 * repeated.
 */
static void
prepare(Capture *capture, const PlannedStmt *pstmt, const char *source)
{
	MemoryContext old = MemoryContextSwitchTo(outermost(capture)->context);
	Node	   *statement = capture->statement;

	prepare_text(capture, pstmt, source);

	/* The publisher has decided, and has computed the values. */
	if (replayed && capture->outer == NULL)
		capture->values = replayed->values;
	else
		refuse_unreplayable(statement, source, &capture->values);
	capture->members = membership_before(statement);
	capture->like = local_object_like(statement);
	capture->local_partition = local_object_is_partition(statement);
	capture->touched.keep_dropped = IsA(statement, DropStmt) || IsA(statement, DropOwnedStmt);
	capture->touched.keep_names = is_in_group();
	if (capture->touched.keep_names)
		capture->read = changes_read(statement);
	if (IsA(statement, ReassignOwnedStmt))
		capture->parts = owned_reassign((ReassignOwnedStmt *) statement);
	else if (IsA(statement, DropOwnedStmt))
		capture->parts = owned_revoke((DropOwnedStmt *) statement);
	publish_early(capture);
	MemoryContextSwitchTo(old);
}

/* A REINDEX has made an index valid: publishes that as if the index had just been created. */
static void
publish_reindexed(Oid index, const ReindexStmt *statement)
{
	IndexStmt  *create = reindexed_create(index, statement);
	Capture		capture = {.statement = (Node *) create,.kind = DDL_OF_TABLES};
	Touched    *outer_touched;

	if (is_in_group())
		schema_lock_change();
	capture.context = AllocSetContextCreate(TopMemoryContext, "weft capture",
											ALLOCSET_SMALL_SIZES);
	capture.outer = current;
	capture.role = GetUserId();
	capture.tag = CreateCommandName(capture.statement);
	capture.automatic = capture.create_index = capture.if_not_exists = true;
	capture.concurrently = create->concurrent;
	capture.table = IndexGetRelation(index, false);
	outer_touched = touched_begin(&capture.touched, capture.context);
	capture.touched.keep_names = is_in_group();
	current = &capture;
	PG_TRY();
	{
		MemoryContext old = MemoryContextSwitchTo(capture.context);

		capture.settings = statement_settings_get();
		touched_new_relation(index);
		MemoryContextSwitchTo(old);
		touched_end(outer_touched);
		publish(&capture);
	}
	PG_FINALLY();
	{
		current = capture.outer;
		touched_end(outer_touched);
		MemoryContextDelete(capture.context);
	}
	PG_END_TRY();
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	ProcessUtility_hook_type next =
		previous_process_utility ? previous_process_utility : standard_ProcessUtility;
	Node	   *statement = pstmt->utilityStmt;
	Capture		capture = {.statement = statement,.kind = ddl_kind(statement)};
	Touched    *outer_touched;
	volatile bool outer_watching = false;

	capture.automatic = is_wanted(statement, capture.kind, context);
	if (compat_repack_options(statement) != NIL && is_in_group())
		refuse_repack(statement);
	if (!capture.automatic && requested == NIL)
	{
		bool		import = is_import(statement, context);
		List	   *invalid = IsA(statement, ReindexStmt) &&
			is_wanted(statement, DDL_OF_TABLES, context) ?
			reindexed_before((ReindexStmt *) statement) : NIL;

		next(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
		if (import)
			note_import(pstmt, queryString);
		else if (capture.kind == DDL_NEVER)
			never_notice(statement);
		foreach_oid(index, reindexed_after(invalid))
			publish_reindexed(index, (ReindexStmt *) statement);
		return;
	}

	if (is_in_group())
	{
		if (current == NULL)
			first_change_begin();
		if (!local_object_creates_temporary(statement))
			schema_lock_change();
	}
	capture.context = AllocSetContextCreate(TopMemoryContext, "weft capture",
											ALLOCSET_SMALL_SIZES);
	capture.outer = current;
	capture.role = GetUserId();
	capture.requested = requested;
	requested = NIL;
	outer_touched = touched_begin(&capture.touched, capture.context);
	current = &capture;
	PG_TRY();
	{
		MemoryContext old = MemoryContextSwitchTo(capture.context);

		capture.settings = statement_settings_get();
		MemoryContextSwitchTo(old);
		prepare(&capture, pstmt, queryString);
		if (capture.early)
			outer_watching = script_rows_begin();

		next(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
		named_note(statement);
		touched_end(outer_touched);
		publish(&capture);
	}
	PG_FINALLY();
	{
		current = capture.outer;
		if (capture.early)
			script_rows_end(outer_watching);
		touched_end(outer_touched);
		MemoryContextDelete(capture.context);
	}
	PG_END_TRY();
}

/*
 * Publications, given by their OIDs, get the next statement of this process, whatever it is.
 * Called with NIL when that has been executed; returns whether it has been seen.
 */
bool
capture_request(List *publications)
{
	bool		seen = requested == NIL;

	requested = publications;
	return seen;
}

/* The next statement is a publisher's; NULL: it is not. */
void
capture_replay(const DdlMessage *message)
{
	replayed = message;
}

/* Installs the hook; called once, while the postmaster loads the library. */
void
capture_install(void)
{
	const ConvertSteps steps = {.capturing = is_capturing,.rows_follow = rows_follow};

	convert_install(&steps);
	first_change_install();
	previous_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	RegisterSubXactCallback(subtransaction_event, NULL);
	RegisterXactCallback(transaction_event, NULL);
}
