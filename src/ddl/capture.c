/*
 * capture.c
 *	  Publishes the schema changes that sessions make.
 *
 * Weft sees each statement on its way to the server's code, and when it has succeeded.  Then
 * it is decided which publications want it (describe.c), and one row of weft.ddl_queue says
 * everything that a subscriber needs to know.  The row is part of the session's own (sub)transaction.
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
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "ddl/capture.h"
#include "ddl/changes.h"
#include "ddl/concurrent_index.h"
#include "ddl/convert.h"
#include "ddl/ddl_kind.h"
#include "ddl/ddl_queue.h"
#include "ddl/describe.h"
#include "ddl/filter.h"
#include "ddl/first_change.h"
#include "ddl/local_object.h"
#include "ddl/membership.h"
#include "ddl/named.h"
#include "ddl/never_notice.h"
#include "ddl/owned.h"
#include "ddl/pending.h"
#include "ddl/refuse.h"
#include "ddl/reindexed.h"
#include "ddl/schema_lock.h"
#include "ddl/script_rows.h"
#include "ddl/statement_settings.h"
#include "ddl/touched.h"
#include "guc.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "publication_settings.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

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
		capture->own = pending_make(describe_statement(capture));
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
	List	   *pending = pending_make(capture->early ? describe_tables(capture) : describe_statement(capture));

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
	if (capture->concurrently && publication_settings_of_group())
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
	List	   *messages;

	if (XactReadOnly ||
		(!IsA(capture->statement, CreateExtensionStmt) &&
		 !IsA(capture->statement, AlterExtensionStmt)))
		return;
	messages = describe_early(capture);
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
	current->own = pending_make(describe_statement(current));
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
									 capture->replayed && capture->outer == NULL ? NIL : capture->settings);
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
	if (capture->replayed && capture->outer == NULL)
		capture->values = capture->replayed->values;
	else
		refuse_unreplayable(statement, source, &capture->values);
	capture->members = membership_before(statement);
	capture->like = local_object_like(statement);
	capture->local_partition = local_object_is_partition(statement);
	capture->touched.keep_dropped = IsA(statement, DropStmt) || IsA(statement, DropOwnedStmt);
	capture->touched.keep_names = publication_settings_of_group();
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
	Capture		capture = {.statement = (Node *) create,.kind = DDL_OF_TABLES,.replayed = replayed};
	Touched    *outer_touched;

	if (publication_settings_of_group())
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
	capture.touched.keep_names = publication_settings_of_group();
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
	Capture		capture = {.statement = statement,.kind = ddl_kind(statement),.replayed = replayed};
	Touched    *outer_touched;
	volatile bool outer_watching = false;

	capture.automatic = is_wanted(statement, capture.kind, context);
	if (compat_repack_options(statement) != NIL && publication_settings_of_group())
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

	if (publication_settings_of_group())
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
