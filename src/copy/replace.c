/*
 * replace.c
 *	  Copies a table again whose rows are already there, for weft.resync_table().
 *
 * F is the function (api/resync_table.c), K a slot on the publisher, L the leader of the
 * subscription, W the table's synchronization worker, "native" the server without Weft, R any
 * reader.
 *
 * The old rows are deleted and the new ones copied in one transaction of W's, the one in
 * which the server's own code copies a table.  Therefore R sees all the old rows or all the
 * new ones, whatever its snapshot is: rows are deleted, not truncated, and no index is
 * suspended.  Before that commit, nothing that happens to W changes what R sees, and W
 * starts again.  No trigger of a foreign key fires, as in all replication, so rows that
 * refer to the table stay as they are.
 *
 * How the request is stored.  A table whose copy is finished, but which has not caught up,
 * is in state FINISHEDCOPY, and the server never stores a position with that state.  F
 * stores FINISHEDCOPY with a position: this is the request.  It is dropped with the
 * subscription, or when the table leaves it, and the server's own record of the end of the
 * copy, which is part of the copy's transaction, removes it.  Therefore the rows cannot be
 * replaced without the request's end, nor the reverse.
 *
 * What the position means.  The old rows are what they would be if they had been copied at
 * this position: they have every change of a transaction that ends up to it, and none of a
 * later one.  It is the greatest of three, each of which is true by itself:
 *	 - the position of the subscription's origin, which is that of the last commit here;
 *	 - that with which the table became READY, because the server may have skipped its
 *	   changes up to there without moving the origin;
 *	 - that which L has confirmed, which may be later because nothing was to be applied.
 *
 * The slot K.  F copies the subscription's slot on the publisher while L is stopped (keep_slot.c).
 * K has every change after the position until the table is synchronized.  Therefore the table
 * can go on from the old rows as well as from the new ones:
 *	 - The copy.  W needs a slot for its snapshot only, and makes a temporary one, of which
 *	   nothing is left if W dies.  W catches up from K: it begins where the snapshot was taken,
 *	   and K has everything after that, too.
 *	 - Cancellation (weft.cancel_resync()).  The old rows take the place of a copy that was made
 *	   at the position: the request becomes FINISHEDCOPY without a position, and an origin of
 *	   the table's synchronization stands at the position.  The server's code in the next W
 *	   catches up from K, as after any copy.
 * If the publisher has dropped or invalidated K, then W makes a slot of K's name that begins at the
 * snapshot, as the server would, and the request cannot be cancelled.  W looks at K before it
 * deletes rows, and again before its transaction may commit.
 *
 * The steps of a cancellation.  C is the function's process.  It holds the same locks as F, and
 * stops W.  If W's transaction has committed, there is no request any more, and C fails.
 *	 1. C creates an origin with a name of Weft's, and commits: the mark.  An origin must not be
 *		moved in the transaction that creates it, because moving is not rolled back.
 *	 2. The next W, before it connects to the publisher, finds the mark.  In one transaction it
 *		moves that origin to the position, gives it the server's name, and stores
 *		FINISHEDCOPY without a position.  If W dies before that is committed, then the mark
 *		is still there, and moving it again does no harm.
 *
 * Why a native worker cannot add the rows to the old ones.  If the server is restarted without
 * Weft while there is a request, the native worker reads FINISHEDCOPY, looks for the
 * replication origin of the table's synchronization, which does not exist, and fails.  It
 * must not find DATASYNC, the state in which it would copy and drop K, nor an origin:
 *
 *	 1. F drops the origin, which a READY table does not need.
 *	 2. W, before it connects to the publisher, finds the request and says INIT in shared
 *		memory only.  The server's code in W reads it there, stores DATASYNC, and creates the
 *		origin.
 *	 3. Before that transaction commits, W stores the request again, and renames the origin.
 *		(The origin's ID remains taken.  W goes on by the ID.)
 *	 4. At the end of the copy's transaction, W gives the origin its name again.
 *
 * An origin that was renamed in 3 and not in 4 is left over.  The next attempt drops it.  If
 * there is none, because the subscription has been dropped or the table has left it, then
 * the next call of F in the database does.
 *
 * Why no change is lost or applied twice.  F holds AccessExclusiveLock on the subscription and
 * on pg_subscription_rel while it stops L, and W if there is one, until it commits.  L ends
 * after its writers (receive/writers.c), and its parallel apply workers; everything that
 * they have not committed, streamed transactions among it, is rolled back and will be sent
 * again.  The next L waits for these locks in its start, so it knows nothing but the new
 * state.  Let P be the replication origin's position then:
 *	 - A transaction whose end is not after P is applied in the old rows.  W deletes them: it
 *	   is started by the new L, after everything that the old one committed.  The publisher
 *	   had committed it before W made its slot, so it is in the copy.
 *	 - Later ones are sent to L again or for the first time.  L skips the table's changes,
 *	   W's snapshot contains them or W catches up with them, and so on: exactly as when a
 *	   table is added to the subscription.
 * With two_phase, neither would be true.  A transaction that is prepared here could have changed the
 * table before F, and commit after W has read which rows to delete.  And L would skip the
 * table's changes of a transaction that is prepared before W's snapshot, and committed after it:
 * they are in no copy, and no later message of L's stream repeats them.  Therefore F
 * refuses subscriptions with two_phase, as the server refuses to copy tables of such
 * subscriptions (ALTER SUBSCRIPTION ... REFRESH PUBLICATION without copy_data = false).
 *
 * With detect_conflicts, a copied row would have the time of W's commit, and win against changes of
 * other members that are newer than the row.  Therefore F refuses these, too.
 *
 * Locks: W has RowExclusiveLock on the table.  W waits for sessions that have changed old
 * rows, and they for W, as after a DELETE by anybody else; the server detects deadlocks, and
 * W then starts again.  Nothing is open on the publisher while W deletes.
 * R never waits for W by itself.  If a session wants a lock that conflicts with W's, as ALTER
 * TABLE does, then that session waits for W, and R behind it; a cancellation ends this, because
 * C takes no lock on the table.  If the publisher truncates the table meanwhile, then L's writer waits
 * for W, too, before it finds that it has to skip this, as the server's apply worker would.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_replication_origin.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/trigger.h"
#include "compat.h"
#include "copy/keep_slot.h"
#include "copy/progress.h"
#include "copy/replace.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "local_table.h"
#include "miscadmin.h"
#include "remote_query.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "rewrite/rewriteDefine.h"
#include "seam/seam.h"
#include "storage/lmgr.h"
#include "subscription_settings.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/usercontext.h"

/*
 * Prefixes of renamed origins, and of those that mark a cancellation; the OIDs of database,
 * subscription and table follow.
 */
#define HIDDEN_PREFIX "weft_resync_"
#define CANCEL_PREFIX "weft_cancel_"

#define ORIGIN_NAME_LEN NAMEDATALEN

/* How far a table synchronization worker has come. */
typedef enum ReplaceStep
{
	REPLACE_NOT,				/* it does not replace rows */
	REPLACE_REQUESTED,			/* it says so in shared memory */
	REPLACE_HIDDEN,				/* the origin is renamed; the next transaction
								 * is the copy's */
	REPLACE_DELETED,			/* the old rows are */
	REPLACE_COPIED,				/* the transaction may commit */
} ReplaceStep;

/* Static because the server's code runs between the steps. */
static ReplaceStep step = REPLACE_NOT;
static XLogRecPtr request;		/* the position that is stored */
static bool has_keep_slot;		/* K has everything after it */
static CopyProgress *progress;

/* The server's name of the origin, and the one that hides it from the server. */
static void
origin_names(Oid subid, Oid relid, char *name, char *hidden)
{
	ReplicationOriginNameForLogicalRep(subid, relid, name, ORIGIN_NAME_LEN);
	snprintf(hidden, ORIGIN_NAME_LEN, HIDDEN_PREFIX "%u_%u_%u", MyDatabaseId, subid, relid);
}

static void
cancel_name(Oid subid, Oid relid, char *name)
{
	snprintf(name, ORIGIN_NAME_LEN, CANCEL_PREFIX "%u_%u_%u", MyDatabaseId, subid, relid);
}

/* Returns the position that is stored as a request, or InvalidXLogRecPtr. */
XLogRecPtr
replace_requested(Oid subid, Oid relid)
{
	XLogRecPtr	position;
	char		state = GetSubscriptionRelState(subid, relid, &position);

	return state == SUBREL_STATE_FINISHEDCOPY ? position : InvalidXLogRecPtr;
}

/*
 * Requests that a table that is READY, and whose workers are stopped, is copied again.
 * "position" says where its rows stand.
 */
void
replace_request(Oid subid, Oid relid, XLogRecPtr position)
{
	char		name[ORIGIN_NAME_LEN];
	char		hidden[ORIGIN_NAME_LEN];

	origin_names(subid, relid, name, hidden);
	replorigin_drop_by_name(name, true, false);
	compat_update_subscription_rel(subid, relid, SUBREL_STATE_FINISHEDCOPY, position);
}

/* Marks a request, whose worker is stopped, as cancelled. */
void
replace_cancel(Oid subid, Oid relid)
{
	char		name[ORIGIN_NAME_LEN];
	char		hidden[ORIGIN_NAME_LEN];
	char		cancelled[ORIGIN_NAME_LEN];

	origin_names(subid, relid, name, hidden);
	cancel_name(subid, relid, cancelled);
	replorigin_drop_by_name(hidden, true, false);
	if (replorigin_by_name(cancelled, true) == InvalidRepOriginId)
		(void) replorigin_create(cancelled);
}

/* Drops renamed origins of this database for which there is no request any more. */
void
replace_clean(void)
{
	Relation	catalog = table_open(ReplicationOriginRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	List	   *left_over = NIL;
	HeapTuple	tuple;
	ListCell   *cell;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Datum		datum = heap_getattr(tuple, Anum_pg_replication_origin_roname,
										 RelationGetDescr(catalog), &isnull);
		char	   *name = TextDatumGetCString(datum);
		Oid			dbid;
		Oid			subid;
		Oid			relid;

		if ((sscanf(name, HIDDEN_PREFIX "%u_%u_%u", &dbid, &subid, &relid) == 3 ||
			 sscanf(name, CANCEL_PREFIX "%u_%u_%u", &dbid, &subid, &relid) == 3) &&
			dbid == MyDatabaseId && replace_requested(subid, relid) == InvalidXLogRecPtr)
			left_over = lappend(left_over, name);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);

	foreach(cell, left_over)
		replorigin_drop_by_name(lfirst(cell), true, false);
}

static bool
has_delete_rule(Relation rel)
{
	for (int i = 0; rel->rd_rules != NULL && i < rel->rd_rules->numLocks; i++)
	{
		RewriteRule *rule = rel->rd_rules->rules[i];

		if (rule->event == CMD_DELETE &&
			(rule->enabled == RULE_FIRES_ALWAYS || rule->enabled == RULE_FIRES_ON_REPLICA))
			return true;
	}
	return false;
}

/* Would deleting a row change, or depend on, rows that refer to it? */
static bool
foreign_key_fires(Relation rel)
{
	TriggerDesc *triggers = rel->trigdesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		if (RI_FKey_trigger_type(trigger->tgfoid) == RI_TRIGGER_PK &&
			local_table_trigger_is_on(trigger->tgenabled))
			return true;
	}
	return false;
}

/* As replace_obstacle(), for a table or one of its partitions. */
static const char *
obstacle_in(Relation rel)
{
	if (rel->rd_rel->relkind == RELKIND_FOREIGN_TABLE)
		return "One of its partitions is a foreign table.";
	if (has_delete_rule(rel))
		return "It has a rule for DELETE that applies to replication.";
	if (foreign_key_fires(rel))
		return "It is referenced by a foreign key whose triggers are enabled for replication.";
	if (rel->rd_rel->relkind == RELKIND_RELATION)
		CheckCmdReplicaIdentity(rel, CMD_DELETE);
	return NULL;
}

/*
 * Returns why a subscription, whose owner is given if it replicates as that, cannot replace
 * the rows of an open table; NULL if it can.
 */
const char *
replace_obstacle(Relation rel, Oid owner)
{
	List	   *relids = list_make1_oid(RelationGetRelid(rel));
	Oid			user = OidIsValid(owner) ? owner : rel->rd_rel->relowner;
	const char *result = NULL;
	ListCell   *cell;

	if (pg_class_aclcheck(RelationGetRelid(rel), user, ACL_DELETE) != ACLCHECK_OK)
		return "The role that replicates into it lacks the right to delete its rows.";
	if (check_enable_rls(RelationGetRelid(rel), user, true) == RLS_ENABLED)
		return "Row-level security applies to the role that replicates into it.";
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		relids = find_all_inheritors(RelationGetRelid(rel), AccessShareLock, NULL);
	foreach(cell, relids)
	{
		Relation	part = relation_open(lfirst_oid(cell), NoLock);

		if (result == NULL)
			result = obstacle_in(part);
		relation_close(part, NoLock);
	}
	return result;
}

static void
rename_origin(const char *from, const char *to)
{
	Relation	catalog = table_open(ReplicationOriginRelationId, RowExclusiveLock);
	HeapTuple	old = SearchSysCacheCopy1(REPLORIGNAME, CStringGetTextDatum(from));
	HeapTuple	tuple;
	Datum		values[Natts_pg_replication_origin] = {0};
	bool		nulls[Natts_pg_replication_origin] = {0};
	bool		replaces[Natts_pg_replication_origin] = {0};

	if (!HeapTupleIsValid(old))
		elog(ERROR, "cache lookup failed for replication origin \"%s\"", from);
	values[Anum_pg_replication_origin_roname - 1] = CStringGetTextDatum(to);
	replaces[Anum_pg_replication_origin_roname - 1] = true;
	tuple = heap_modify_tuple(old, RelationGetDescr(catalog), values, nulls, replaces);
	CatalogTupleUpdate(catalog, &tuple->t_self, tuple);
	CommandCounterIncrement();
	/* Others must be able to create origins while this transaction goes on. */
	table_close(catalog, RowExclusiveLock);
}

/*
 * If the current transaction has stored DATASYNC, and thus created the origin, stores the
 * request again and renames the origin; else, for instance if it disables the subscription
 * after an error, returns false.
 */
static bool
hide_from_server(void)
{
	XLogRecPtr	position;
	Oid			subid = MyLogicalRepWorker->subid;
	Oid			relid = MyLogicalRepWorker->relid;
	char		name[ORIGIN_NAME_LEN];
	char		hidden[ORIGIN_NAME_LEN];

	CommandCounterIncrement();
	if (GetSubscriptionRelState(subid, relid, &position) != SUBREL_STATE_DATASYNC)
		return false;
	origin_names(subid, relid, name, hidden);
	rename_origin(name, hidden);
	compat_update_subscription_rel(subid, relid, SUBREL_STATE_FINISHEDCOPY, request);
	return true;
}

static void
transaction_ends(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_ABORT)
		step = REPLACE_NOT;
	if (event != XACT_EVENT_PRE_COMMIT)
		return;
	switch (step)
	{
		case REPLACE_NOT:
			break;
		case REPLACE_REQUESTED:
			if (hide_from_server())
				step = REPLACE_HIDDEN;
			break;
		case REPLACE_HIDDEN:
		case REPLACE_DELETED:
			elog(ERROR, "table %u has been copied again without its old rows being replaced",
				 MyLogicalRepWorker->relid);
			break;
		case REPLACE_COPIED:
			step = REPLACE_NOT;
			break;
	}
}

/*
 * If the request is cancelled, lets the server's code go on with the old rows; the head of the
 * file says why this must be one transaction.  Returns whether it is.
 */
static bool
end_if_cancelled(Oid subid, Oid relid)
{
	char		name[ORIGIN_NAME_LEN];
	char		hidden[ORIGIN_NAME_LEN];
	char		cancelled[ORIGIN_NAME_LEN];
	RepOriginId origin;

	origin_names(subid, relid, name, hidden);
	cancel_name(subid, relid, cancelled);
	origin = replorigin_by_name(cancelled, true);
	if (origin == InvalidRepOriginId)
		return false;
	LockRelationOid(ReplicationOriginRelationId, RowExclusiveLock);
	replorigin_advance(origin, request, InvalidXLogRecPtr, true, true);
	UnlockRelationOid(ReplicationOriginRelationId, RowExclusiveLock);
	compat_injection_point("weft-replace-cancel");
	rename_origin(cancelled, name);
	compat_update_subscription_rel(subid, relid, SUBREL_STATE_FINISHEDCOPY, InvalidXLogRecPtr);
	ereport(LOG,
			(errmsg("table \"%s\" of subscription \"%s\" is not copied again: it catches up with its old rows",
					get_rel_name(relid), MySubscription->name)));
	return true;
}

/* Drops the origin that an earlier attempt has left. */
static void
drop_left_over(Oid subid, Oid relid)
{
	char		name[ORIGIN_NAME_LEN];
	char		hidden[ORIGIN_NAME_LEN];

	origin_names(subid, relid, name, hidden);
	replorigin_drop_by_name(hidden, true, false);
}

/*
 * A table synchronization worker is about to connect to the publisher, and the server's code
 * has read the table's state.  If rows are to be replaced, makes that code copy the table.
 */
void
replace_check_request(void)
{
	MemoryContext old = CurrentMemoryContext;
	Oid			subid = MyLogicalRepWorker->subid;
	Oid			relid = MyLogicalRepWorker->relid;
	char		state;
	bool		cancelled = false;

	SpinLockAcquire(&MyLogicalRepWorker->relmutex);
	state = MyLogicalRepWorker->relstate;
	SpinLockRelease(&MyLogicalRepWorker->relmutex);
	if (state != SUBREL_STATE_FINISHEDCOPY)
		return;

	StartTransactionCommand();
	request = replace_requested(subid, relid);
	if (request != InvalidXLogRecPtr)
		cancelled = end_if_cancelled(subid, relid);
	if (request != InvalidXLogRecPtr && !cancelled)
		drop_left_over(subid, relid);
	CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	if (request == InvalidXLogRecPtr || cancelled)
		return;

	SpinLockAcquire(&MyLogicalRepWorker->relmutex);
	MyLogicalRepWorker->relstate = SUBREL_STATE_INIT;
	MyLogicalRepWorker->relstate_lsn = InvalidXLogRecPtr;
	SpinLockRelease(&MyLogicalRepWorker->relmutex);
	RegisterXactCallback(transaction_ends, NULL);
	step = REPLACE_REQUESTED;
}

static void
check_allowed(Relation rel)
{
	const char *obstacle = replace_obstacle(rel, GetUserId());

	if (subscription_settings_get(MySubscription->oid).detect_conflicts)
		obstacle = "The subscription detects conflicts.";
	if (obstacle)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("rows of table \"%s\" cannot be replaced", RelationGetRelationName(rel)),
				 errdetail_internal("%s", obstacle)));
}

/* Deletes all rows, with the current user's rights. */
static void
delete_all(Relation rel)
{
	bool		tree = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
	char	   *name = quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
												  RelationGetRelationName(rel));
	int			nest_level = NewGUCNestLevel();
	int			code;

	/* An error rather than rows that stay. */
	(void) set_config_option("row_security", "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	code = SPI_execute(psprintf("DELETE FROM %s%s", tree ? "" : "ONLY ", name), false, 0);
	if (code != SPI_OK_DELETE)
		elog(ERROR, "could not delete the rows of table %s: %s", name,
			 SPI_result_code_string(code));
	ereport(LOG,
			(errmsg("table \"%s.%s\" of subscription \"%s\" is copied again",
					get_namespace_name(RelationGetNamespace(rel)),
					RelationGetRelationName(rel), MySubscription->name),
			 errdetail("%llu old rows are replaced.", (unsigned long long) SPI_processed)));
	SPI_finish();
	PopActiveSnapshot();
	AtEOXact_GUC(false, nest_level);
	CommandCounterIncrement();
}

/*
 * Deletes the rows as the server would copy them: as the same user, and with the origin of
 * the table's synchronization, so that what is replicated from here to others as local
 * changes does not include it.
 */
static void
delete_as_replication(Relation rel)
{
	char		name[ORIGIN_NAME_LEN];
	char		hidden[ORIGIN_NAME_LEN];
	UserContext user;
	RepOriginId origin;
	bool		run_as_owner = MySubscription->runasowner;

	origin_names(MySubscription->oid, RelationGetRelid(rel), name, hidden);
	if (!run_as_owner)
		SwitchToUntrustedUser(rel->rd_rel->relowner, &user);

	/*
	 * A trigger may roll back a subtransaction, which advances the session's
	 * origin.
	 */
	origin = replorigin_by_name(hidden, false);
	replorigin_session_setup(origin, 0);
	replorigin_session_origin = origin;
	PG_TRY();
	{
		check_allowed(rel);
		delete_all(rel);
	}
	PG_FINALLY();
	{
		/* The server's code sets it up again, for the copy. */
		replorigin_session_origin = InvalidRepOriginId;
		replorigin_session_reset();
	}
	PG_END_TRY();
	if (!run_as_owner)
		RestoreUserContext(&user);
}

/*
 * The transaction that copies the table has begun here, and has locked the table; the
 * server is about to begin the one on the publisher.
 */
void
replace_delete_rows(WalReceiverConn *conn)
{
	MemoryContext old = CurrentMemoryContext;
	Relation	rel;

	if (step == REPLACE_NOT)
		return;
	Assert(step == REPLACE_HIDDEN && IsTransactionState());
	progress = copy_progress_claim(MySubscription->oid, MyLogicalRepWorker->relid);
	pg_atomic_write_u32(&progress->phase, COPY_DELETING);
	compat_injection_point("weft-replace-begin");
	has_keep_slot = keep_slot_usable(conn, MySubscription->oid, MyLogicalRepWorker->relid, request);
	if (!has_keep_slot)
		keep_slot_drop(conn, MySubscription->oid, MyLogicalRepWorker->relid);
	rel = table_open(MyLogicalRepWorker->relid, NoLock);
	PG_TRY();
	{
		delete_as_replication(rel);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(old);
		copy_progress_failed(progress, CopyErrorData());
		PG_RE_THROW();
	}
	PG_END_TRY();
	table_close(rel, NoLock);
	pg_atomic_write_u32(&progress->phase, COPY_COPYING);
	step = REPLACE_DELETED;
	compat_injection_point("weft-replace-deleted");
}

/* The name of the slot that W needs for its snapshot only. */
static const char *
snapshot_slot(void)
{
	return psprintf("weft_%u_resync_%u_" UINT64_FORMAT, MySubscription->oid,
					MyLogicalRepWorker->relid, GetSystemIdentifier());
}

/* In place of walrcv_create_slot, in a table synchronization worker. */
char *
replace_create_slot(WalReceiverConn *conn, const char *slotname, bool temporary, bool two_phase,
					bool failover, CRSSnapshotAction snapshot_action, XLogRecPtr *lsn)
{
	if (step != REPLACE_DELETED || !has_keep_slot)
		return (seam_native->walrcv_create_slot) (conn, slotname, temporary, two_phase, failover,
												  snapshot_action, lsn);
	return (seam_native->walrcv_create_slot) (conn, snapshot_slot(), true, two_phase, false,
											  snapshot_action, lsn);
}

/* The snapshot has been used.  W goes on with K, which must have what comes after it. */
static void
leave_snapshot_slot(WalReceiverConn *conn)
{
	if (!has_keep_slot)
		return;
	if (!keep_slot_usable(conn, MySubscription->oid, MyLogicalRepWorker->relid, request))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the replication slot of table \"%s\" was lost while the table was copied again",
						get_rel_name(MyLogicalRepWorker->relid)),
				 errdetail("The next attempt uses another one.")));
	remote_command(conn, "drop a temporary replication slot",
				   psprintf("DROP_REPLICATION_SLOT %s", quote_identifier(snapshot_slot())));
}

/* Is this process replacing rows?  Then indexes must be maintained. */
bool
replace_in_progress(void)
{
	return step == REPLACE_DELETED;
}

/* The new rows are there, and the transaction on the publisher has ended. */
void
replace_copied(WalReceiverConn *conn)
{
	char		name[ORIGIN_NAME_LEN];
	char		hidden[ORIGIN_NAME_LEN];

	if (step != REPLACE_DELETED)
		return;
	leave_snapshot_slot(conn);
	origin_names(MySubscription->oid, MyLogicalRepWorker->relid, name, hidden);
	rename_origin(hidden, name);
	pg_atomic_write_u32(&progress->phase, COPY_DONE);
	step = REPLACE_COPIED;
	compat_injection_point("weft-replace-copied");
}
