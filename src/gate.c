/*
 * gate.c
 *	  Tables of a node group whose local writers are held back for a schema change.
 *
 * A schema change D that does not fit old and new rows takes a lock on its tables on all members
 * (group/group_lock.c has the requester's side).  A is the member where D is executed first, in
 * session U; M is any member, A included; S is a session of M that wants to write to one of the
 * tables, T; W is a writer of M that applies another member's rows; WD is the one that applies D.
 *
 *	1. At each member, in the order of node ids, A asks for a gate.  A database has one active gate at a
 *	   time; further ones wait.  Two requesters meet at the first member that both ask.
 *	2. M's gate worker G (group/gate_worker.c) locks each T in mode SHARE ROW EXCLUSIVE.  That is the
 *	   server's own lock: readers go on, and S waits in the parser, as it would for any ALTER TABLE, and uses
 *	   the new definition when it goes on.  No prepared plan, trigger, COPY or foreign key needs a thought.
 *	   At A, U has locked those T itself that its transaction has used before (group/group_lock.c).
 *	3. Once G has the locks, no local transaction that has written to T is open.  The gate is
 *	   closed; M's position in the WAL is noted, and told to A.
 *	4. Each M applies what all others have written up to those positions.  W needs T, so W passes the
 *	   gate: while G holds T, W locks it in mode ROW SHARE only (gate_open_relation).  What ROW EXCLUSIVE
 *	   would keep away from T, such as CREATE INDEX, is kept away by G, which therefore keeps
 *	   its lock, or one of mode SHARE UPDATE EXCLUSIVE in its place, until no transaction of a writer that
 *	   has passed is open ("passing").  Passing is counted before the lock is requested.
 *	   If G fails meanwhile, the transaction of W is applied again (check_passed).
 *	5. A confirms the gates of all members.  A confirmed gate outlives the connection of A, and a
 *	   crash of M (gate_file.c).  All rows of T that arrive from other members than A were written after
 *	   D from now on, so their writers do not pass it any more, and wait for D: in the server's queue while WD
 *	   executes D, and otherwise by looking at the gate, which may have to be closed once more
 *	   ("Slips").  A's own rows arrive in the order of A's commits.  Those that come before D must not wait for it,
 *	   so they go on passing.  There may be some: of a session that slips, and of U itself, once it has rolled
 *	   back to a savepoint before D.
 *	   A stream writer does not know whether D comes before its rows.  It gives up, and an ordinary writer
 *	   applies them in their turn.
 *	6. U, and WD on every other member, take the locks over (gate_take), and execute D.  When the
 *	   transaction commits, the gate is opened.  If it is aborted, G closes the gate once more.
 *
 * Taking over.  WD has to be first, but S is in the queue before WD.  The server's deadlock detector puts WD in
 * front: G exchanges its lock for one of mode SHARE, and waits for the taker's tag, which WD holds.
 * WD asks for mode SHARE, which does not conflict with G's, but waits in the queue behind S.  So
 * WD waits for S, S for G, and G for WD; only the first of these edges is soft, and the detector
 * moves WD in front of S.  Then G drops its lock.  WD, with a lock that conflicts with what S
 * wants, goes ahead of S whatever lock it asks for next.  Both sides check for deadlocks after
 * TAKE_DEADLOCK_TIMEOUT, and G repeats its wait, so neither must be asleep first.
 *
 * Savepoints.  The lock belongs to the subtransaction of U that has requested it, and to those that contain it.  If it is
 * aborted, by ROLLBACK TO SAVEPOINT or an exception block, everything is rolled back that U has done under the lock, so
 * the lock ends as it does with a transaction: A's gate is opened, members ask for the outcome, and find no
 * schema change of that lock.  U's own locks on the tables belong to the top transaction and are released, too.  Otherwise a role whose
 * statements fail could keep the lock for as long as its transaction is open.  Whatever U does next does not know of
 * the lock; a further statement requests one with another number.  If a subtransaction within that one is aborted, U
 * may still have a schema change under the lock, so all of it stays, tables included that only the aborted statement needed.
 *
 * Slips.  When a taker's transaction is aborted, or another one's schema change has used T for a
 * moment, S may get its lock before G is back.  Before the confirmation this costs a new round: the gate is
 * not closed any more, and A notices that at the confirmation.  Other members may have confirmed theirs by then; when A
 * asks them to close their gates again, they forget that, so that the rows of S pass.  After the confirmation, S must not
 * write: it gets an error when it begins to (check_permissions).  So does any session after a crash until G has its locks
 * again.  W, which has newer rows, looks again once it has its lock, and goes on waiting.
 *
 * Lock order.  The lightweight lock is held for moments only, and no other lock is requested under it.
 *
 * A session that has read T and wants to write to it cannot go on behind D, which waits for it (gate_cycle.c).
 *
 * Deadlocks.  All sessions wait for each other in the server's lock manager: S for G, G for transactions that have
 * written to T, W for rows of S.  While G is closing the gate, it gives up what S waits for (group/gate_worker.c, "Tables
 * in another order").  Two kinds of waits are none for a lock, so the server does not see the cycles that they belong to:
 *	 - G, which has closed the gate, waits for D, and D for what comes before it.  W, which applies that, waits for a row of
 *	   S, and S for G.  G cancels the statement of S (gate_cycle.c).
 *	 - W waits behind D by looking at the gate, and a writer of A waits for a row of W.  Then W gives up, and is applied
 *	   again.  A later writer of the same subscription yields, as if W waited for a lock (apply/turn.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "gate.h"
#include "gate_shared.h"
#include "miscadmin.h"
#include "misspeculate.h"
#include "node_identity.h"
#include "nodes/parsenodes.h"
#include "replication/worker_internal.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"

/* Milliseconds after which both sides of a take-over look for the cycle that they make. */
#define TAKE_DEADLOCK_TIMEOUT 10

/* A take-over that lasts longer than this has failed. */
#define TAKE_TIMEOUT_SECONDS 30

/* Milliseconds between two looks of a process that cannot wait in the server's queue. */
#define LOOK_INTERVAL 5

/*
 * After how many of them it looks whether others wait for it.  What the gate worker waits for, it gives up by itself
 * after a while.
 */
#define LOOKS_PER_CHECK 20
#define PATIENT_LOOKS_PER_CHECK 400

static ExecutorCheckPerms_hook_type previous_check_permissions = NULL;

/* The gate that the current transaction of this process has passed, and how many workers of it had failed then. */
static Gate *passed = NULL;
static uint32 passed_failures;

/* The gate whose locks the current transaction wants or has. */
static int64 taken_gate = 0;

/*
 * The lock whose schema change the current transaction executes.  It ends with that also if another schema
 * change has taken the gate over, behind which this one waits for the tables.
 */
static int64 executed_lock = 0;

/* The group lock of the current transaction, which ends with it; or zero. */
static int64 own_lock = 0;

/* The subtransaction that has requested it: when that is aborted, nothing is left that was done under the lock. */
static SubTransactionId own_subtransaction;

/* A lock on a table that belongs to the group lock, held by the top transaction. */
typedef struct TableLock
{
	Oid			relid;
	LOCKMODE	mode;
} TableLock;

/* Those of the current transaction, in TopTransactionContext. */
static List *table_locks = NIL;

/* This process applies transactions before their turn, and while they are in progress. */
static bool applies_early = false;

/* Does anybody wait for a lock of this process?  NULL in a process that is no writer. */
static bool (*blocks_others) (void) = NULL;

void
gate_apply_early(void)
{
	applies_early = true;
}

/* Called once in a writer. */
void
gate_ask_before_waiting(bool (*function) (void))
{
	blocks_others = function;
}

void
gate_tag(LOCKTAG *tag)
{
	/* "weft", "gate"; see lock_join() */
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, 0x77656674, 0x67617465, 3);
}

/* Ends the group lock of this transaction, and leaves the gate that it has taken over. */
static void
let_go(bool committed)
{
	Gate	   *gate;

	if (own_lock != 0)
		gate_end(own_lock);
	own_lock = 0;
	if (committed && executed_lock != 0)
		gate_end(executed_lock);
	executed_lock = 0;
	if (taken_gate == 0)
		return;
	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	gate = gate_find(taken_gate);
	if (gate != NULL && gate->status.taker == MyProcNumber)
	{
		gate->status.taker = INVALID_PROC_NUMBER;
		gate->status.round++;
		if (gate->status.state == GATE_ACTIVE)
			for (int i = 0; i < gate->status.num_tables; i++)
				if (gate->status.tables[i].state == TABLE_GIVEN && !gate->status.tables[i].own)
					gate->status.tables[i].state = TABLE_WANTED;
		gate_wake(gate->status.worker);
	}
	LWLockRelease(gates->lock);
	taken_gate = 0;
}

/*
 * Fails if the gate worker has failed since this transaction passed: somebody may have had the tables for a moment, and
 * made an index that misses rows of this transaction.
 */
static void
check_passed(void)
{
	if (passed != NULL && pg_atomic_read_u32(&passed->failures) != passed_failures)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("the worker that holds the lock of a schema change of the node group has failed"),
				 errdetail("The transaction has used its tables under that lock, and is applied again.")));
}

/* What the current transaction has passed or taken ends with it. */
static void
transaction_event(XactEvent event, void *arg)
{
	bool		committed = event == XACT_EVENT_COMMIT;

	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
		check_passed();

	/* What is prepared contains no schema change (ddl_queue.c). */
	if (!committed && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	if (passed != NULL)
		pg_atomic_fetch_sub_u32(&passed->passing, 1);
	passed = NULL;
	table_locks = NIL;
	let_go(committed);
}

/* Releases the locks on tables that belong to the group lock. */
static void
unlock_tables(void)
{
	ResourceOwner owner = CurrentResourceOwner;

	CurrentResourceOwner = TopTransactionResourceOwner;
	foreach_ptr(TableLock, each, table_locks)
		UnlockRelationOid(each->relid, each->mode);
	table_locks = NIL;
	CurrentResourceOwner = owner;
}

/* See "Savepoints" above. */
static void
subtransaction_event(SubXactEvent event, SubTransactionId id, SubTransactionId parent, void *arg)
{
	if (own_lock == 0 || id != own_subtransaction)
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		own_subtransaction = parent;
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		let_go(false);
		unlock_tables();
	}
}

static bool
writes(const RTEPermissionInfo *info)
{
	return (info->requiredPerms & (ACL_INSERT | ACL_UPDATE | ACL_DELETE)) != 0;
}

/* Returns the tables whose gate is confirmed, but not closed. */
static List *
find_slipping(void)
{
	Gate	   *gate;
	List	   *result = NIL;

	LWLockAcquire(gates->lock, LW_SHARED);
	gate = gate_find_active();
	if (gate != NULL && gate->status.state == GATE_ACTIVE)
		for (int i = 0; i < gate->status.num_tables; i++)
			if (gate->status.tables[i].confirmed &&
				(gate->status.tables[i].state == TABLE_WANTED || gate->status.tables[i].state == TABLE_WITHDRAWN))
				result = lappend_oid(result, gate->status.tables[i].relid);
	LWLockRelease(gates->lock);
	return result;
}

/* Fails if the session is about to write to one of these tables, perhaps through one that it is a partition or child of. */
static void
refuse_slip(const List *slipping, Oid relid)
{
	List	   *written = list_make1_oid(relid);

	if (has_subclass(relid))
		written = find_all_inheritors(relid, NoLock, NULL);
	foreach_oid(each, written)
		if (list_member_oid(slipping, each))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not write to table \"%s\" before a schema change of the node group",
						get_rel_name(each)),
				 errdetail("The schema change has been made on another node, and could not be applied here yet."),
				 errhint("Retry the transaction. View \"weft.ddl_lock_status\" shows the lock.")));
}

/* Called when a statement, COPY or foreign-key action has its locks, before it writes. */
static bool
check_permissions(List *range_table, List *infos, bool violation_is_error)
{
	List	   *slipping;

	if (previous_check_permissions &&
		!previous_check_permissions(range_table, infos, violation_is_error))
		return false;
	if (gate_none() || SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
		return true;
	slipping = find_slipping();
	if (slipping == NIL)
		return true;
	foreach_node(RTEPermissionInfo, info, infos)
		if (writes(info))
		refuse_slip(slipping, info->relid);
	return true;
}

/* Called once, while the postmaster loads the library. */
void
gate_install(void)
{
	RegisterXactCallback(transaction_event, NULL);
	RegisterSubXactCallback(subtransaction_event, NULL);
	previous_check_permissions = ExecutorCheckPerms_hook;
	ExecutorCheckPerms_hook = check_permissions;
}

/* How a writer gets at a table. */
typedef enum Way
{
	WAY_ORDINARY,				/* no gate, or one that has to open first */
	WAY_PASS,					/* with a lock of mode ROW SHARE */
	WAY_LOOK_AGAIN,				/* the gate is about to be closed or given */
	WAY_BEHIND,					/* after the schema change, which waits for
								 * its turn, or for the gate worker */
	WAY_QUEUE,					/* after the schema change, which is being
								 * executed */
	WAY_TOO_EARLY,				/* a schema change may come first */
} Way;

/* Returns the member whose rows this process applies, or NULL if it is none of the group. */
static const char *
find_publisher(void)
{
	foreach_ptr(NodeMember, member, node_identity_members())
		if (strcmp(member->subscription, MySubscription->name) == 0)
		return member->name;
	return NULL;
}

/* May rows of a publisher pass the gate at a table, once its lock is held? */
static bool
may_pass(const Gate *gate, const GateTable *table, const char *publisher)
{
	if (passed == gate)
		return true;
	return gate->status.state == GATE_ACTIVE &&
		(!table->confirmed ||
		 (publisher != NULL && strcmp(NameStr(gate->status.requester), publisher) == 0));
}

/*
 * Counts the transaction if it passes.  It passes only what the gate worker holds: otherwise, somebody
 * else may have a lock that ROW SHARE does not conflict with, such as that of CREATE INDEX.
 */
static Way
find_way(Oid relid, const char *publisher)
{
	Gate	   *gate;
	GateTable  *table = NULL;
	Way			result = WAY_ORDINARY;

	LWLockAcquire(gates->lock, LW_SHARED);
	gate = gate_find_active();
	if (gate != NULL)
		table = gate_find_table(gate, relid);
	if (table != NULL && may_pass(gate, table, publisher))
	{
		if (applies_early && table->confirmed && passed != gate)
			result = WAY_TOO_EARLY;
		else if (table->state == TABLE_HELD ||
				 (passed == gate &&
				  (table->state == TABLE_GIVING || table->state == TABLE_WITHDRAWN)))
		{
			if (passed != gate)
			{
				pg_atomic_fetch_add_u32(&gate->passing, 1);
				passed_failures = pg_atomic_read_u32(&gate->failures);
			}
			passed = gate;
			result = WAY_PASS;
		}
		else if (table->state != TABLE_GIVEN && gate->status.state == GATE_ACTIVE)
			result = WAY_LOOK_AGAIN;
	}
	else if (table != NULL && gate->status.state == GATE_ACTIVE)
		result = table->state == TABLE_GIVEN ? WAY_QUEUE : WAY_BEHIND;
	LWLockRelease(gates->lock);
	return result;
}

/*
 * Gives up if anybody waits for a lock of this writer, which waits for a gate: what it waits for may come after
 * that.  With this error it is applied again after a pause (apply/schema_wait.c).
 */
static void
check_cycle(Oid relid, Way way)
{
	if (blocks_others == NULL || !blocks_others())
		return;
	ereport(ERROR,
			(errcode(way == WAY_LOOK_AGAIN ? ERRCODE_T_R_DEADLOCK_DETECTED :
					 ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" waits for a schema change of the node group, and others wait for this transaction",
					get_rel_name(relid))));
}

/*
 * Opens the local table of a relation for a change, as logicalrep_rel_open() with RowExclusiveLock
 * does, past a gate.  Sets *mode to the lock.
 *
 * The table's OID is known only when the relation is open; a lock that is held while waiting for the
 * gate would be in the way of the schema change, so that one is released.
 */
LogicalRepRelMapEntry *
gate_open_relation(LogicalRepRelId relid, LOCKMODE *mode)
{
	LogicalRepRelMapEntry *entry;
	const char *publisher;
	Oid			local;
	Way			way;
	int			looks = 0;

	*mode = RowExclusiveLock;
	if (!gate_any())
		return logicalrep_rel_open(relid, *mode);
	publisher = find_publisher();
	entry = logicalrep_rel_open(relid, AccessShareLock);
	local = entry->localreloid;
	logicalrep_rel_close(entry, AccessShareLock);
	while ((way = find_way(local, publisher)) != WAY_ORDINARY && way != WAY_PASS)
	{
		if (way == WAY_TOO_EARLY)
			misspeculate("a schema change of the node group has locked the table");
		if (CheckRelationOidLockedByMe(local, RowExclusiveLock, false))
			break;
		if (way == WAY_QUEUE)
		{
			/* If the schema change is aborted, it still comes first. */
			entry = logicalrep_rel_open(relid, RowExclusiveLock);
			way = find_way(local, publisher);
			if (way == WAY_ORDINARY)
				return entry;
			logicalrep_rel_close(entry, RowExclusiveLock);
		}
		/* While G pauses. */
		else if (way == WAY_LOOK_AGAIN && ConditionalLockRelationOid(local, RowExclusiveLock))
			break;
		gate_nap(LOOK_INTERVAL);
		if (++looks % (way == WAY_LOOK_AGAIN ? PATIENT_LOOKS_PER_CHECK : LOOKS_PER_CHECK) == 0)
			check_cycle(local, way);
	}
	if (way == WAY_PASS)
	{
		/*
		 * Who had the table before the gate worker may have changed it.  The
		 * writer may have a lock of this mode since before that, from a check
		 * of a foreign key, and then the server does not look.
		 */
		AcceptInvalidationMessages();
		*mode = RowShareLock;
	}
	entry = logicalrep_rel_open(relid, *mode);
	if (entry->localreloid == local)
		return entry;

	/* Another table has got the name meanwhile, and it may have a gate. */
	logicalrep_rel_close(entry, *mode);
	return gate_open_relation(relid, mode);
}

/* Announces that the current transaction wants the locks; returns false if there is no gate. */
static bool
announce(int64 lock)
{
	Gate	   *gate;
	bool		result = false;

	LWLockAcquire(gates->lock, LW_EXCLUSIVE);
	gate = gate_find_active();
	if (gate != NULL && gate->status.lock == lock)
		executed_lock = lock;
	if (gate != NULL && gate->status.taker != INVALID_PROC_NUMBER &&
		gate->status.taker != MyProcNumber)
		 /* who has them keeps them */ ;
	else if (gate != NULL && gate->status.state == GATE_ACTIVE && gate->status.num_tables > 0)
	{
		gate->status.taker = MyProcNumber;
		gate->status.taker_lock = lock;
		gate->status.offered = gate->status.taken = false;
		taken_gate = gate->status.lock;
		gate_wake(gate->status.worker);
		result = true;
	}
	else if (gate != NULL && gate->status.lock == lock)
	{
		/* It locks no tables, and ends with this transaction all the same. */
		gate->status.taker = MyProcNumber;
		gate->status.offered = gate->status.taken = true;
		taken_gate = lock;
	}
	LWLockRelease(gates->lock);
	return result;
}

/* Waits until the gate worker has offered its locks; returns them, or NIL if the gate has ended. */
static List *
wait_for_offer(void)
{
	TimestampTz end = TimestampTzPlusSeconds(GetCurrentTimestamp(), TAKE_TIMEOUT_SECONDS);

	for (;;)
	{
		Gate	   *gate;
		List	   *tables = NIL;
		bool		offered;

		LWLockAcquire(gates->lock, LW_SHARED);
		gate = gate_find(taken_gate);
		offered = gate != NULL && gate->status.offered;
		for (int i = 0; offered && i < gate->status.num_tables; i++)
			if (gate->status.tables[i].state == TABLE_GIVING)
				tables = lappend_oid(tables, gate->status.tables[i].relid);
		LWLockRelease(gates->lock);
		if (gate == NULL || offered)
			return tables;
		if (GetCurrentTimestamp() > end)
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not take over the locks of the node group")));
		gate_nap(LOOK_INTERVAL);
	}
}

/*
 * Locks a table for as long as the lock of the group exists: a rollback to a savepoint behind that must not
 * release what it stands for.
 */
void
gate_lock_table(Oid relid, LOCKMODE mode)
{
	ResourceOwner owner = CurrentResourceOwner;
	MemoryContext context = MemoryContextSwitchTo(TopTransactionContext);
	TableLock  *lock = palloc(sizeof(TableLock));

	CurrentResourceOwner = TopTransactionResourceOwner;
	PG_TRY();
	{
		LockRelationOid(relid, mode);
		lock->relid = relid;
		lock->mode = mode;
		table_locks = lappend(table_locks, lock);
	}
	PG_FINALLY();
	{
		CurrentResourceOwner = owner;
		MemoryContextSwitchTo(context);
	}
	PG_END_TRY();
}

static void
lock_tables(List *tables)
{
	int			timeout = DeadlockTimeout;

	PG_TRY();
	{
		DeadlockTimeout = TAKE_DEADLOCK_TIMEOUT;
		foreach_oid(relid, tables)
			gate_lock_table(relid, ShareLock);
	}
	PG_FINALLY();
	{
		DeadlockTimeout = timeout;
	}
	PG_END_TRY();
}

/*
 * The caller is about to execute the schema change of "lock", or another one if that is zero: takes the
 * locks of this database's gate over, until its transaction ends.
 */
void
gate_take(int64 lock)
{
	LOCKTAG		tag;
	Gate	   *gate;
	List	   *tables;

	if (gate_none())
		return;

	/* The own lock follows, and until then the gate worker holds the tables. */
	if (passed != NULL)
		pg_atomic_fetch_sub_u32(&passed->passing, 1);
	passed = NULL;

	gate_tag(&tag);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	if (announce(lock))
	{
		tables = wait_for_offer();
		lock_tables(tables);
		LWLockAcquire(gates->lock, LW_EXCLUSIVE);
		gate = gate_find(taken_gate);
		if (gate != NULL)
		{
			for (int i = 0; i < gate->status.num_tables; i++)
				if (gate->status.tables[i].state == TABLE_GIVING)
					gate->status.tables[i].state = TABLE_GIVEN;
			gate->status.taken = true;
		}
		LWLockRelease(gates->lock);
	}
	LockRelease(&tag, ExclusiveLock, false);
}

/* The group lock of this node's gate belongs to the current subtransaction. */
void
gate_own(int64 lock)
{
	own_lock = lock;
	own_subtransaction = GetCurrentSubTransactionId();
}

int64
gate_own_lock(void)
{
	return own_lock;
}

/* Does a lock of the group hold back the local writers of a table? */
bool
gate_locks(int64 lock, Oid relid)
{
	Gate	   *gate;
	bool		result;

	if (lock == 0 || gate_none())
		return false;
	LWLockAcquire(gates->lock, LW_SHARED);
	gate = gate_find(lock);
	result = gate != NULL && gate_find_table(gate, relid) != NULL;
	LWLockRelease(gates->lock);
	return result;
}
