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
 * DETACH ... FINALIZE is announced as the DETACH that it completes.
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
 *	  CONCURRENT_ATTEMPTS times.  Then it stays in the table as failed, with its error.
 *
 * Crashes.  What is between 1 and 3 is in the table.  After a crash, L starts B again, which drops
 * an invalid index of that name on that table, if it belongs to the role, before it builds anew.
 *
 * The lock.  B holds a lock on (subscription) while it executes P, L holds it while it counts an
 * attempt, and so does W in step 5.  All of them change rows only under this lock, apart from step 1.
 * L never waits for it: if it is held, B is at work, or W.  If L ends, B goes on; the next L
 * finds the lock held.
 *
 * 5. A later schema change S that touches the same relations must not overtake P.  W compares the
 *	  names that the publisher has sent along with both.  If these have one in common, or if it does not know them, W takes
 *	  the lock, so it waits for B, if B is running.  Then, if P is still in the table, W
 *	  executes P itself, without CONCURRENTLY, in its own transaction before S, and removes it.
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

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_subscription.h"
#include "commands/extension.h"
#include "ddl/concurrent.h"
#include "ddl/ddl_kind.h"
#include "ddl/ddl_queue.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "replication/logicallauncher.h"
#include "replication/worker_internal.h"
#include "shmem.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/pg_lsn.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

/* Distinguishes the lock from those of the server on subscriptions. */
#define LOCK_SUBID 1

/* Columns of weft.ddl_concurrent. */
enum
{
	COLUMN_SUBID,
	COLUMN_ID,
	COLUMN_LSN,
	COLUMN_STORED_AT,
	COLUMN_STATE,
	COLUMN_ATTEMPTS,
	COLUMN_RETRY_AT,
	COLUMN_LAST_ERROR,
	COLUMN_MESSAGE,
	NUM_COLUMNS
};

/* The subscription of which this transaction has stored a statement. */
static Oid	stored_for = InvalidOid;

/* The table, or InvalidOid if this database has no extension. */
static Oid
table_oid(void)
{
	Oid			extension = get_extension_oid("weft", true);
	Oid			relid;

	if (!OidIsValid(extension))
		return InvalidOid;
	relid = get_relname_relid("ddl_concurrent", get_namespace_oid("weft", true));
	if (!OidIsValid(relid) || getExtensionOfObject(RelationRelationId, relid) != extension)
		return InvalidOid;
	return relid;
}

static const char *
state_of(const ConcurrentRow *row)
{
	if (row->failed)
		return "failed";
	return row->attempts > 0 ? "started" : "waiting";
}

/* Logical decoding ignores the table, as far as it can. */
static void
insert_row(const ConcurrentRow *row)
{
	Relation	rel = table_open(table_oid(), RowExclusiveLock);
	Datum		values[NUM_COLUMNS];
	bool		nulls[NUM_COLUMNS] = {0};
	HeapTuple	tuple;

	values[COLUMN_SUBID] = ObjectIdGetDatum(row->subid);
	values[COLUMN_ID] = Int64GetDatum(row->id);
	values[COLUMN_LSN] = LSNGetDatum(row->lsn);
	values[COLUMN_STORED_AT] = TimestampTzGetDatum(row->stored_at);
	values[COLUMN_STATE] = CStringGetTextDatum(state_of(row));
	values[COLUMN_ATTEMPTS] = Int32GetDatum(row->attempts);
	values[COLUMN_RETRY_AT] = TimestampTzGetDatum(row->retry_at);
	nulls[COLUMN_LAST_ERROR] = row->last_error == NULL;
	values[COLUMN_LAST_ERROR] = row->last_error ? CStringGetTextDatum(row->last_error) : (Datum) 0;
	values[COLUMN_MESSAGE] = CStringGetTextDatum(row->json);
	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	PushActiveSnapshot(GetTransactionSnapshot());
	heap_insert(rel, tuple, GetCurrentCommandId(true), HEAP_INSERT_NO_LOGICAL, NULL);
	PopActiveSnapshot();
	heap_freetuple(tuple);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

void
concurrent_remove(const ConcurrentRow *row)
{
	Relation	rel = table_open(table_oid(), RowExclusiveLock);
	ItemPointerData place = row->place;

	PushActiveSnapshot(GetTransactionSnapshot());
	simple_heap_delete(rel, &place);
	PopActiveSnapshot();
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/* Changes a row. */
void
concurrent_replace(const ConcurrentRow *row)
{
	concurrent_remove(row);
	insert_row(row);
}

static ConcurrentRow *
read_row(HeapTuple tuple, TupleDesc desc)
{
	ConcurrentRow *row = palloc0(sizeof(ConcurrentRow));
	Datum		values[NUM_COLUMNS];
	bool		nulls[NUM_COLUMNS];

	heap_deform_tuple(tuple, desc, values, nulls);
	row->place = tuple->t_self;
	row->subid = DatumGetObjectId(values[COLUMN_SUBID]);
	row->id = DatumGetInt64(values[COLUMN_ID]);
	row->lsn = DatumGetLSN(values[COLUMN_LSN]);
	row->stored_at = DatumGetTimestampTz(values[COLUMN_STORED_AT]);
	row->failed = strcmp(TextDatumGetCString(values[COLUMN_STATE]), "failed") == 0;
	row->attempts = DatumGetInt32(values[COLUMN_ATTEMPTS]);
	row->retry_at = DatumGetTimestampTz(values[COLUMN_RETRY_AT]);
	if (!nulls[COLUMN_LAST_ERROR])
		row->last_error = TextDatumGetCString(values[COLUMN_LAST_ERROR]);
	row->json = TextDatumGetCString(values[COLUMN_MESSAGE]);
	return row;
}

static int
compare_ids(const ListCell *a, const ListCell *b)
{
	int64		first = ((ConcurrentRow *) lfirst(a))->id;
	int64		second = ((ConcurrentRow *) lfirst(b))->id;

	return first < second ? -1 : first > second;
}

/* Returns the rows of a subscription, or all of them, as they are now, in the order of their IDs. */
static List *
read_rows(Oid subid)
{
	Oid			relid = table_oid();
	List	   *result = NIL;
	Relation	rel;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	if (!OidIsValid(relid))
		return NIL;
	rel = table_open(relid, AccessShareLock);
	ScanKeyInit(&key, COLUMN_SUBID + 1, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(subid));
	scan = systable_beginscan(rel, InvalidOid, false, NULL, OidIsValid(subid) ? 1 : 0, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		result = lappend(result, read_row(tuple, RelationGetDescr(rel)));
	systable_endscan(scan);
	table_close(rel, NoLock);
	list_sort(result, compare_ids);
	return result;
}

/* Returns a statement that is waiting, or NULL. */
ConcurrentRow *
concurrent_get(Oid subid, int64 id)
{
	foreach_ptr(ConcurrentRow, row, read_rows(subid))
		if (row->id == id && !row->failed)
		return row;
	return NULL;
}

DdlMessage *
concurrent_message(const ConcurrentRow *row)
{
	return ddl_message_read(row->json, strlen(row->json));
}

/*
 * Takes the lock of a subscription, until the transaction ends, or the session.  Returns false if it is held, and
 * the caller does not want to wait.  An abort ends the session's, too.
 */
bool
concurrent_lock(Oid subid, bool session, bool wait)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, SubscriptionRelationId, subid, LOCK_SUBID);
	return LockAcquire(&tag, ExclusiveLock, session, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/* Once a statement is stored, tells the leader. */
static void
transaction_event(XactEvent event, void *arg)
{
	SubscriptionShared *entry;

	if (!OidIsValid(stored_for) ||
		(event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT))
		return;
	entry = shmem_find(stored_for);
	if (entry && event == XACT_EVENT_COMMIT)
		pg_atomic_write_u32(&entry->concurrent_ddl, 1);
	stored_for = InvalidOid;
}

/* The leader is to be told when the transaction commits. */
static void
tell_leader(Oid subid)
{
	static bool registered = false;

	if (!registered)
		RegisterXactCallback(transaction_event, NULL);
	registered = true;
	stored_for = subid;
}

/*
 * Stores a statement to be executed later; returns false if it must be executed now, because there is no
 * table here to store it in.
 */
bool
concurrent_store(const DdlMessage *message, const char *json, int length, XLogRecPtr lsn)
{
	ConcurrentRow row = {0};

	if (!OidIsValid(table_oid()))
		return false;
	row.subid = MySubscription->oid;
	row.id = message->id;
	row.lsn = lsn;
	row.stored_at = row.retry_at = GetCurrentTimestamp();
	row.json = pnstrdup(json, length);
	insert_row(&row);
	tell_leader(row.subid);
	return true;
}

static bool
have_common(List *names, List *others)
{
	foreach_ptr(char, name, names)
		foreach_ptr(char, other, others)
		if (strcmp(name, other) == 0)
		return true;
	return false;
}

/* Must a schema change not overtake another one?  Nothing may be known of either. */
static bool
depends(const DdlMessage *later, const DdlMessage *earlier)
{
	return later->touched == NIL || earlier->touched == NIL ||
		have_common(later->touched, earlier->touched);
}

static bool
is_blocked(const DdlMessage *later)
{
	foreach_ptr(ConcurrentRow, row, read_rows(MySubscription->oid))
		if (!row->failed && depends(later, concurrent_message(row)))
		return true;
	return false;
}

/* Drops an index that a worker has left behind. */
static void
drop_leftover(Oid index)
{
	ObjectAddress address;

	ObjectAddressSet(address, RelationRelationId, index);
	performDeletion(&address, DROP_RESTRICT, PERFORM_DELETION_INTERNAL);
	CommandCounterIncrement();
}

/* Is it an invalid index of that table, and does it belong to the role? */
static bool
is_leftover(Oid index, Oid table, Oid role)
{
	return get_rel_relkind(index) == RELKIND_INDEX && IndexGetRelation(index, true) == table &&
		!get_index_isvalid(index) && object_ownercheck(RelationRelationId, index, role);
}

/*
 * The invalid index that an earlier attempt to create it has left behind, or InvalidOid.  While another
 * session builds an index, that is invalid, too; so the table is locked until the transaction ends.
 */
static Oid
find_leftover(Node *statement, Oid role)
{
	IndexStmt  *create = (IndexStmt *) statement;
	Oid			table;
	Oid			index;

	if (!IsA(statement, IndexStmt) || create->idxname == NULL)
		return InvalidOid;
	table = RangeVarGetRelid(create->relation, NoLock, true);
	if (!OidIsValid(table))
		return InvalidOid;
	index = get_relname_relid(create->idxname, get_rel_namespace(table));
	if (!OidIsValid(index) || !is_leftover(index, table, role))
		return InvalidOid;
	LockRelationOid(table, ShareUpdateExclusiveLock);
	return SearchSysCacheExists1(INDEXRELID, ObjectIdGetDatum(index)) &&
		is_leftover(index, table, role) ? index : InvalidOid;
}

/* Returns its qualified name, or NULL. */
char *
concurrent_leftover(Node *statement, Oid role)
{
	Oid			index = find_leftover(statement, role);

	if (!OidIsValid(index))
		return NULL;
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(index)),
									  get_rel_name(index));
}

/* Completes a DETACH PARTITION CONCURRENTLY that an earlier attempt has begun. */
static void
finalize_detach(Node *statement)
{
	if (!IsA(statement, AlterTableStmt))
		return;
	foreach_node(AlterTableCmd, command, ((AlterTableStmt *) statement)->cmds)
	{
		PartitionCmd *detach = (PartitionCmd *) command->def;
		Oid			partition;

		if (command->subtype != AT_DetachPartition)
			continue;
		partition = RangeVarGetRelid(detach->name, NoLock, true);
		if (!OidIsValid(partition) || !get_rel_relispartition(partition) ||
			!PartitionHasPendingDetach(partition))
			continue;
		command->subtype = AT_DetachPartitionFinalize;
		detach->concurrent = false;
	}
}

/* Prepares the tree of a statement to be executed inside of a transaction block, or outside. */
void
concurrent_set_mode(Node *statement, bool concurrent)
{
	ddl_set_concurrent(statement, concurrent);
	finalize_detach(statement);
	if (!concurrent)
	{
		Oid			leftover = find_leftover(statement, GetUserId());

		if (OidIsValid(leftover))
			drop_leftover(leftover);
	}
}

/*
 * Executes all statements that are waiting and that a later one must not overtake; see the head of this file.
 */
void
concurrent_finish(const DdlMessage *later, ConcurrentExecute execute)
{
	if (!is_blocked(later))
		return;
	(void) concurrent_lock(MySubscription->oid, false, true);
	foreach_ptr(ConcurrentRow, row, read_rows(MySubscription->oid))
	{
		DdlMessage *message = concurrent_message(row);

		if (row->failed || !depends(later, message))
			continue;
		ereport(LOG,
				(errmsg("schema change " INT64_FORMAT " of subscription \"%s\" is executed without CONCURRENTLY",
						message->id, MySubscription->name),
				 errdetail("A later schema change touches the same relations.")));
		execute(message);
		ddl_queue_record(MySubscription->name, message, row->lsn, "applied");
		concurrent_remove(row);
	}
}

/* Marks a statement as failed for good. */
static void
give_up(ConcurrentRow *row, const char *problem)
{
	row->failed = true;
	row->last_error = pstrdup(problem);
	concurrent_replace(row);
	ereport(WARNING,
			(errmsg("schema change " INT64_FORMAT " of subscription \"%s\" has failed",
					row->id, MySubscription->name),
			 errdetail("%s", problem)));
}

/*
 * For the leader: chooses the next statement of its subscription to be executed.  Holds the lock
 * until the transaction ends.  The caller starts a worker, and calls concurrent_taken() if it
 * has.
 */
ConcurrentChoice
concurrent_take(Oid subid, ConcurrentTask *task)
{
	Oid			relid = table_oid();

	if (!OidIsValid(relid))
		return CONCURRENT_NONE;
	if (!ConditionalLockRelationOid(relid, RowExclusiveLock) ||
		!concurrent_lock(subid, false, false))
		return CONCURRENT_LATER;
	foreach_ptr(ConcurrentRow, row, read_rows(subid))
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
			return CONCURRENT_TAKEN;

		/* The last worker had only to clean up, and did not even do that. */
		give_up(row, OidIsValid(task->role) ? "The background worker has ended unexpectedly." :
				psprintf("Role \"%s\" does not exist.", message->role));
	}
	return CONCURRENT_NONE;
}

/* A worker has been started for the statement: counts an attempt. */
void
concurrent_taken(const ConcurrentTask *task)
{
	ConcurrentRow *row = concurrent_get(task->subid, task->id);

	row->attempts++;
	row->retry_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												wal_retrieve_retry_interval);
	concurrent_replace(row);
}

/* Removes the statements of subscriptions that were dropped. */
void
concurrent_forget_others(void)
{
	foreach_ptr(ConcurrentRow, row, read_rows(InvalidOid))
		if (!SearchSysCacheExists1(SUBSCRIPTIONOID, ObjectIdGetDatum(row->subid)))
		concurrent_remove(row);
}
