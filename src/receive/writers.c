/*
 * writers.c
 *	  Starting, watching and ending a leader's writers.
 *
 * Writers commit with their leader's replication origin.  If writer W1 outlived leader
 * L1, then W1 could commit a transaction that the next leader L2 has already asked the
 * publisher for again, and L2 would apply it a second time.  Therefore a leader never
 * ends before all of its writers have ended.  L1 waits for them in a before_shmem_exit
 * callback.  That callback runs before the one in which L1 gives up its place as the
 * subscription's apply worker, and before the origin is released.  If L1 cannot run the
 * callback, because it was killed, then the postmaster restarts all processes.
 *
 * Possible deadlock: W1 starts and waits for a lock on a catalog or a table; user U holds
 * that lock and waits for the leader to end, as DROP SUBSCRIPTION does; the leader waits
 * for W1 to end.  Therefore the leader terminates a writer that is starting, or that does
 * not end within STOP_PATIENCE, instead of only waiting for it.
 */
#include "postgres.h"

#include <unistd.h>

#include "compat.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "receive/connection.h"
#include "receive/leader_ring.h"
#include "receive/led_subscription.h"
#include "receive/writers.h"
#include "relation_stats.h"
#include "replication/logicallauncher.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "ring/stream_wait.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/*
 * A writer with nothing to do ends at once when it is told to.  If it has not ended after
 * this time, it is assumed to wait for something, and is terminated.
 */
#define STOP_PATIENCE 1000L		/* ms */

/* How often the leader checks whether background workers are short. */
#define PLACES_INTERVAL 1000	/* ms */

/*
 * The leader's writers.  While they run, count > 0; while they are being started or
 * ended, leader_ring.segment tells whether there may be any.
 */
static struct
{
	int			count;			/* ordinary writers that run */
	int			started_for;	/* how many were asked for */
	bool		short_of_places;	/* fewer were started */
	bool		all_attached;	/* every writer has attached to the ring */
	BackgroundWorkerHandle *handles[WEFT_MAX_PROCESSES];	/* or NULL */
}			writers;

/* How many ordinary writers run?  With none, the server's apply loop applies everything. */
int
writers_count(void)
{
	return writers.count;
}

/*
 * Reports why the native path is used.  The server's apply loop does not detect
 * conflicts: if it applied anything, members of a group would differ.
 */
static void
stay_native(const char *reason, const char *hint)
{
	if (led.detect_conflicts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("conflicts of subscription \"%s\" cannot be detected without writers: %s",
						MySubscription->name, reason),
				 hint ? errhint("%s", hint) : 0));
	SpinLockAcquire(&led.shared->mutex);
	strlcpy(led.shared->native_reason, reason, NATIVE_REASON_LEN);
	SpinLockRelease(&led.shared->mutex);
	ereport(LOG,
			(errmsg("subscription \"%s\" is applied without parallel writers: %s",
					MySubscription->name, reason),
			 hint ? errhint("%s", hint) : 0));
}

/* Background workers of the server. */
typedef struct Places
{
	int			free;			/* available now */
	int			spare;			/* beyond those that are reserved; may be
								 * negative */
} Places;

/*
 * Some background workers are reserved for table synchronization and for the apply
 * workers of other subscriptions, which otherwise would never start.  Workers that
 * synchronize tables now count as reserved ones.  Parallel workers of queries are
 * temporary, and count as available later.
 */
static Places
count_places(void)
{
	Places		result = {0};

	result.spare = -Max(max_sync_workers_per_subscription, 1);
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = GetPGProcByNumber(i);
		PGPROC	   *group = proc->lockGroupLeader;

		if (proc->procgloballist != &ProcGlobal->bgworkerFreeProcs)
			continue;
		if (proc->pid == 0)
			result.free++;
		if (proc->pid == 0 || (group != NULL && group != proc))
			result.spare++;
	}

	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	for (int i = 0; i < shmem_count(); i++)
	{
		Oid			subid = shmem_get(i)->subid;

		if (OidIsValid(subid))
			result.spare += logicalrep_sync_worker_count(subid);
	}
	LWLockRelease(LogicalRepWorkerLock);
	return result;
}

/* How many more writers may be started. */
static int
count_startable(void)
{
	Places		places = count_places();

	return Max(Min(places.free, places.spare), 0);
}

/* How many writers a subscription keeps even if others need background workers. */
static int
num_kept(bool detect_conflicts)
{
	return detect_conflicts ? 1 : 0;
}

/*
 * Has this subscription more writers than any other that could give some back?  If
 * several have the same number, the first entry counts as having more.
 */
static bool
have_most_writers(void)
{
	for (int i = 0; i < shmem_count(); i++)
	{
		SubscriptionShared *other = shmem_get(i);

		if (other == led.shared || !OidIsValid(other->subid) ||
			other->num_writers <= num_kept(other->detect_conflicts))
			continue;
		if (other->num_writers > writers.count ||
			(other->num_writers == writers.count && i < shmem_index(led.shared)))
			return false;
	}
	return true;
}

/*
 * Should another set of writers be started: because another number is wanted, because
 * others need background workers, or because more of them are available again?  "may_add"
 * says whether more writers could be used.  Called between transactions.
 *
 * Apply workers may take the reserved background workers.  Then the subscription with the
 * most writers gives some back: all of them, or all but one if it detects conflicts.
 * One subscription at a time does so, because the others still have fewer writers
 * afterwards.  If two subscriptions take what has become available at the same moment,
 * one of them gives it back.
 */
bool
writers_outdated(int wanted, TimestampTz now, bool may_add)
{
	static TimestampTz last = 0;

	if (wanted != writers.started_for)
		return true;
	if (!TimestampDifferenceExceeds(last, now, PLACES_INTERVAL))
		return false;
	last = now;
	if (writers.count > num_kept(led.detect_conflicts) && count_places().spare < 0)
		return have_most_writers();
	return writers.short_of_places && may_add && count_startable() > 0;
}

/* Registers one writer; returns false if there is no place for it. */
static bool
register_writer(int number)
{
	BackgroundWorker worker = {0};
	const char *type = number < WEFT_MAX_WRITERS ? "weft writer" : "weft stream writer";

	snprintf(worker.bgw_name, BGW_MAXLEN, "%s %d for subscription %u", type,
			 number % WEFT_MAX_WRITERS, MySubscription->oid);
	strlcpy(worker.bgw_type, type, BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "weft", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "worker_main", BGW_MAXLEN);
	worker.bgw_main_arg = Int32GetDatum(shmem_index(led.shared) * WEFT_MAX_PROCESSES + number);
	memcpy(worker.bgw_extra, &led.shared->generation, sizeof(uint32));
	worker.bgw_notify_pid = MyProcPid;
	return RegisterDynamicBackgroundWorker(&worker, &writers.handles[number]);
}

/*
 * Starts up to "count" writers: fewer if fewer background workers are available.  If none
 * is, the native path stays in use.
 */
void
writers_start(int count)
{
	SubscriptionShared *shared = led.shared;
	const char *problem;
	MemoryContext old;
	int			possible;

	Assert(writers.count == 0);
	writers.started_for = count;
	writers.short_of_places = false;
	SpinLockAcquire(&shared->mutex);
	shared->wanted_writers = count;
	SpinLockRelease(&shared->mutex);
	if (count == 0)
	{
		stay_native("the number of writers is 0", NULL);
		return;
	}
	problem = leader_ring_create(count);
	if (problem)
	{
		stay_native(problem,
					"Lower \"weft.ring_size\", or provide more shared memory.");
		return;
	}

	shmem_reset_writers(shared);
	writers.all_attached = false;
	relation_stats_create(shared);
	SpinLockAcquire(&shared->mutex);
	shared->userid = MyLogicalRepWorker->userid;
	shared->origin = replorigin_session_origin;
	shared->ring = dsm_segment_handle(leader_ring.segment);
	shared->generation++;
	shared->num_writers = count;
	shared->detect_conflicts = led.detect_conflicts;
	shared->native_reason[0] = '\0';
	SpinLockRelease(&shared->mutex);

	old = MemoryContextSwitchTo(led.context);
	possible = Min(count, Max(count_startable(), num_kept(led.detect_conflicts)));
	while (writers.count < possible && register_writer(writers.count))
		writers.count++;
	MemoryContextSwitchTo(old);

	writers.short_of_places = writers.count < count;
	leader_ring.producer.ring->num_writers = writers.count;
	if (writers.count > 0)
		tuning_reset(&leader_ring.tuning, leader_ring.producer.ring, writers.count,
					 sysconf(_SC_NPROCESSORS_ONLN), connection_sends_batches());
	SpinLockAcquire(&shared->mutex);
	shared->num_writers = writers.count;
	SpinLockRelease(&shared->mutex);

	if (writers.count == 0)
	{
		leader_ring_drop();
		stay_native("no background worker is available",
					"Increase \"max_worker_processes\".");
	}
	else if (writers.count < count)
		ereport(LOG,
				(errmsg("subscription \"%s\" is applied by %d of %d writers: no more background workers are available",
						MySubscription->name, writers.count, count),
				 errhint("Increase \"max_worker_processes\".")));
	else
		ereport(LOG,
				(errmsg("subscription \"%s\" is applied by %d writers",
						MySubscription->name, count)));
}

/*
 * Starts a stream writer, with a number from WEFT_MAX_WRITERS on that is free, for a
 * streamed transaction.  Returns false if no background worker is available.
 */
static bool
start_for_stream(int number, uint32 stream)
{
	static bool reported = false;
	Ring	   *ring = leader_ring.producer.ring;
	WriterShared *writer = &led.shared->writers[number];
	MemoryContext old = MemoryContextSwitchTo(led.context);
	bool		started;

	writer_shared_reset(writer);
	ring->writer_procno[number] = INVALID_PROC_NUMBER;
	pg_atomic_write_u64(&ring->writer_awaits[number], 0);
	pg_atomic_write_u32(&writer->stream, stream);
	if (pg_atomic_read_u32(&ring->num_stream_writers) <= number - WEFT_MAX_WRITERS)
		pg_atomic_write_u32(&ring->num_stream_writers, number - WEFT_MAX_WRITERS + 1);
	started = count_startable() > 0 && register_writer(number);
	MemoryContextSwitchTo(old);

	if (started)
		writers.all_attached = false;
	else
	{
		writers.handles[number] = NULL;
		if (!reported)
			ereport(LOG,
					(errmsg("streamed transactions of subscription \"%s\" are applied when they end: no more background workers are available",
							MySubscription->name),
					 errhint("Increase \"max_worker_processes\", or lower \"weft.max_stream_writers\".")));
		reported = true;
	}
	return started;
}

/*
 * Gives a streamed transaction that is only spooled a stream writer: an idle one, or a
 * new one.  If there is none, the transaction stays as it is.
 */
void
writers_assign(StreamShared *stream)
{
	uint32		index = stream - led.shared->streams + 1;

	for (int number = WEFT_MAX_WRITERS;
		 number < WEFT_MAX_WRITERS + weft_max_stream_writers; number++)
	{
		uint32		none = 0;

		if (writers.handles[number] == NULL)
		{
			pg_atomic_write_u32(&stream->writer, number);
			pg_atomic_write_u32(&stream->state, STREAM_APPLYING);
			if (!start_for_stream(number, index))
				pg_atomic_write_u32(&stream->state, STREAM_SPOOLED);
			return;
		}
		if (pg_atomic_read_u32(&led.shared->writers[number].stream) != 0)
			continue;
		pg_atomic_write_u32(&stream->writer, number);
		pg_atomic_write_u32(&stream->state, STREAM_APPLYING);
		if (pg_atomic_compare_exchange_u32(&led.shared->writers[number].stream, &none, index))
		{
			SetLatch(&GetPGProcByNumber(leader_ring.producer.ring->writer_procno[number])->procLatch);
			return;
		}
		pg_atomic_write_u32(&stream->state, STREAM_SPOOLED);
	}
}

/* Does a writer that was told to end do so within STOP_PATIENCE? */
static bool
ends_soon(BackgroundWorkerHandle *handle)
{
	TimestampTz start = GetCurrentTimestamp();
	pid_t		pid;

	while (GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
	{
		int			occurred;

		if (TimestampDifferenceExceeds(start, GetCurrentTimestamp(), STOP_PATIENCE))
			return false;
		occurred = WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_POSTMASTER_DEATH,
							 STOP_PATIENCE, WAIT_EVENT_BGWORKER_SHUTDOWN);
		if (occurred & WL_POSTMASTER_DEATH)
			return false;
		if (occurred & WL_LATCH_SET)
			ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

/*
 * Ends one writer and waits until it is gone.  A writer that is starting does not look
 * at the ring, and may wait for a lock (see the head of this file).
 */
static void
stop_writer(int number, bool terminate)
{
	if (terminate ||
		pg_atomic_read_u32(&led.shared->writers[number].activity) == WRITER_STARTING ||
		!ends_soon(writers.handles[number]))
		TerminateBackgroundWorker(writers.handles[number]);
	WaitForBackgroundWorkerShutdown(writers.handles[number]);
	pfree(writers.handles[number]);
	writers.handles[number] = NULL;
}

/*
 * Ends all writers and waits until they are gone; there is a ring.  Transactions in flight
 * are rolled back; stream writers have been told to roll back theirs.  If this function is
 * interrupted, it is called again when the leader exits, and continues with the writers
 * that are left.
 */
void
writers_stop(void)
{
	bool		terminate = leader_ring_in_flight();

	ring_stop(leader_ring.producer.ring);
	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
		if (writers.handles[i] != NULL)
			stop_writer(i, terminate);
	writers.count = 0;
	leader_ring_drop();
	SpinLockAcquire(&led.shared->mutex);
	led.shared->num_writers = 0;
	led.shared->ring = DSM_HANDLE_INVALID;
	SpinLockRelease(&led.shared->mutex);
}

/* A stream writer has ended because it was idle, or has never started. */
static void
forget_stream_writer(int number)
{
	uint32		stream = pg_atomic_read_u32(&led.shared->writers[number].stream);

	if (stream != STREAM_WRITER_LEAVES)
		ring_report_stream(&led.shared->streams[stream - 1], STREAM_FAILED);
	pfree(writers.handles[number]);
	writers.handles[number] = NULL;
}

/*
 * Checks one writer.  Clears *attached if it is still starting.  Returns false if it has
 * ended and should not have.
 */
static bool
check_writer(int number, bool *attached)
{
	WriterShared *writer = &led.shared->writers[number];
	bool		for_streams = number >= WEFT_MAX_WRITERS;
	pid_t		pid;

	if (pg_atomic_read_u32(&writer->pid) == 0)
	{
		*attached = false;
		if (GetBackgroundWorkerPid(writers.handles[number], &pid) != BGWH_STOPPED)
			return true;
		if (!for_streams)
			return false;
		forget_stream_writer(number);
		return true;
	}
	if (pg_atomic_read_u32(&writer->activity) != WRITER_EXITED)
		return true;
	if (!for_streams || pg_atomic_read_u32(&writer->stream) != STREAM_WRITER_LEAVES)
		return false;
	forget_stream_writer(number);
	return true;
}

/* Throws the error that a writer has reported; ends the leader if a writer has ended. */
void
writers_check(void)
{
	if (writers.count == 0)
		return;
	if (failure_reported(&leader_ring.producer.ring->failure))
		failure_throw(&leader_ring.producer.ring->failure);
	compat_injection_point("weft-leader-checks");
	if (writers.all_attached && pg_atomic_read_u32(&led.shared->writers_gone) == 0)
		return;

	writers.all_attached = true;
	pg_atomic_write_u32(&led.shared->writers_gone, 0);
	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
	{
		if (writers.handles[i] == NULL || check_writer(i, &writers.all_attached))
			continue;

		/* It may have reported why. */
		if (failure_reported(&leader_ring.producer.ring->failure))
			failure_throw(&leader_ring.producer.ring->failure);

		/* The launcher starts another leader. */
		ereport(LOG,
				(errmsg("logical replication worker for subscription \"%s\" will restart because writer %d has ended",
						MySubscription->name, i)));
		proc_exit(0);
	}
}
