/*
 * passed_time.c
 *	  Up to which time the changes of each subscription have been applied here.
 *
 * The passed time of subscription S is such that whatever S still brings was committed later
 * by its publisher's clock, apart from what a commit takes from its commit time to its
 * record in the WAL.  Commits reach us in the order of their records, so the time of the
 * transaction of S that was applied last is a passed time.  If the publisher is idle, that
 * stays where it is.  Therefore a writer that needs a later one asks, by starting a background
 * worker:
 *
 *	 1. The worker reads the publisher's clock, and the position L up to which its WAL is
 *		flushed, in this order of effect: what commits after the clock was read has a later
 *		commit time, and what was flushed lies before L.
 *	 2. It stores both in S's entry, and ends.
 *	 3. Once S has been applied up to L, which the publisher tells with its keepalives, the
 *		clock is a passed time.
 *
 * A transaction whose commit time is before the clock, and whose record is not flushed yet, is
 * covered by the margin with which the caller compares (time_expiry.c).  A writer cannot ask by
 * itself: connecting may take minutes, while transactions wait.  The answer is lost when the
 * leader restarts; then nothing is known until the next one.  A publisher that is a standby
 * replays what its primary committed before, so its clock says nothing; only what was
 * applied counts.
 *
 * The worker writes S's entry only while S still has it: shmem_claim() resets the answer.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "applied_position.h"
#include "catalog/pg_subscription.h"
#include "compat.h"
#include "conflict/passed_time.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "publisher_connection.h"
#include "remote_query.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "shmem.h"
#include "subscription_settings.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "wal_end.h"

/*
 * Reading the clock comes first.  The last column makes sure that the publisher's WAL does not
 * end within a record for long: it commits a transaction that writes nothing else.
 */
static const char question[] =
"SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::pg_catalog.int8 - 946684800000000,"
" pg_catalog.pg_current_wal_flush_lsn(), pg_catalog.current_setting('wal_block_size'),"
" pg_catalog.txid_current()"
REMOTE_WITHOUT_STANDBYS
" WHERE NOT pg_catalog.pg_is_in_recovery()";

/* What a worker is started with. */
typedef struct ClockTask
{
	Oid			database;
	Oid			owner;
	Oid			subid;
} ClockTask;

StaticAssertDecl(sizeof(ClockTask) <= BGW_EXTRALEN, "a task fits into bgw_extra");

/* Zero, which is the year 2000, if it is not known. */
static TimestampTz
passed_time(Oid subid)
{
	SubscriptionShared *entry = shmem_find(subid);
	TimestampTz applied;
	TimestampTz asked;
	XLogRecPtr	lsn;

	if (entry == NULL)
		return 0;
	applied = pg_atomic_read_u64(&entry->applied_time);
	SpinLockAcquire(&entry->mutex);
	asked = entry->asked_time;
	lsn = entry->asked_lsn;
	if (entry->subid != subid)
		applied = asked = 0;
	SpinLockRelease(&entry->mutex);
	if (asked != 0 && applied_position(subid) < lsn)
		asked = 0;
	return Max(applied, asked);
}

/*
 * Returns the subscriptions of this database that detect conflicts (PassedTime), whether they are
 * being applied or not, in the current memory context.  Needs a transaction.
 */
List *
passed_time_list(void)
{
	Relation	rel = table_open(SubscriptionRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	List	   *result = NIL;
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription form = (Form_pg_subscription) GETSTRUCT(tuple);
		char		origin_name[NAMEDATALEN];
		PassedTime *passed;

		if (form->subdbid != MyDatabaseId || !subscription_settings_get(form->oid).detect_conflicts)
			continue;
		ReplicationOriginNameForLogicalRep(form->oid, InvalidOid, origin_name,
										   sizeof(origin_name));
		passed = palloc(sizeof(PassedTime));
		passed->origin = replorigin_by_name(origin_name, true);
		passed->time = passed_time(form->oid);
		result = lappend(result, passed);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/*
 * Called by a writer: asks for a later passed time of its subscription, unless a worker is doing
 * that already.  Returns false if no worker is available.
 */
bool
passed_time_ask(void)
{
	static BackgroundWorkerHandle *handle = NULL;
	BackgroundWorker worker = {0};
	ClockTask	task = {MyDatabaseId, MySubscription->owner, MySubscription->oid};
	MemoryContext old;
	pid_t		pid;
	bool		result;

	if (handle != NULL)
	{
		if (GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
			return true;
		pfree(handle);
		handle = NULL;
	}
	snprintf(worker.bgw_name, BGW_MAXLEN, "weft clock of subscription %u", task.subid);
	strlcpy(worker.bgw_type, "weft clock", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "weft", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "weft_passed_time_main", BGW_MAXLEN);
	memcpy(worker.bgw_extra, &task, sizeof(task));
	old = MemoryContextSwitchTo(TopMemoryContext);
	result = RegisterDynamicBackgroundWorker(&worker, &handle);
	MemoryContextSwitchTo(old);
	return result;
}

static void
store_answer(Oid subid, const RemoteValue *row)
{
	SubscriptionShared *entry = shmem_find(subid);
	WalEndAnswer answer = {.insert_lsn = row[1],.flush_lsn = row[1],.block_size = row[2]};
	TimestampTz time = row[0] ? pg_strtoint64(row[0]) : 0;
	WalEnd		end = wal_end_get(&answer);

	if (entry == NULL)
		return;
	SpinLockAcquire(&entry->mutex);
	if (entry->subid == subid)
	{
		entry->asked_time = time;
		entry->asked_lsn = end.lsn;
	}
	SpinLockRelease(&entry->mutex);
}

static void
ask(Oid subid)
{
	Subscription *subscription = GetSubscription(subid, true);
	WalReceiverConn *conn;
	RemoteAnswer answer;

	if (subscription == NULL)
		return;
	conn = publisher_connection_open(subscription, false);
	answer = remote_query(conn, psprintf("read the clock of the publisher of subscription \"%s\"",
										 subscription->name),
						  question, WALRCV_OK_TUPLES, 4);
	walrcv_disconnect(conn);
	if (answer.problem != NULL)
		ereport(LOG,
				(errmsg("could not read the clock of the publisher of subscription \"%s\": %s",
						subscription->name, answer.problem)));
	else if (answer.rows != NIL)
		store_answer(subid, linitial(answer.rows));
}

/* Entry point of the background worker. */
void
weft_passed_time_main(Datum main_arg)
{
	ClockTask	task;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	memcpy(&task, MyBgworkerEntry->bgw_extra, sizeof(task));
	BackgroundWorkerInitializeConnectionByOid(task.database, task.owner, 0);

	/* A publisher that cannot be asked is one whose passed time is not known. */
	PG_TRY();
	{
		StartTransactionCommand();
		ask(task.subid);
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(TopMemoryContext);
		error = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		ereport(LOG, (errmsg_internal("%s", error->message)));
	}
	PG_END_TRY();
	proc_exit(0);
}
