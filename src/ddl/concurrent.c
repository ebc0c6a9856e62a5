/*
 * concurrent.c
 *	  Schema changes that are executed outside of the stream.
 *
 * CREATE INDEX CONCURRENTLY, DROP INDEX CONCURRENTLY and DETACH PARTITION CONCURRENTLY use several
 * transactions, and wait for those of others.  REINDEX CONCURRENTLY does so as well, but it is no
 * schema change: it rebuilds what a server has stored, for reasons of that server.
 *
 * The publisher.  Each of these commands does its last step, which makes an index valid, or
 * removes it, in a transaction that is still open when it returns.  The row of weft.ddl_queue is
 * inserted in that transaction (capture.c).  Therefore a build that is complete is announced, and one
 * that is announced is complete, whenever the server crashes.  A build that fails leaves an
 * invalid index on the publisher, which subscribers do not know; convert.c says how that is dropped.
 * DETACH ... FINALIZE is announced as the DETACH that it completes.  A unique index is dropped for
 * subscribers before that, in the first transaction, and in its place in the stream (capture.c).
 *
 * The subscriber.
 *
 * Actors: writer W, which meets the statement P in the stream; leader L of the subscription;
 * worker B, a background worker that executes one statement.
 *
 * 1. W inserts P into weft.ddl_concurrent, in the transaction in which it applies what is around
 *	  P.  Therefore P is stored exactly if the subscription has progressed beyond it.
 * 2. L looks for the oldest statement of its subscription, counts an attempt, and starts B for it,
 *	  one at a time (receive/concurrent_start.c).
 * 3. B executes P as its role, in a session of that role's own, so there is nobody whose rights
 *	  the role's code could get at.  In P's last transaction, B removes it from the table and
 *	  notes it in the history.  Therefore P is removed exactly if it is complete.
 * 4. If P fails, B drops what it has left behind, and L starts it again later, up to
 *	  CONCURRENT_ATTEMPTS times.  Then it stays in the table as failed, with its error, until a user
 *	  calls weft.retry_ddl() or weft.skip_ddl(), or a later DROP INDEX makes it needless.  If B is
 *	  told to end, because the server is being shut down, for instance, or finds a deadlock, or yields (5.), that does not
 *	  count as an attempt.
 *
 * If the index exists already, with the same definition, then P is complete: two members of a group
 * have created it, or several publishers.  (concurrent_index.c)
 *
 * Crashes.  What is between 1 and 3 is in the table.  After a crash, L starts B again, which drops
 * the invalid index that the attempt before has created, before it builds anew.  Its OID is in the
 * table: the transaction that creates the index stores it there.  An invalid index that a
 * session has left behind is not dropped; P fails.
 *
 * The lock.  B holds a lock on (subscription) while it executes P, L holds it while it counts an
 * attempt, and so does W in step 5.  They change rows only while they hold it.  The exceptions are step 1
 * and DROP SUBSCRIPTION, which removes all rows of its own; whoever comes later finds none.
 * Users' functions change only rows that have failed, which nobody else does, and hold another lock
 * among themselves.
 * L never waits for the lock: if it is held, B is at work, or W.  If L ends, B goes on; the next L
 * finds the lock held.
 *
 * 5. A later schema change S that touches the same relations must not overtake P (concurrent_order.c).
 *	  W takes the lock, so it waits for B, if B is running.  If P has not been tried, W lets go of the lock,
 *	  wakes L, and looks again, up to START_NAPS times: S often follows P at once, and P without CONCURRENTLY
 *	  would hold back all who write to the table until it is complete.  L looks while it waits for the end of S, too.
 *	  Then, if P is still in the table, W executes P itself, without CONCURRENTLY, in its own transaction before S, and removes it.  It does so
 *	  in a subtransaction: if P fails, it has failed for good, and S is executed nevertheless.
 *	  If B only waits for sessions that W would not have to wait for, B yields after a second (concurrent_yield.c), which does
 *	  not count as an attempt, and W goes on.  L starts statements in their order.  Therefore W does not wait for a worker for
 *	  those behind one that has been tried in vain, either.
 *
 * Groups.  P and S may have come from different members, by different subscriptions.  W looks at the rows of all
 * subscriptions of its group, and takes the locks of several in the order of their OIDs.  If S is
 * concurrent, too, L does not start a worker for it before P is gone.
 *
 * The table of P.  B locks it before it has a snapshot, as P itself will, and keeps the lock.  Whoever holds
 * that lock, building another index of the table, waits for all older snapshots, and would otherwise
 * wait for B.
 *
 * Possible deadlock: W has applied rows of P's table T in the transaction with S, or has an old snapshot.  B waits for
 * W's transaction, because P has to wait for all that have T's old list of indexes.  W waits for B's
 * lock.  Both waits are in the server's lock manager, which finds the deadlock.  W's
 * transaction is committed to, so W waits for longer before it looks (apply/attempt.c), and B is the
 * victim: it aborts, which releases the lock.  Then W goes on and executes P itself.
 *
 * L does not wait for a lock on weft.ddl_concurrent either: if somebody has locked it, L looks again later.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_subscription.h"
#include "common/int.h"
#include "ddl/capture.h"
#include "ddl/concurrent.h"
#include "ddl/concurrent_detach.h"
#include "ddl/concurrent_index.h"
#include "ddl/concurrent_order.h"
#include "ddl/created_names.h"
#include "ddl/ddl_kind.h"
#include "ddl/ddl_queue.h"
#include "ddl/repeated_rows.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "replication/logicallauncher.h"
#include "replication/worker_internal.h"
#include "shmem.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "wait_event.h"

/* Within this time, a worker yields (concurrent_yield.c); in milliseconds. */
#define YIELD_PATIENCE 10000

/* How often, and after how many milliseconds, a writer looks whether a worker has been started. */
#define START_NAPS 100
#define NAP 50

/* Distinguish the locks from those of the server on subscriptions. */
#define LOCK_SUBID 1
#define LOCK_BY_HAND 2

/* The subscriptions whose leaders are to look for statements once this transaction has committed. */
static List *told = NIL;

void
concurrent_lock_tag(Oid subid, LOCKTAG *tag)
{
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, SubscriptionRelationId, subid, LOCK_SUBID);
}

/*
 * Takes the lock of a subscription, until the transaction ends, or the session.  Returns false if it is held, and
 * the caller does not want to wait.  An abort ends the session's, too.
 */
bool
concurrent_lock(Oid subid, bool session, bool wait)
{
	LOCKTAG		tag;

	concurrent_lock_tag(subid, &tag);
	return LockAcquire(&tag, ExclusiveLock, session, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/* Once a statement is stored, tells the leaders. */
static void
transaction_event(XactEvent event, void *arg)
{
	if (told == NIL || (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
						event != XACT_EVENT_PREPARE))
		return;
	foreach_oid(subid, told)
	{
		SubscriptionShared *entry = shmem_find(subid);

		if (entry && event == XACT_EVENT_COMMIT)
			pg_atomic_write_u32(&entry->concurrent_ddl, 1);
	}
	told = NIL;
}

/* The leader is to be told when the transaction commits. */
static void
tell_leader(Oid subid)
{
	static bool registered = false;
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	if (!registered)
		RegisterXactCallback(transaction_event, NULL);
	registered = true;
	told = list_append_unique_oid(told, subid);
	MemoryContextSwitchTo(old);
}

/*
 * Stores a statement to be executed later; returns false if it must be executed now, because there is no
 * table here to store it in.
 */
bool
concurrent_store(const DdlMessage *message, const char *json, int length, XLogRecPtr lsn)
{
	ConcurrentRow row = {0};

	if (!OidIsValid(concurrent_table()))
		return false;
	row.subid = MySubscription->oid;
	row.subname = MySubscription->name;
	row.id = message->id;
	row.lsn = lsn;
	row.stored_at = row.retry_at = GetCurrentTimestamp();
	row.json = pnstrdup(json, length);
	concurrent_insert(&row);
	tell_leader(row.subid);
	return true;
}

/* Prepares the tree of a statement to be executed inside of a transaction block, or outside. */
void
concurrent_set_mode(Node *statement, bool concurrent)
{
	ddl_set_concurrent(statement, concurrent);
	concurrent_detach_finalize(statement);
}

/* A statement has failed for good. */
void
concurrent_fail(ConcurrentRow *row, const char *subscription, const char *problem)
{
	DdlMessage *message = concurrent_message(row);
	const char *name = quote_literal_cstr(subscription);

	row->failed = true;
	row->last_error = pstrdup(problem);
	concurrent_replace(row);
	ereport(WARNING,
			(errmsg("schema change " INT64_FORMAT " of subscription \"%s\" has failed",
					row->id, subscription),
			 errdetail("%s", problem),
			 errcontext("schema change of role \"%s\": %s", message->role, message->statement),
			 errhint("Remove the cause, and run SELECT weft.retry_ddl(%s, " INT64_FORMAT
					 "). If you have made the schema change by hand, or do not want it, run SELECT weft.skip_ddl(%s, " INT64_FORMAT ").",
					 name, row->id, name, row->id)));
}

/*
 * A DROP INDEX must not fail because the CREATE INDEX has failed here, or was given up: then there
 * may be nothing to be dropped.
 */
void
concurrent_allow_missing(DdlMessage *later)
{
	if (concurrent_dropped(later) != NULL || concurrent_given_up(later) != NULL)
		later->may_be_gone = true;
}

/*
 * Called before a DROP INDEX is executed: returns what the history is to say of it, if there is nothing
 * to drop, because the CREATE INDEX was given up; otherwise NULL.
 */
char *
concurrent_missing(const DdlMessage *later)
{
	char	   *index = concurrent_given_up(later);

	if (index == NULL || OidIsValid(RangeVarGetRelid(makeRangeVarFromNameList(stringToQualifiedNameList(index, NULL)),
													 NoLock, true)))
		return NULL;
	return psprintf("there was no index %s, whose creation had been given up", index);
}

/* The same DROP INDEX has been executed, in this transaction: nobody needs the CREATE INDEX any more. */
void
concurrent_forget_dropped(const DdlMessage *later)
{
	ConcurrentRow *row;

	while ((row = concurrent_dropped(later)) != NULL && concurrent_remove(row))
		ddl_queue_record_with(get_subscription_name(row->subid, false), concurrent_message(row),
							  row->lsn, "skipped",
							  psprintf("schema change " INT64_FORMAT " has dropped the index",
									   later->id));
}

/* May the statement succeed if it is tried again, without anybody doing anything? */
static bool
is_temporary(const ErrorData *error)
{
	switch (ERRCODE_TO_CATEGORY(error->sqlerrcode))
	{
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case ERRCODE_OPERATOR_INTERVENTION:
			return true;
		default:
			return error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE;
	}
}

/* Executes a statement, on behalf of its subscription, in the current subtransaction. */
static void
execute_row(const ConcurrentRow *row, ConcurrentExecute execute)
{
	DdlMessage *message = concurrent_message(row);
	char	   *missing;
	bool		made;

	concurrent_allow_missing(message);
	missing = concurrent_missing(message);
	made = execute(message, row->made);
	ddl_queue_record_with(MySubscription->name, message, row->lsn, "applied",
						  made ? missing : CONCURRENT_EXISTS);
	concurrent_forget_dropped(message);
	(void) concurrent_remove(row);
}

/*
 * Executes a statement before a later one.  If it fails, it has failed for good, and what follows
 * does not wait for it any more.
 */
static void
execute_early(ConcurrentRow *row, ConcurrentExecute execute)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	Subscription *own = MySubscription;
	Subscription *subscription = row->subid == own->oid ? own : GetSubscription(row->subid, true);
	ErrorData  *error = NULL;
	Oid			leftover;

	if (subscription == NULL)
		return;
	ereport(LOG,
			(errmsg("schema change " INT64_FORMAT " of subscription \"%s\" is executed without CONCURRENTLY",
					row->id, subscription->name),
			 errdetail("A later schema change touches the same relations.")));
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		MySubscription = subscription;
		execute_row(row, execute);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		capture_replay(NULL);
		repeated_rows_end();
		created_names_end();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MySubscription = own;
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error != NULL && is_temporary(error))
		ReThrowError(error);
	if (error == NULL)
		return;

	/* The subtransaction has dropped it in vain. */
	leftover = concurrent_index_leftover(NULL, row->made);
	if (OidIsValid(leftover))
		concurrent_index_drop(leftover);
	concurrent_fail(row, subscription->name, error->message);
}

static int
compare_oids(const ListCell *a, const ListCell *b)
{
	return pg_cmp_u32(lfirst_oid(a), lfirst_oid(b));
}

/*
 * Is what the worker of a subscription executes among the statements that a later one waits for?  It executes the oldest
 * one that has not failed.
 */
static bool
is_awaited(Oid subid, List *rows, List *all)
{
	foreach_ptr(ConcurrentRow, row, all)
		if (row->subid == subid && !row->failed)
		return list_member_ptr(rows, row);
	return true;
}

/*
 * Waits for the lock of a worker that is told to yield.  It does so sooner than this process looks for a deadlock, which
 * the server would choose it to end.
 */
static void
wait_impatiently(const LOCKTAG *tag)
{
	int			timeout = DeadlockTimeout;

	PG_TRY();
	{
		DeadlockTimeout = Max(timeout, YIELD_PATIENCE);
		(void) LockAcquire(tag, CONCURRENT_IMPATIENT, false, false);
		(void) LockAcquire(tag, ExclusiveLock, false, false);
		LockRelease(tag, CONCURRENT_IMPATIENT, false);
	}
	PG_FINALLY();
	{
		DeadlockTimeout = timeout;
	}
	PG_END_TRY();
}

/*
 * Waits for a worker's lock.  The mode that is waited for tells the worker when to yield (concurrent_yield.c): a "patient"
 * writer waits for its statement to be executed.
 */
static void
wait_for_lock(Oid subid, bool patient)
{
	LOCKTAG		tag;

	concurrent_lock_tag(subid, &tag);

	/* The worker waits for older snapshots. */
	InvalidateCatalogSnapshotConditionally();
	if (patient)
		(void) LockAcquire(&tag, ExclusiveLock, false, false);
	else
		wait_impatiently(&tag);
}

/*
 * Takes the locks of the subscriptions of rows, which are some of all, all in the same order; returns the
 * subscriptions.  *waited tells whether a worker held one of them; "group_locked": the later statement has a group lock.
 */
static List *
lock_all(List *rows, List *all, bool group_locked, bool *waited)
{
	List	   *result = NIL;

	*waited = false;
	foreach_ptr(ConcurrentRow, row, rows)
		result = list_append_unique_oid(result, row->subid);
	list_sort(result, compare_oids);
	foreach_oid(subid, result)
	{
		if (concurrent_lock(subid, false, false))
			continue;
		*waited = true;
		wait_for_lock(subid, !group_locked && is_awaited(subid, rows, all));
	}
	return result;
}

static void
unlock_all(List *subids)
{
	foreach_oid(subid, subids)
	{
		LOCKTAG		tag;

		concurrent_lock_tag(subid, &tag);
		LockRelease(&tag, ExclusiveLock, false);
	}
}

/*
 * Has the worker for a statement, or for one before it, ended without having executed it?  "tried" are those whose
 * workers have ended.
 */
static bool
was_tried(const ConcurrentRow *row, List *tried)
{
	foreach_ptr(ConcurrentRow, each, tried)
		if (each->subid == row->subid && concurrent_compare(each, row) <= 0 &&
			concurrent_get(each->subid, each->id, false) != NULL)
		return true;
	return false;
}

/*
 * Wakes the leader that is to start a worker for a statement.  Returns false if no worker can be expected soon: one has
 * tried, or this is the leader.
 */
static bool
ask_for_worker(const ConcurrentRow *row, List *tried)
{
	SubscriptionShared *entry = shmem_find(row->subid);
	PGPROC	   *leader;

	if (row->failed || row->last_error != NULL || row->attempts > 1 || was_tried(row, tried) ||
		entry == NULL || entry->leader_pid == MyProcPid)
		return false;
	leader = BackendPidGetProc(entry->leader_pid);
	if (leader == NULL)
		return false;
	pg_atomic_write_u32(&entry->concurrent_ddl, 1);
	SetLatch(&leader->procLatch);
	return true;
}

static bool
ask_for_workers(List *rows, List *tried)
{
	bool		result = false;

	foreach_ptr(ConcurrentRow, row, rows)
		result |= ask_for_worker(row, tried);
	return result;
}

/*
 * Waits until all statements that a later one must not overtake have been executed, or are not going to be.  Returns the
 * subscriptions of those that are left, with their locks.
 */
static List *
await_workers(DdlMessage *later)
{
	List	   *tried = NIL;
	List	   *all;
	List	   *rows;

	for (int naps = 0;
		 (rows = concurrent_before(later, all = concurrent_rows(InvalidOid))) != NIL;
		 naps++)
	{
		bool		waited;
		List	   *locked = lock_all(rows, all, later->lock != 0, &waited);

		if (waited)
			foreach_ptr(ConcurrentRow, row, all)
				if (row->attempts > 0 && !row->failed)
				tried = lappend(tried, row);
		rows = concurrent_before(later, concurrent_rows(InvalidOid));
		if (naps >= START_NAPS || !ask_for_workers(rows, tried))
			return locked;
		unlock_all(locked);
		InvalidateCatalogSnapshotConditionally();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, NAP,
						 wait_event_id(WEFT_WAIT_SCHEMA));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return NIL;
}

/*
 * Executes all statements that are waiting and that a later one must not overtake; see the head of this file.
 */
void
concurrent_finish(DdlMessage *later, ConcurrentExecute execute)
{
	List	   *locked = await_workers(later);

	if (locked != NIL)
		foreach_ptr(ConcurrentRow, row, concurrent_before(later, concurrent_rows(InvalidOid)))
			if (list_member_oid(locked, row->subid))
			execute_early(row, execute);
	concurrent_allow_missing(later);
}

/*
 * Must a statement wait for one of another member of the group, which was stored before it?  Then its row says for
 * which one, and the log, if that may take for ever.
 */
static bool
must_wait(ConcurrentRow *row, const DdlMessage *message)
{
	List	   *others = NIL;
	ConcurrentRow *awaited;
	Subscription *subscription;
	char	   *reason;

	foreach_ptr(ConcurrentRow, other, concurrent_rows(InvalidOid))
		if (other->subid != row->subid && concurrent_compare(other, row) < 0)
		others = lappend(others, other);
	others = concurrent_before(message, others);
	if (others == NIL)
		return false;
	awaited = linitial(others);
	subscription = GetSubscription(awaited->subid, true);
	if (subscription == NULL)
		return true;
	reason = psprintf("waiting for schema change " INT64_FORMAT " of subscription \"%s\"%s",
					  awaited->id, subscription->name,
					  subscription->enabled ? "" : ", which is disabled");
	if (row->last_error != NULL && strcmp(row->last_error, reason) == 0)
		return true;
	row->last_error = reason;
	concurrent_replace(row);
	if (!subscription->enabled)
		ereport(WARNING,
				(errmsg("schema change " INT64_FORMAT " of subscription \"%s\" is waiting for schema change " INT64_FORMAT " of subscription \"%s\"",
						row->id, MySubscription->name, awaited->id, subscription->name),
				 errdetail("Both touch the same relations, and subscription \"%s\" is disabled.",
						   subscription->name),
				 errhint("Enable the subscription.")));
	return true;
}

/*
 * For the leader: chooses the next statement of its subscription to be executed.  Holds the lock
 * until the transaction ends.  The caller starts a worker, and calls concurrent_taken() if it
 * has.
 */
ConcurrentChoice
concurrent_take(Oid subid, ConcurrentTask *task)
{
	Oid			relid = concurrent_table();

	if (!OidIsValid(relid))
		return CONCURRENT_NONE;
	if (!ConditionalLockRelationOid(relid, RowExclusiveLock) ||
		!concurrent_lock(subid, false, false))
		return CONCURRENT_LATER;
	foreach_ptr(ConcurrentRow, row, concurrent_rows(subid))
	{
		DdlMessage *message;

		if (row->failed)
			continue;

		/* Those behind it wait for it, too. */
		if (row->retry_at > GetCurrentTimestamp())
			return CONCURRENT_LATER;
		message = concurrent_message(row);
		task->database = MyDatabaseId;
		task->subid = subid;
		task->id = row->id;
		task->role = get_role_oid(message->role, true);
		if (OidIsValid(task->role) && row->attempts <= CONCURRENT_ATTEMPTS)
			return must_wait(row, message) ? CONCURRENT_LATER : CONCURRENT_TAKEN;

		/* The last worker had only to clean up, and did not even do that. */
		concurrent_fail(row, MySubscription->name,
						OidIsValid(task->role) ? "The background worker has ended unexpectedly." :
						psprintf("Role \"%s\" does not exist.", message->role));
	}
	return CONCURRENT_NONE;
}

/* A worker has been started for the statement: counts an attempt. */
void
concurrent_taken(const ConcurrentTask *task)
{
	ConcurrentRow *row = concurrent_get(task->subid, task->id, false);

	/* It has waited for another one, and does so no more. */
	if (row->attempts == 0)
		row->last_error = NULL;
	row->attempts++;
	row->retry_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												wal_retrieve_retry_interval);
	concurrent_replace(row);
}

/*
 * Returns a statement that has failed, for a user's session.  Nobody else touches it; a second
 * session waits until the transaction ends.
 */
static ConcurrentRow *
failed_row(Oid subid, int64 id)
{
	LOCKTAG		tag;

	if (!OidIsValid(concurrent_table()))
		return NULL;
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, SubscriptionRelationId, subid, LOCK_BY_HAND);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	return concurrent_get(subid, id, true);
}

/* Makes a statement that has failed be executed again; returns false if there is none. */
bool
concurrent_retry(Oid subid, int64 id)
{
	ConcurrentRow *row = failed_row(subid, id);

	if (row == NULL)
		return false;
	row->failed = false;
	row->attempts = 0;
	row->last_error = NULL;
	row->retry_at = GetCurrentTimestamp();
	concurrent_replace(row);
	tell_leader(subid);
	return true;
}

/* Gives up a statement that has failed; returns false if there is none. */
bool
concurrent_give_up(Oid subid, const char *subscription, int64 id, const char *user)
{
	ConcurrentRow *row = failed_row(subid, id);

	if (row == NULL)
		return false;
	ddl_queue_record_skipped(subscription, concurrent_message(row), row->lsn, user);
	(void) concurrent_remove(row);
	return true;
}
