/*
 * ddl_apply.c
 *	  Executes schema changes of a publisher.
 *
 * A writer calls this when it is the turn of the transaction with the schema change, and
 * while no later transaction is being applied (receive/ddl_rows.c).  The statement is executed in
 * the transaction that its neighbours are applied in.  Therefore it takes effect at its place
 * among the rows, or, if anything fails, nothing of it does.
 *
 * Rights.  The text is whatever the role on the publisher has managed to execute, so it is
 * executed as the role of that name, and the subscription's owner must be allowed to become that
 * role.  As for rows, the server restricts what code of a role that could not become the owner in
 * return may do, so it cannot get at the owner's rights.  With run_as_owner, rows are
 * applied with the owner's rights: a role that may define tables would have its defaults,
 * constraints and triggers executed by the owner later.  Therefore, with run_as_owner, the role
 * must be able to become the owner.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "compat.h"
#include "ddl/capture.h"
#include "ddl/choose_statement.h"
#include "ddl/concurrent.h"
#include "ddl/concurrent_detach.h"
#include "ddl/concurrent_index.h"
#include "ddl/created_names.h"
#include "ddl/ddl_apply.h"
#include "ddl/ddl_conflict.h"
#include "ddl/ddl_failure.h"
#include "ddl/ddl_kind.h"
#include "ddl/ddl_message.h"
#include "ddl/ddl_queue.h"
#include "ddl/ddl_skip.h"
#include "ddl/ddl_tables.h"
#include "ddl/default_value.h"
#include "ddl/drop_known.h"
#include "ddl/long_name.h"
#include "ddl/matview_data.h"
#include "ddl/needs_lock.h"
#include "ddl/newer_copy.h"
#include "ddl/powers.h"
#include "ddl/repeated_rows.h"
#include "ddl/seen.h"
#include "ddl/session_role.h"
#include "ddl/statement_settings.h"
#include "ddl/tablespace.h"
#include "gate.h"
#include "gate_cycle.h"
#include "miscadmin.h"
#include "node_identity.h"
#include "publication_settings.h"
#include "replication/worker_internal.h"
#include "tcop/dest.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/usercontext.h"

/* Returns the role that is to execute a statement.  The subscription's owner must be allowed to become it. */
Oid
ddl_apply_role(const DdlMessage *message)
{
	Oid			role = get_role_oid(message->role, true);

	if (!OidIsValid(role))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role \"%s\" does not exist", message->role),
				 errdetail("It has changed the schema on the publisher, and roles are not replicated."),
				 errhint("Create the role here.")));
	if (MySubscription->runasowner && !member_can_set_role(role, MySubscription->owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" may not change the schema through subscription \"%s\"",
						message->role, MySubscription->name),
				 errdetail("With \"%s\", code that belongs to its tables would be executed with the privileges of the subscription's owner.",
						   "run_as_owner"),
				 errhint("Use ALTER SUBSCRIPTION ... SET (run_as_owner = false).")));
	if (!member_can_set_role(MySubscription->owner, role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" cannot SET ROLE to \"%s\"",
						GetUserNameFromId(MySubscription->owner, false), message->role)));
	powers_check(role, message->role, message->powers);
	return role;
}

/*
 * Returns the parse tree of the statement, which must be a single schema change; or NULL if it is
 * only about tablespaces, or no publication of the subscription publishes it.
 */
RawStmt *
ddl_apply_parse(const DdlMessage *message)
{
	List	   *trees = pg_parse_query(message->statement);
	RawStmt    *tree;

	long_name_check(message);
	if (list_length(trees) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("the text of a schema change is not one statement")));
	tree = linitial_node(RawStmt, trees);
	if (message->of_trigger && !choose_statement(message, tree->stmt, ddl_tables_is_subscribed))
		return NULL;
	if (ddl_kind(tree->stmt) == DDL_NEVER &&
		!(message->explicitly && ddl_is_for_command(tree->stmt)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s is not replicated", CreateCommandName(tree->stmt))));
	session_role_replace(tree->stmt, message->session_role);
	statement_settings_check(message->settings, tree->stmt);
	default_value_apply(tree->stmt, message->values);
	if (message->may_be_gone && IsA(tree->stmt, DropStmt))
		((DropStmt *) tree->stmt)->missing_ok = true;
	if (node_identity_for(MySubscription->name) != NULL)
		ddl_make_strict(tree->stmt, message->changes);
	return tablespace_forget(tree->stmt) ? tree : NULL;
}

/*
 * Executes the statement; "made" is what an earlier attempt has begun to build (concurrent.h).  Returns false if
 * it is left out, or if it is to build an index that exists already.
 */
static bool
execute(const DdlMessage *message, Oid made)
{
	RawStmt    *tree = ddl_apply_parse(message);
	List	   *queries;
	List	   *plans;
	bool		concurrent;

	if (tree == NULL)
		return false;
	if (node_identity_for(MySubscription->name) != NULL && IsA(tree->stmt, DropStmt))
		drop_known((DropStmt *) tree->stmt, message->changes);
	concurrent = ddl_is_concurrent(tree->stmt);
	if (concurrent)
	{
		Oid			leftover = concurrent_index_leftover(tree->stmt, made);

		if (OidIsValid(leftover))
			concurrent_index_drop(leftover);
		if (concurrent_index_exists(tree->stmt))
			return false;
		concurrent_set_mode(tree->stmt, false);
	}
	queries = pg_analyze_and_rewrite_fixedparams(tree, message->statement, NULL, 0, NULL);
	matview_data_choose(linitial_node(Query, queries)->utilityStmt);
	plans = pg_plan_queries(queries, message->statement, 0, NULL);
	PushActiveSnapshot(GetTransactionSnapshot());
	gate_cycle_clear(ddl_lock_mode(tree->stmt));
	capture_replay(message);
	created_names_begin();
	repeated_rows_begin();
	if (concurrent)
		concurrent_detach_add_constraint(tree->stmt, message->server_version);
	ProcessUtility(linitial_node(PlannedStmt, plans), message->statement, false,
				   PROCESS_UTILITY_QUERY, NULL, NULL, None_Receiver, NULL);
	repeated_rows_end();
	created_names_end();
	capture_replay(NULL);
	PopActiveSnapshot();
	CommandCounterIncrement();
	created_names_settle(message->names);
	return true;
}

/*
 * Executes the statement as its role, under its settings; returns false if it is left out.  Whatever its
 * code sets is forgotten: other roles' code runs later in this process.
 */
static bool
execute_as_role(const DdlMessage *message, Oid made)
{
	UserContext context;
	int			level;
	bool		executed;

	SwitchToUntrustedUser(ddl_apply_role(message), &context);
	level = NewGUCNestLevel();
	statement_settings_set(message->settings);
	executed = execute(message, made);
	AtEOXact_GUC(false, level);
	RestoreUserContext(&context);
	return executed;
}

/*
 * The same for one that has waited to be executed by another process.  A gate may have been closed while that
 * process was waited for.
 */
static bool
execute_postponed(const DdlMessage *message, Oid made)
{
	gate_take(message->lock);
	return execute_as_role(message, made);
}

static void
error_callback(void *arg)
{
	const DdlMessage *message = arg;

	errcontext("applying schema change " INT64_FORMAT " of role \"%s\": %s",
			   message->id, message->role, message->statement);
}

/*
 * Leaves a statement that cannot run in a transaction block to a worker of its own.  Returns false
 * if it must be executed here.
 */
static bool
postpone(const DdlMessage *message, const char *json, int length, XLogRecPtr final_lsn)
{
	int			level = NewGUCNestLevel();
	RawStmt    *tree;

	/* Some of them are about strings. */
	statement_settings_set(message->settings);
	tree = ddl_apply_parse(message);
	if (tree != NULL &&
		(!ddl_is_concurrent(tree->stmt) ||
		 concurrent_detach_must_be_plain(tree->stmt, message->server_version) ||
		 concurrent_index_must_be_plain(tree->stmt)))
		tree = NULL;
	AtEOXact_GUC(true, level);
	if (tree == NULL)
		return false;

	/* Here is the place to fail, if it is known already that it must. */
	(void) ddl_apply_role(message);
	return concurrent_store(message, json, length, final_lsn);
}

/* Throws an error again, with the remedy.  "message" is NULL if it could not be read. */
pg_noreturn static void
fail(ErrorData *error, const DdlMessage *message, XLogRecPtr final_lsn)
{
	const char *name = quote_identifier(MySubscription->name);
	StringInfoData hint;

	initStringInfo(&hint);
	if (error->hint)
		appendStringInfo(&hint, "%s\n", error->hint);
	if (message)
		appendStringInfo(&hint, "If you have made the schema change by hand, run SELECT weft.skip_ddl(%s, " INT64_FORMAT "). ",
						 quote_literal_cstr(MySubscription->name), message->id);
	appendStringInfo(&hint, "If the schema change is not to be applied, skip its transaction with ALTER SUBSCRIPTION %s SKIP (lsn = '" compat_lsn_format "').",
					 name, LSN_FORMAT_ARGS(final_lsn));
	error->hint = hint.data;
	ReThrowError(error);
}

/* Returns the table that gets a partition by a statement, or InvalidOid. */
static Oid
gets_partition(Node *statement)
{
	if (IsA(statement, CreateStmt) && ((CreateStmt *) statement)->partbound)
		return RangeVarGetRelid(linitial_node(RangeVar, ((CreateStmt *) statement)->inhRelations),
								NoLock, true);
	if (IsA(statement, AlterTableStmt))
		foreach_node(AlterTableCmd, command, ((AlterTableStmt *) statement)->cmds)
			if (command->subtype == AT_AttachPartition)
			return RangeVarGetRelid(((AlterTableStmt *) statement)->relation, NoLock, true);
	return InvalidOid;
}

/* Sees to copies that are newer than a statement which would fail because of them. */
static void
before_partition(const DdlMessage *message, List *copies)
{
	UserContext context;
	int			level;
	RawStmt    *tree;
	Oid			parent;

	if (copies == NIL)
		return;
	SwitchToUntrustedUser(ddl_apply_role(message), &context);
	level = NewGUCNestLevel();
	statement_settings_set(message->settings);
	tree = ddl_apply_parse(message);
	parent = tree ? gets_partition(tree->stmt) : InvalidOid;
	AtEOXact_GUC(false, level);
	RestoreUserContext(&context);
	newer_copy_before_partition(copies, parent);
}

/*
 * Executes a statement in the stream; returns false if it is left out.  *detail is for the history, or
 * NULL.
 */
static bool
execute_in_place(DdlMessage *message, XLogRecPtr final_lsn, char **detail)
{
	List	   *copies;
	bool		executed;

	concurrent_finish(message, execute_postponed);

	/* A gate may have been closed meanwhile. */
	gate_take(message->lock);
	copies = newer_copy_find(final_lsn);
	before_partition(message, copies);
	*detail = concurrent_missing(message);
	executed = execute_as_role(message, InvalidOid);
	concurrent_forget_dropped(message);
	ddl_conflict_check_again(message);
	newer_copy_settle(copies);
	return executed;
}

/*
 * Members do not forward what comes from a publisher outside of their group.  A schema change of it would leave
 * this member with another schema than the others have, and would lock no tables there.
 */
static void
refuse_outside(void)
{
	if (!publication_settings_of_group() || node_identity_for(MySubscription->name) != NULL ||
		node_identity_members() == NIL)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("subscription \"%s\" cannot change the schema of a member of a node group",
					MySubscription->name),
			 errdetail("Its publisher does not belong to the group, so the other members would not get the schema change."),
			 errhint("Make the schema change on a member of the group.")));
}

/* Executes a schema change, and does what belongs to it. */
static void
apply(DdlMessage *message, const char *json, int length, XLogRecPtr final_lsn)
{
	const char *by_hand = ddl_skip_take(MySubscription->oid, message->id);
	bool		to_execute = by_hand == NULL && !message->only_tables;
	bool		repeated;
	const char *result = "applied";
	char	   *detail = NULL;
	List	   *parts = NIL;

	if (to_execute)
		refuse_outside();
	seen_check(message->seen);
	repeated = to_execute && ddl_conflict_check(message);
	if (to_execute && !repeated && postpone(message, json, length, final_lsn))
	{
		/*
		 * A partition that DETACH takes out is sent under its own name from
		 * here on, or not at all.
		 */
		ddl_tables_settle(message, final_lsn, false, NIL);
		return;
	}

	/*
	 * What is still pending needs the tables, too.  Rows that follow a
	 * statement made by hand do as well.
	 */
	if (!message->only_tables)
		gate_take(message->lock);
	if (to_execute)
		parts = ddl_tables_parts(message, final_lsn);
	if (repeated)
		result = "repeated";
	else if (to_execute && !execute_in_place(message, final_lsn, &detail))
		result = "left out";
	ddl_tables_settle(message, final_lsn, by_hand != NULL, parts);
	if (by_hand != NULL)
		ddl_queue_record_skipped(MySubscription->name, message, final_lsn, by_hand);

	/* The tables of an extension come after its statement. */
	else if (!message->only_tables || message->tables == NIL)
		ddl_queue_record_with(MySubscription->name, message, final_lsn, result, detail);
}

/* See receive/ddl_rows.c: who has written the message is not known. */
pg_noreturn static void
refuse_lost(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("a schema change was published by an extension \"%s\" that the publisher no longer has",
					"weft"),
			 errdetail("The extension was dropped there before the schema change was applied here."),
			 errhint("Make the schema change by hand, and use ALTER SUBSCRIPTION %s SET (ddl = off) until the subscription has caught up.",
					 quote_identifier(MySubscription->name))));
}

/*
 * Executes a schema change, unless no publication of the subscription has published it.
 * "final_lsn" is the position of its transaction.  Called in a transaction.
 */
void
ddl_apply(const char *json, int length, XLogRecPtr final_lsn)
{
	MemoryContext context = CurrentMemoryContext;
	DdlMessage *volatile message = NULL;
	ErrorContextCallback callback;
	const bool	lost = length > 0 && json[0] == DDL_APPLY_LOST;

	PG_TRY();
	{
		message = ddl_message_read(json + lost, length - lost);
		callback.callback = error_callback;
		callback.arg = message;
		callback.previous = error_context_stack;
		error_context_stack = &callback;
		if (ddl_tables_any_subscribed(message->publications))
		{
			if (lost)
				refuse_lost();
			apply(message, json, length, final_lsn);
		}
		error_context_stack = callback.previous;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		repeated_rows_end();
		created_names_end();
		capture_replay(NULL);
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		if (message && !lost)
			ddl_failure_note(message, final_lsn, error->message);
		fail(error, lost ? NULL : message, final_lsn);
	}
	PG_END_TRY();
}
