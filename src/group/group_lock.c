/*
 * group_lock.c
 *	  The lock of a node group for a schema change: the session that makes the change.
 *
 * gate.c has the protocol.  This session, U, sees the statement before it is executed.  U connects to all members, its
 * own node included, and makes each one's gate ready; only then is the statement executed.  The lock
 * belongs to U's transaction, which may need more tables for further statements.  (gate.c: "Savepoints".)
 *
 * Whoever may make any schema change in a transaction can keep other ones of the group waiting until it ends, as with a
 * lock on one server.  A statement that the user may not execute fails before other members are asked, if that can be told from the
 * owners of what it names.
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
 * Tables that U's transaction X has used before, by a schema change without a lock or by rows of its own.  G,
 * the gate worker of U's node, cannot lock them; U does so in G's place, which holds back the same sessions.  Two
 * things are different then:
 *	 - U must not hold back what it waits for.  Rows that other members have written to such a table, and that are not
 *	   applied here yet, cannot be before X ends.  U's node notices that a writer waits for U
 *	   (weft.member_ddl_applied), and X fails.  With no such rows under way, nobody waits for U.
 *	   While U waits for a gate behind that of another schema change D', rows that D' waits for may be among
 *	   them.  Therefore U waits for TURN_TIMEOUT only.
 *	 - X's rows come before the schema change.  Therefore X must have begun with another one
 *	   (ddl/first_change.c); otherwise an error says so.
 *
 * Schema changes without a lock.  Session S of member M makes E, which reads a table T: CREATE VIEW; or is about
 * its privileges.  T's gate does not hold back S by itself.  If S committed E while M's gate on T is closed,
 * neither E nor D would have seen the other, and they may conflict (ddl/ddl_conflict.c).  Therefore S locks T as if it wrote to it, before it executes E: G waits for S,
 * or S for G.  If E changes T itself, S would wait for G in any case, and whoever comes after S for S.  Rows
 * that G waits for, and that need a lock of mode ROW SHARE, would be among them.  Therefore S first waits
 * with a mode that does not conflict with ROW SHARE.
 *
 * Joining nodes.  Node J is in no member's list, or U waits until J is active: J would get rows from before and
 * after the schema change in any order.  J enters the list of member M only while M has no gate for tables, and U
 * looks again behind its gates.  J looks after it has inserted its entry; U waits for whoever has inserted into
 * the list, and looks then: at least one of them sees the other.  If U sees J, it fails, because J
 * may be waiting for U's gate on another member.  It fails without waiting, too, if X has an identifier: J's slots
 * would wait for X.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "ddl/changes.h"
#include "ddl/ddl_kind.h"
#include "ddl/first_change.h"
#include "ddl/needs_lock.h"
#include "ddl/touched.h"
#include "gate.h"
#include "gate_cycle.h"
#include "gate_shared.h"
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
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "wait_event.h"

/* Milliseconds between two looks at a node that is joining or parting. */
#define LOOK_INTERVAL 200

/* Milliseconds after the time-out in which a member says itself what it has waited for. */
#define GRACE 1000

/* More rounds than this mean that something keeps opening a gate. */
#define MAX_ROUNDS 100

/* Milliseconds that a transaction waits for another schema change while it keeps rows out of its tables. */
#define TURN_TIMEOUT 2000

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
	List	   *tables;			/* OIDs */
	List	   *used;			/* those that the transaction has used before */
	TimestampTz end;
} Request;

static ProcessUtility_hook_type previous_process_utility = NULL;

/* Tables that the lock of the current transaction includes; in TopTransactionContext. */
static List *own_tables = NIL;

/* How often it has been extended. */
static int	own_requests = 0;
static LocalTransactionId own_transaction = InvalidLocalTransactionId;

/* Does a publication publish schema changes? */
static bool
publishes_changes(const char *publication)
{
	foreach_ptr(DdlPublication, each, publication_settings_list())
		if (strcmp(each->name, publication) == 0)
		return true;
	return false;
}

/* Returns the members of this node's group, or NIL; waits for one that is joining or parting, if it may. */
static List *
find_members(Request *request, bool may_wait)
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
		if (changing == NULL || request->tables == NIL || list_length(members) < 2)
			return members;
		if (!may_wait || GetCurrentTimestamp() > request->end)
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

/*
 * Locks the tables that this transaction has used before, in place of the gate worker, and notes them.
 */
static void
lock_used(Request *request)
{
	foreach_oid(relid, request->tables)
	{
		LOCKTAG		tag;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
		if (!LockHeldByMe(&tag, RowExclusiveLock, true))
			continue;
		if (!first_change_made())
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("cannot lock table \"%s\" in the node group, because this transaction has already changed it",
							get_rel_name(relid)),
					 errhint("Make the schema change in a transaction of its own, or in one that begins with a schema change.")));
		gate_lock_table(relid, ShareRowExclusiveLock);
		request->used = lappend_oid(request->used, relid);
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
		member->remote = remote_connect_until(member->dsn, member->name,
											  TimestampTzPlusMilliseconds(request->end, GRACE));

		/*
		 * A member that waits in a function notices that this session has
		 * ended.
		 */
		remote_run(member->remote, "SET client_connection_check_interval = '200ms'");
	}
}

/* Returns the answer of a member's function that waits, once the first column is neither null nor false. */
static RemoteValue *
wait_for_answer(Member *member, TimestampTz end, const char *call, int columns)
{
	for (;;)
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end);
		RemoteValue *row = remote_row(member->remote, psprintf("%s, %ld)", call, Max(left, 1)),
									  columns);

		if (row && row[0] && row[0][0] != 'f')
			return row;
		CHECK_FOR_INTERRUPTS();
	}
}

/* The process that a member's function must not find in its way. */
static int
own_pid(const Member *member)
{
	return member->is_local ? MyProcPid : 0;
}

/* Closes the gate of a member and notes its position. */
static void
close_gate(Request *request, Member *member)
{
	RemoteValue *row = wait_for_answer(member, request->end,
									   psprintf("SELECT round, lsn FROM weft.member_ddl_closed(" INT64_FORMAT ", %d",
												request->lock, own_pid(member)), 2);

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
		(void) wait_for_answer(member, request->end,
							   psprintf("SELECT weft.member_ddl_applied(%s, %d",
										quote_literal_cstr(positions.data), own_pid(member)), 1);
}

/* Asks a member for a gate, or for more tables of it. */
static void
open_gate(Request *request, Member *member)
{
	List	   *tables = request->tables;
	TimestampTz end = request->end;

	if (member->is_local)
		tables = list_difference_oid(tables, request->used);
	if (request->used != NIL)
		end = Min(end, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), TURN_TIMEOUT));
	(void) wait_for_answer(member, end,
						   psprintf("SELECT weft.member_ddl_gate(" INT64_FORMAT ", %s, %d, %s",
									request->lock, quote_literal_cstr(request->local_node),
									own_requests, quote_literal_cstr(names_of(tables))), 1);
	if (member->is_local)
		gate_add_own(request->lock, request->used);
}

/* Fails if the group is not as it was; see "Joining nodes". */
static void
check_members(Request *request)
{
	Oid			list = get_relname_relid("node_entry", get_namespace_oid("weft", false));

	LockRelationOid(list, ShareLock);
	UnlockRelationOid(list, ShareLock);
	if (list_length(find_members(request, false)) != list_length(request->members))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("the members of the node group have changed"),
				 errhint("Try again.")));
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
lock_members(Request *request)
{
	Member	   *open = NULL;

	connect_members(request);
	foreach_ptr(Member, member, request->members)
		open_gate(request, member);
	if (request->tables != NIL)
		check_members(request);
	for (int i = 0; i < MAX_ROUNDS; i++)
	{
		foreach_ptr(Member, member, request->members)
			close_gate(request, member);
		if (request->tables != NIL)
		{
			apply_all(request);

			/* A table may have been created there only now. */
			foreach_ptr(Member, member, request->members)
				if (!member->is_local)
				open_gate(request, member);
		}
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
	request.tables = tables;
	request.members = find_members(&request, !TransactionIdIsValid(GetTopTransactionIdIfAny()));
	if (list_length(request.members) < 2 || request.local_node == NULL)
		return;
	request.lock = gate_own_lock();
	if (request.lock == 0)
	{
		if (!pg_strong_random(&request.lock, sizeof(request.lock)))
			ereport(ERROR, (errmsg("could not generate a random number")));
		request.lock &= PG_INT64_MAX;
		gate_own(request.lock);
	}
	lock_used(&request);
	PG_TRY();
	{
		lock_members(&request);
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
	if (own_transaction != MyProc->vxid.lxid || gate_own_lock() == 0)
	{
		own_tables = NIL;
		own_requests = 0;
	}
	own_transaction = MyProc->vxid.lxid;
	return list_difference_oid(tables, own_tables);
}

/* Does the node group publish a table? */
static bool
is_in_group(Oid relid)
{
	List	   *publications = touched_publications_of(relid);

	foreach_ptr(DdlPublication, publication, publication_settings_list())
		if (publication->group && list_member_oid(publications, publication->oid))
		return true;
	return false;
}

/* May the user read any column of a relation? */
static bool
may_read(Oid relid)
{
	bool		missing = false;

	return pg_class_aclcheck_ext(relid, GetUserId(), ACL_SELECT, &missing) == ACLCHECK_OK ||
		pg_attribute_aclcheck_all_ext(relid, GetUserId(), ACL_SELECT, ACLMASK_ANY,
									  &missing) == ACLCHECK_OK;
}

/*
 * Is a relation a table that the group replicates?  It need not exist.  Of partitioned tables, members publish the
 * partitions.
 */
static bool
is_table_of_group(Oid relid)
{
	char		relkind = get_rel_relkind(relid);

	return (relkind == RELKIND_RELATION && is_in_group(relid)) ||
		relkind == RELKIND_PARTITIONED_TABLE;
}

/*
 * See "Schema changes without a lock".  Nobody can hold up a gate for tables that he may neither read nor give
 * to others.
 */
static void
lock_mentioned(Node *statement)
{
	foreach_oid(relid, changes_tables_read(statement))
		if (is_table_of_group(relid) && may_read(relid))
		LockRelationOid(relid, RowExclusiveLock);
	foreach_oid(relid, lock_tables_granted(statement))
		if (is_table_of_group(relid))
		LockRelationOid(relid, RowExclusiveLock);
}

/* Waits until no gate worker has a lock on a table that a schema change without a lock is about to lock. */
static void
wait_behind_gates(Node *statement)
{
	if (!gate_any())
		return;
	foreach_oid(relid, lock_tables_of(statement))
		if (is_table_of_group(relid))
		LockRelationOid(relid, ShareUpdateExclusiveLock);
}

static void
prepare(Node *statement)
{
	List	   *tables;
	MemoryContext old;

	if (weft_ddl_lock == DDL_LOCK_AUTO && !ddl_needs_lock(statement))
	{
		wait_behind_gates(statement);
		lock_mentioned(statement);
		return;
	}
	if (lock_tables_are_local(statement))
		return;
	lock_tables_check_rights(statement);
	tables = without_own(lock_tables_of(statement));
	if (tables == NIL && gate_own_lock() != 0)
		return;
	lock_as_owner(tables);
	if (gate_own_lock() == 0)
		return;
	gate_take(gate_own_lock());
	old = MemoryContextSwitchTo(TopTransactionContext);
	own_tables = list_concat(own_tables, tables);
	own_requests++;
	MemoryContextSwitchTo(old);
}

/*
 * Fails if a concurrent statement needs the lock of the group.  Members execute it at any time after
 * their rows around it (ddl/concurrent.c), so even a lock that outlived its transactions would not do.
 */
static void
refuse_concurrent(Node *statement)
{
	bool		needed = ddl_needs_lock(statement);

	if (weft_ddl_lock == DDL_LOCK_AUTO && !needed)
		return;
	foreach_oid(relid, lock_tables_of(statement))
		if (is_in_group(relid))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot use CONCURRENTLY for a schema change that locks table \"%s\" in the node group",
						get_rel_name(relid)),
				 errhint("Execute the statement without CONCURRENTLY, or set \"weft.ddl_lock\" to \"%s\".",
						 needed ? "none" : "auto")));
}

static bool
is_wanted(Node *statement, ProcessUtilityContext context)
{
	return weft_ddl_lock != DDL_LOCK_NONE && ddl_kind(statement) != DDL_NEVER &&
		context != PROCESS_UTILITY_SUBCOMMAND && !creating_extension && !IsBinaryUpgrade &&
		weft_ddl_replication && SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA &&
		IsTransactionState() && publication_settings_of_group() && OidIsValid(publication_settings_queue());
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	if (is_wanted(pstmt->utilityStmt, context))
	{
		if (ddl_is_concurrent(pstmt->utilityStmt))
			refuse_concurrent(pstmt->utilityStmt);
		else
			prepare(pstmt->utilityStmt);
		if (gate_own_lock() != 0)
			gate_cycle_clear(ddl_lock_mode(pstmt->utilityStmt));
	}
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
