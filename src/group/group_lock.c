/*
 * group_lock.c
 *	  The lock of a node group for a schema change: the session that makes the change.
 *
 * gate.c has the protocol.  This session, U, sees the statement before it is executed.  U connects to all members, its
 * own node included, and makes each one's gate ready; only then is the statement executed.  The lock
 * belongs to U's transaction, which may need more tables for further statements.
 *
 * Until the gates are confirmed, each ends with U's connection.  Later, members ask
 * U's node for the outcome (group/gate_worker.c).  U's node answers that the lock is open for as long as its own gate
 * exists, which ends with U's transaction, however that ends (gate.c).
 *
 * A statement without tables gets a gate without tables: nobody is held back, but another statement
 * of the group has to wait until this one has been applied everywhere, and then meets what it has made.  With
 * weft.ddl_lock = always, this holds for new names, too: two members cannot create different
 * tables of one name.
 *
 * U must not hold back what it waits for.  If U has written to a table before, or changed it without a lock, then
 * rows of other members cannot be applied here before U's transaction ends: an error says so.  If a writer
 * waits for another lock of U's, the member's function notices it (weft.member_ddl_applied).
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "ddl/ddl_kind.h"
#include "ddl/needs_lock.h"
#include "gate.h"
#include "group/group_lock.h"
#include "group/lock_tables.h"
#include "group/remote.h"
#include "guc.h"
#include "local_query.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "publication_settings.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "wait_event.h"

/* Milliseconds between two looks at a node that is joining or parting. */
#define LOOK_INTERVAL 200

/* More rounds than this mean that something keeps opening a gate. */
#define MAX_ROUNDS 100

typedef struct Member
{
	char	   *name;
	char	   *dsn;
	bool		is_local;
	Remote	   *remote;
	char	   *round;			/* when its gate was closed */
	char	   *lsn;			/* its position then */
} Member;

typedef struct Request
{
	int64		lock;
	List	   *members;		/* in the order of their ids */
	const char *local_node;
	char	   *tables;			/* array of names, as text */
	TimestampTz end;
} Request;

static ProcessUtility_hook_type previous_process_utility = NULL;

/* Tables that the lock of the current transaction includes; in TopTransactionContext. */
static List *own_tables = NIL;
static LocalTransactionId own_transaction = InvalidLocalTransactionId;

static int
milliseconds_left(const Request *request)
{
	long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), request->end);

	return Max(left, 1);
}

/* Does a publication publish schema changes? */
static bool
publishes_changes(const char *publication)
{
	foreach_ptr(DdlPublication, each, publication_settings_list())
		if (strcmp(each->name, publication) == 0)
		return true;
	return false;
}

/* Returns the members of this node's group, or NIL; waits for one that is joining or parting. */
static List *
find_members(Request *request, bool all_active)
{
	for (;;)
	{
		List	   *rows = local_rows("SELECT node_name, dsn, is_local, state, 'weft_' || g"
									  " FROM weft.member, weft.local_group() g"
									  " WHERE g IS NOT NULL ORDER BY node_id", 5);
		List	   *members = NIL;
		char	   *changing = NULL;

		foreach_ptr(LocalValue, row, rows)
		{
			Member	   *member = palloc0(sizeof(Member));

			if (!publishes_changes(row[4]))
				return NIL;
			if (strcmp(row[3], "active") != 0)
			{
				changing = row[0];
				continue;
			}
			member->name = row[0];
			member->dsn = row[1];
			member->is_local = row[2][0] == 't';
			if (member->is_local)
				request->local_node = member->name;
			members = lappend(members, member);
		}
		if (changing == NULL || !all_active || list_length(members) < 2)
			return members;
		if (GetCurrentTimestamp() > request->end)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("node \"%s\" is joining or parting", changing),
					 errdetail("A schema change that locks tables of the node group has to wait until it has finished."),
					 errhint("Try again later.")));
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LOOK_INTERVAL, wait_event_id(WEFT_WAIT_GATE));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* Fails if this transaction keeps other members' rows out of a table. */
static void
refuse_locked(List *tables)
{
	foreach_oid(relid, tables)
	{
		LOCKTAG		tag;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
		if (LockHeldByMe(&tag, RowExclusiveLock, true))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("cannot lock table \"%s\" in the node group, because this transaction has already changed it",
							get_rel_name(relid)),
					 errhint("Make the schema change in a transaction of its own, or set \"weft.ddl_lock\" to \"always\" before the transaction's first schema change.")));
	}
}

/* Returns the names of tables as the text of an array. */
static char *
names_of(List *tables)
{
	Datum	   *names = palloc(Max(list_length(tables), 1) * sizeof(Datum));
	int			count = 0;

	foreach_oid(relid, tables)
	{
		char	   *name = quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
													  get_rel_name(relid));

		names[count++] = CStringGetTextDatum(name);
	}
	return OidOutputFunctionCall(F_ARRAY_OUT,
								 PointerGetDatum(construct_array_builtin(names, count, TEXTOID)));
}

static void
connect_members(Request *request)
{
	foreach_ptr(Member, member, request->members)
	{
		member->remote = remote_connect(member->dsn, member->name, false);

		/*
		 * A member that waits in a function notices that this session has
		 * ended.
		 */
		remote_run(member->remote, "SET client_connection_check_interval = '200ms'");
	}
}

/* Closes the gate of a member and notes its position. */
static void
close_gate(Request *request, Member *member)
{
	RemoteValue *row = remote_row(member->remote,
								  psprintf("SELECT round, lsn FROM weft.member_ddl_closed(" INT64_FORMAT ", %d)",
										   request->lock, milliseconds_left(request)), 2);

	if (row == NULL || row[0] == NULL || row[1] == NULL)
		elog(ERROR, "node \"%s\" has not closed its gate", member->name);
	member->round = row[0];
	member->lsn = row[1];
}

/* Makes all members apply what the others have written until their gates were closed. */
static void
apply_all(Request *request)
{
	StringInfoData positions;

	initStringInfo(&positions);
	foreach_ptr(Member, member, request->members)
		appendStringInfo(&positions, "%s\"%s\": \"%s\"", positions.len == 0 ? "{" : ", ",
						 member->name, member->lsn);
	appendStringInfoChar(&positions, '}');
	foreach_ptr(Member, member, request->members)
		(void) remote_value(member->remote,
							psprintf("SELECT weft.member_ddl_applied(%s, %d, %d)",
									 quote_literal_cstr(positions.data),
									 member->is_local ? MyProcPid : 0,
									 milliseconds_left(request)));
}

/* Returns the first member whose gate was open for a moment, or NULL. */
static Member *
confirm_all(Request *request)
{
	foreach_ptr(Member, member, request->members)
	{
		char	   *answer = remote_value(member->remote,
										  psprintf("SELECT weft.member_ddl_confirm(" INT64_FORMAT ", %s)",
												   request->lock, member->round));

		if (answer == NULL || answer[0] != 't')
			return member;
	}
	return NULL;
}

/* Makes the gates of all members ready. */
static void
lock_members(Request *request, bool has_tables)
{
	Member	   *open = NULL;

	connect_members(request);
	foreach_ptr(Member, member, request->members)
		(void) remote_value(member->remote,
							psprintf("SELECT weft.member_ddl_gate(" INT64_FORMAT ", %s, %s, %d)",
									 request->lock, quote_literal_cstr(request->local_node),
									 quote_literal_cstr(request->tables),
									 milliseconds_left(request)));

	/* A node that has joined meanwhile waits until this gate ends. */
	if (has_tables && list_length(find_members(request, true)) != list_length(request->members))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("the members of the node group have changed"),
				 errhint("Try again.")));
	for (int i = 0; i < MAX_ROUNDS; i++)
	{
		foreach_ptr(Member, member, request->members)
			close_gate(request, member);
		if (has_tables)
			apply_all(request);
		open = confirm_all(request);
		if (open == NULL)
			return;
		if (GetCurrentTimestamp() > request->end)
			break;
	}
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not lock tables of node \"%s\": other schema changes or locks use them",
					open ? open->name : "")));
}

/* Locks tables in the group, for the current transaction. */
static void
lock_group(List *tables)
{
	Request		request = {0};

	request.end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), weft_ddl_lock_timeout);
	request.members = find_members(&request, tables != NIL);
	if (list_length(request.members) < 2 || request.local_node == NULL)
		return;
	refuse_locked(tables);
	request.tables = names_of(tables);
	request.lock = gate_own_lock();
	if (request.lock == 0)
	{
		if (!pg_strong_random(&request.lock, sizeof(request.lock)))
			ereport(ERROR, (errmsg("could not generate a random number")));
		request.lock &= PG_INT64_MAX;
		gate_own(request.lock);
	}
	PG_TRY();
	{
		lock_members(&request, tables != NIL);
	}
	PG_FINALLY();
	{
		foreach_ptr(Member, member, request.members)
			if (member->remote)
			remote_close(member->remote);
	}
	PG_END_TRY();
}

/* The same with the rights that connections to members need; the user chooses nothing but the tables. */
static void
lock_as_owner(List *tables)
{
	Oid			user;
	int			context;
	int			level = NewGUCNestLevel();

	load_file("libpqwalreceiver", false);
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
						   context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_NOFORCE_RLS);
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	PG_TRY();
	{
		lock_group(tables);
	}
	PG_FINALLY();
	{
		SetUserIdAndSecContext(user, context);
	}
	PG_END_TRY();
	AtEOXact_GUC(true, level);
}

/* Returns those that the lock of this transaction does not include yet. */
static List *
without_own(List *tables)
{
	if (own_transaction != MyProc->vxid.lxid)
		own_tables = NIL;
	own_transaction = MyProc->vxid.lxid;
	return list_difference_oid(tables, own_tables);
}

static void
prepare(Node *statement)
{
	List	   *tables;
	MemoryContext old;

	if (weft_ddl_lock == DDL_LOCK_AUTO && !ddl_needs_lock(statement))
		return;
	tables = without_own(lock_tables_of(statement));
	if (tables == NIL && gate_own_lock() != 0)
		return;
	lock_as_owner(tables);
	if (gate_own_lock() == 0)
		return;
	gate_take(gate_own_lock());
	old = MemoryContextSwitchTo(TopTransactionContext);
	own_tables = list_concat(own_tables, tables);
	MemoryContextSwitchTo(old);
}

static bool
is_wanted(Node *statement, ProcessUtilityContext context)
{
	return weft_ddl_lock != DDL_LOCK_NONE && ddl_kind(statement) != DDL_NEVER &&
		context != PROCESS_UTILITY_SUBCOMMAND && !creating_extension && !IsBinaryUpgrade &&
		weft_ddl_replication && SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA &&
		!ddl_is_concurrent(statement) && IsTransactionState() &&
		publication_settings_list() != NIL && OidIsValid(publication_settings_queue());
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	if (is_wanted(pstmt->utilityStmt, context))
		prepare(pstmt->utilityStmt);
	if (previous_process_utility)
		previous_process_utility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
}

/* Installs the hook around that of capture.c; called once, while the postmaster loads the library. */
void
group_lock_install(void)
{
	previous_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
