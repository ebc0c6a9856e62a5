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
 *
 * A process that applies a schema change is captured like a session.  Its row has the origin of
 * what is applied, as all of its rows have, so subscriptions with origin = none do not get it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "ddl/capture.h"
#include "ddl/ddl_kind.h"
#include "ddl/ddl_queue.h"
#include "ddl/powers.h"
#include "ddl/refuse.h"
#include "ddl/statement_settings.h"
#include "ddl/touched.h"
#include "guc.h"
#include "miscadmin.h"
#include "nodes/queryjumble.h"
#include "nodes/parsenodes.h"
#include "publication_settings.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

/* A schema change that is published once the statement that has caused it has succeeded. */
typedef struct Pending
{
	SubTransactionId transaction;	/* that has made it */
	DdlMessage *message;
} Pending;

/* A statement that is being captured. */
typedef struct Capture
{
	MemoryContext context;		/* survives transactions: a statement may use
								 * several */
	struct Capture *outer;		/* the statement that has caused this one */
	List	   *inner;			/* of Pending: what it has caused, so far */
	DdlKind		kind;
	Touched		touched;
} Capture;

static ProcessUtility_hook_type previous_process_utility = NULL;

/* The innermost statement that is being captured, or NULL. */
static Capture *current = NULL;

/* Is the statement to be captured, as far as can be said before it is executed? */
static bool
is_wanted(DdlKind kind, ProcessUtilityContext context)
{
	return kind != DDL_NEVER && context != PROCESS_UTILITY_SUBCOMMAND &&
		!creating_extension && !IsBinaryUpgrade && weft_ddl_replication &&
		IsTransactionState() &&
		publication_settings_list() != NIL &&
		OidIsValid(publication_settings_queue());
}

/* Returns the text of the statement alone. */
static char *
statement_text(const PlannedStmt *pstmt, const char *source)
{
	int			location = pstmt->stmt_location;
	int			length = pstmt->stmt_len;
	const char *start = CleanQuerytext(source, &location, &length);
	char	   *result = pnstrdup(start, length);

	/* Whoever has made the tree may not know its place in the source text. */
	if (list_length(pg_parse_query(result)) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate %s because its text is not known",
						CreateCommandName(pstmt->utilityStmt)),
				 errhint("Execute the statement on its own.")));
	return result;
}

/*
 * Does a publication want what has been touched?  One that does not belong to a superuser gets
 * only statements of roles that its owner could be: the text may be nobody else's business.
 */
static bool
wants(const DdlPublication *publication, const Capture *capture)
{
	if (capture->kind == DDL_OF_ALL && publication->level < DDL_LEVEL_ALL)
		return false;
	if (!has_privs_of_role(publication->owner, GetUserId()))
		return false;
	if (list_member_oid(capture->touched.publications, publication->oid))
		return true;
	return publication->all_tables;
}

/* Is a table itself among those whose rows a publication sends? */
static bool
sends_rows(const DdlPublication *publication, Oid relid)
{
	char		relkind = get_rel_relkind(relid);

	if (get_rel_persistence(relid) != RELPERSISTENCE_PERMANENT)
		return false;
	if (publication->via_root)
		return !get_rel_relispartition(relid) &&
			(relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE);
	return relkind == RELKIND_RELATION;
}

/* Lists the new tables that a publication includes. */
static List *
add_tables(List *tables, const DdlPublication *publication, const List *created)
{
	foreach_oid(relid, created)
	{
		DdlTable   *table;

		if (!sends_rows(publication, relid))
			continue;
		table = palloc(sizeof(DdlTable));
		table->publication = pstrdup(publication->name);
		table->schema = get_namespace_name(get_rel_namespace(relid));
		table->name = get_rel_name(relid);
		tables = lappend(tables, table);
	}
	return tables;
}

/*
 * Is there nothing in what a statement has touched that can be replicated?  Only tables, types and
 * what belongs to them are noted.
 */
static bool
is_local(const Capture *capture)
{
	const Touched *touched = &capture->touched;

	return !touched->replicable &&
		(capture->kind == DDL_OF_TABLES || touched->temporary || touched->unlogged ||
		 touched->own);
}

/* Says that something is not replicated, if that might be expected. */
static void
notice_unlogged(const Touched *touched)
{
	foreach_ptr(DdlPublication, publication, publication_settings_list())
	{
		if (!touched->unlogged || !publication->all_tables)
			continue;
		ereport(NOTICE,
				(errmsg("unlogged tables and sequences are not replicated")));
		return;
	}
}

/* Describes a statement that has succeeded; returns NULL if no publication wants it. */
static DdlMessage *
describe(Capture *capture, const char *tag, const char *text, bool concurrently)
{
	Touched    *touched = &capture->touched;
	DdlMessage *message = palloc0(sizeof(DdlMessage));

	touched_finish(touched);
	if (is_local(capture))
	{
		notice_unlogged(touched);
		return NULL;
	}
	foreach_ptr(DdlPublication, publication, publication_settings_list())
	{
		if (!wants(publication, capture))
			continue;
		message->publications = lappend(message->publications, pstrdup(publication->name));
		message->tables = add_tables(message->tables, publication, touched->created);
		publication_settings_complete(publication->oid);
	}
	if (message->publications == NIL)
		return NULL;
	if (touched->temporary)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot replicate a schema change of both temporary and permanent objects"),
				 errhint("Use one statement for each.")));
	message->tag = pstrdup(tag);
	message->role = GetUserNameFromId(GetUserId(), false);
	message->powers = powers_of(GetUserId());
	message->statement = pstrdup(text);
	message->concurrently = concurrently;
	message->settings = statement_settings_get();
	return message;
}

static Capture *
outermost(Capture *capture)
{
	while (capture->outer != NULL)
		capture = capture->outer;
	return capture;
}

/* The statement has succeeded: publishes it, or leaves that to the one that has caused it. */
static void
publish(Capture *capture, const char *tag, const char *text, bool concurrently)
{
	Capture    *outer = capture->outer;
	MemoryContext old = MemoryContextSwitchTo(outermost(capture)->context);
	DdlMessage *message = describe(capture, tag, text, concurrently);
	List	   *pending = NIL;

	if (message)
	{
		Pending    *own = palloc(sizeof(Pending));

		own->transaction = GetCurrentSubTransactionId();
		own->message = message;
		pending = list_make1(own);
	}
	pending = list_concat(pending, capture->inner);
	if (outer)
		outer->inner = list_concat(outer->inner, pending);
	else
		foreach_ptr(Pending, each, pending)
			ddl_queue_insert(each->message);
	MemoryContextSwitchTo(old);
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
		ListCell   *cell;

		foreach(cell, capture->inner)
		{
			Pending    *pending = lfirst(cell);

			if (pending->transaction != transaction)
				continue;
			if (event == SUBXACT_EVENT_ABORT_SUB)
				capture->inner = foreach_delete_current(capture->inner, cell);
			else
				pending->transaction = parent;
		}
	}
}

/* Notes the table of a statement that the server does not always tell of. */
static void
note_table(Node *statement)
{
	Oid			relid;

	if (!IsA(statement, AlterTableStmt))
		return;
	relid = RangeVarGetRelid(((AlterTableStmt *) statement)->relation, NoLock, true);
	if (OidIsValid(relid))
		touched_table(relid);
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	ProcessUtility_hook_type next =
		previous_process_utility ? previous_process_utility : standard_ProcessUtility;
	Capture		capture = {.kind = ddl_kind(pstmt->utilityStmt)};
	Touched    *outer_touched;

	if (!is_wanted(capture.kind, context))
	{
		next(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
		return;
	}

	refuse_unreplayable(pstmt->utilityStmt);
	capture.context = AllocSetContextCreate(TopMemoryContext, "weft capture",
											ALLOCSET_SMALL_SIZES);
	capture.outer = current;
	outer_touched = touched_begin(&capture.touched, capture.context);
	current = &capture;
	PG_TRY();
	{
		const char *tag = CreateCommandName(pstmt->utilityStmt);
		bool		concurrently = ddl_is_concurrent(pstmt->utilityStmt);
		char	   *text = MemoryContextStrdup(capture.context,
											   statement_text(pstmt, queryString));

		next(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
		note_table(pstmt->utilityStmt);
		touched_end(outer_touched);
		publish(&capture, tag, text, concurrently);
	}
	PG_FINALLY();
	{
		current = capture.outer;
		touched_end(outer_touched);
		MemoryContextDelete(capture.context);
	}
	PG_END_TRY();
}

/* Installs the hook; called once, while the postmaster loads the library. */
void
capture_install(void)
{
	previous_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	RegisterSubXactCallback(subtransaction_event, NULL);
}
