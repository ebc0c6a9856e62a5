/*
 * writers.c
 *	  Starting and stopping a leader's writers.
 *
 * The writers share the leader's replication origin.  A writer that outlived
 * its leader could commit a transaction that the next leader has already asked
 * for again.  So a leader never ends before all its writers have: it waits for
 * them in a before_shmem_exit callback, which comes before the one that gives
 * its place as the subscription's worker up, and before the origin is released.
 * If it cannot, because it was killed, the postmaster restarts everything.
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "compat.h"
#include "miscadmin.h"
#include "receive/dependency.h"
#include "receive/leader.h"
#include "receive/relations.h"
#include "receive/streams.h"
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
#include "subscription_settings.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/*
 * A writer with nothing to do ends at once when it is told so.  If it has not for so
 * long, in milliseconds, it waits for something.
 */
#define STOP_PATIENCE 1000L

/* How often it is looked whether there are too few background workers; in milliseconds. */
#define PLACES_INTERVAL 1000

/* Ends the leader; the launcher starts another one at once. */
static void
restart(void)
{
	ereport(LOG,
			(errmsg("logical replication worker for subscription \"%s\" will restart because of a parameter change",
					MySubscription->name)));
	ApplyLauncherForgetWorkerStartTime(MySubscription->oid);
	proc_exit(0);
}

/*
 * Returns how many writers the subscription should have; zero for the server's
 * own path.
 */
int
writers_wanted(void)
{
	SubscriptionSettings settings;

	StartTransactionCommand();
	settings = subscription_settings_get(MySubscription->oid);
	CommitTransactionCommand();
	if (settings.detect_conflicts != leader.detect_conflicts)
		restart();
	leader.until_lsn = settings.until_lsn;
	if (settings.num_writers == NUM_WRITERS_DEFAULT)
		settings.num_writers = weft_writers_per_subscription;
	return Min(settings.num_writers, weft_max_writers_per_subscription);
}

/*
 * Says why the server's own path is used.  That one knows nothing of conflicts:
 * to apply something there would make members of a group differ.
 */
static void
stay_native(const char *reason, const char *hint)
{
	if (leader.detect_conflicts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("conflicts of subscription \"%s\" cannot be detected without writers: %s",
						MySubscription->name, reason),
				 hint ? errhint("%s", hint) : 0));
	SpinLockAcquire(&leader.shared->mutex);
	strlcpy(leader.shared->native_reason, reason, NATIVE_REASON_LEN);
	SpinLockRelease(&leader.shared->mutex);
	ereport(LOG,
			(errmsg("subscription \"%s\" is applied without parallel writers: %s",
					MySubscription->name, reason),
			 hint ? errhint("%s", hint) : 0));
}

/* Background workers of the server. */
typedef struct Places
{
	int			free;			/* can be had now */
	int			spare;			/* more than are to be left; may be negative */
} Places;

/*
 * Some background workers are left for the synchronisation of tables, and for other
 * subscriptions' apply workers, which otherwise would never begin.  Those that synchronise tables now are
 * among them.  Parallel workers of queries come and go, and are none that others have for good.
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

/* A subscription keeps so many writers, whoever needs background workers. */
static int
num_kept(bool detect_conflicts)
{
	return detect_conflicts ? 1 : 0;
}

/*
 * Has no other subscription that could give any back more writers?  Of several with the
 * most, one has the most.
 */
static bool
have_most_writers(void)
{
	for (int i = 0; i < shmem_count(); i++)
	{
		SubscriptionShared *other = shmem_get(i);

		if (other == leader.shared || !OidIsValid(other->subid) ||
			other->num_writers <= num_kept(other->detect_conflicts))
			continue;
		if (other->num_writers > leader.num_writers ||
			(other->num_writers == leader.num_writers && i < shmem_index(leader.shared)))
			return false;
	}
	return true;
}

/*
 * Should other writers be started than there are, because others need background
 * workers, or because there are more again?  Called between transactions.
 *
 * Background workers that are to be left may be taken by apply workers.  Then the
 * subscription with the most writers gives some back, down to none, or one if
 * conflicts are to be detected.  One at a time does that, since the others still have
 * fewer when it has.  If two take what has become free at once, one gives it back.
 */
bool
writers_to_be_changed(void)
{
	static TimestampTz last = 0;
	TimestampTz now = Max(leader.received_time, leader.last_turn);

	if (!TimestampDifferenceExceeds(last, now, PLACES_INTERVAL))
		return false;
	last = now;
	if (leader.num_writers > num_kept(leader.detect_conflicts) && count_places().spare < 0)
		return have_most_writers();
	return leader.short_of_places && leader.parallel_streams == 0 && count_startable() > 0;
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
	strlcpy(worker.bgw_function_name, "writer_main", BGW_MAXLEN);
	worker.bgw_main_arg = Int32GetDatum(shmem_index(leader.shared) * WEFT_MAX_PROCESSES + number);
	memcpy(worker.bgw_extra, &leader.shared->generation, sizeof(uint32));
	worker.bgw_notify_pid = MyProcPid;
	return RegisterDynamicBackgroundWorker(&worker, &leader.writers[number]);
}

/* Makes the ring; returns false if there is no memory for it. */
static bool
create_ring(int count)
{
	uint64		bytes = ring_bytes(weft_ring_size);
	Size		size = ring_shmem_size(bytes);
	MemoryContext old = CurrentMemoryContext;
	ErrorData  *error = NULL;

	PG_TRY();
	{
		leader.segment = dsm_create(size, DSM_CREATE_NULL_IF_MAXSEGMENTS);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(old);
		error = CopyErrorData();
		FlushErrorState();
		leader.segment = NULL;
	}
	PG_END_TRY();

	if (leader.segment == NULL)
	{
		stay_native(error ? error->message : "no dynamic shared memory is left",
					"Lower \"weft.ring_size\", or provide more shared memory.");
		return false;
	}
	dsm_pin_mapping(leader.segment);

	memset(&leader.producer, 0, sizeof(leader.producer));
	leader.producer.ring = dsm_segment_address(leader.segment);
	memset(leader.producer.ring, 0, offsetof(Ring, data));
	ring_init(leader.producer.ring, bytes, count);
	broadcast_create(&leader.broadcast, leader.producer.ring);
	dependency_reset();
	leader.collected = 0;
	leader.barrier = 0;
	relations_renew(&leader.broadcast);
	pg_atomic_write_u64(&leader.shared->ring_size, bytes);
	return true;
}

static void
drop_ring(void)
{
	pg_atomic_write_u64(&leader.shared->ring_size, 0);
	pg_atomic_write_u64(&leader.shared->ring_used, 0);
	if (leader.broadcast.area != NULL)
		broadcast_detach(leader.broadcast.area);
	leader.broadcast.area = NULL;
	dsm_detach(leader.segment);
	leader.segment = NULL;
	memset(&leader.producer, 0, sizeof(leader.producer));
}

/*
 * Starts so many writers, or fewer if there is no place for all of them.  With
 * none, the server's own path stays in use.
 */
void
writers_start(int count)
{
	SubscriptionShared *shared = leader.shared;
	MemoryContext old;
	int			possible;

	Assert(leader.num_writers == 0);
	leader.started_for = count;
	leader.short_of_places = false;
	if (count == 0)
	{
		stay_native("the number of writers is 0", NULL);
		return;
	}
	if (!create_ring(count))
		return;

	shmem_reset_writers(shared);
	leader.all_attached = false;
	relation_stats_create(shared);
	SpinLockAcquire(&shared->mutex);
	shared->userid = MyLogicalRepWorker->userid;
	shared->origin = replorigin_session_origin;
	shared->ring = dsm_segment_handle(leader.segment);
	shared->generation++;
	shared->num_writers = count;
	shared->detect_conflicts = leader.detect_conflicts;
	shared->native_reason[0] = '\0';
	SpinLockRelease(&shared->mutex);

	old = MemoryContextSwitchTo(leader.context);
	possible = Min(count, Max(count_startable(), num_kept(leader.detect_conflicts)));
	while (leader.num_writers < possible && register_writer(leader.num_writers))
		leader.num_writers++;
	MemoryContextSwitchTo(old);

	leader.short_of_places = leader.num_writers < count;
	leader.producer.ring->num_writers = leader.num_writers;
	if (leader.num_writers > 0)
		tuning_reset(&leader.tuning, leader.producer.ring, leader.num_writers,
					 sysconf(_SC_NPROCESSORS_ONLN));
	SpinLockAcquire(&shared->mutex);
	shared->num_writers = leader.num_writers;
	SpinLockRelease(&shared->mutex);

	if (leader.num_writers == 0)
	{
		drop_ring();
		stay_native("no background worker is left",
					"Increase \"max_worker_processes\".");
	}
	else if (leader.num_writers < count)
		ereport(LOG,
				(errmsg("subscription \"%s\" is applied by %d of %d writers: no more background workers are left",
						MySubscription->name, leader.num_writers, count),
				 errhint("Increase \"max_worker_processes\".")));
	else
		ereport(LOG,
				(errmsg("subscription \"%s\" is applied by %d writers",
						MySubscription->name, count)));
}

/*
 * Starts a stream writer, with a number from WEFT_MAX_WRITERS on that is free, for a
 * streamed transaction.  Returns false if there is no place for it.
 */
bool
writers_start_for_stream(int number, uint32 stream)
{
	static bool reported = false;
	Ring	   *ring = leader.producer.ring;
	WriterShared *writer = &leader.shared->writers[number];
	MemoryContext old = MemoryContextSwitchTo(leader.context);
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
		leader.all_attached = false;
	else
	{
		leader.writers[number] = NULL;
		if (!reported)
			ereport(LOG,
					(errmsg("streamed transactions of subscription \"%s\" are applied when they end: no more background workers are left",
							MySubscription->name),
					 errhint("Increase \"max_worker_processes\", or lower \"weft.max_stream_writers\".")));
		reported = true;
	}
	return started;
}

/* Does a writer that was told so end by itself? */
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
 * Ends one writer and waits until it is gone.
 *
 * One that is starting does not look at the ring, and may wait for a lock; who
 * has that may wait for us, as DROP SUBSCRIPTION does.
 */
static void
stop_writer(int number, bool terminate)
{
	if (terminate ||
		pg_atomic_read_u32(&leader.shared->writers[number].activity) == WRITER_STARTING ||
		!ends_soon(leader.writers[number]))
		TerminateBackgroundWorker(leader.writers[number]);
	WaitForBackgroundWorkerShutdown(leader.writers[number]);
	pfree(leader.writers[number]);
	leader.writers[number] = NULL;
}

/*
 * Ends all writers and waits until they are gone.  What is in flight is rolled
 * back.  If this is interrupted, it is called again when the leader exits, and
 * goes on with those that are left.
 */
static void
stop_all(void)
{
	bool		terminate = leader_in_flight();

	streams_discard();
	ring_stop(leader.producer.ring);
	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
		if (leader.writers[i] != NULL)
			stop_writer(i, terminate);
	leader.num_writers = 0;
	drop_ring();
	SpinLockAcquire(&leader.shared->mutex);
	leader.shared->num_writers = 0;
	leader.shared->ring = DSM_HANDLE_INVALID;
	SpinLockRelease(&leader.shared->mutex);
}

/* The same; transactions in progress are given up. */
void
writers_stop(void)
{
	if (leader.segment != NULL)
		stop_all();
	streams_remove_files();
}

/*
 * Starts another set of writers in place of the one that there is.  It takes over what
 * the publisher has in progress, which otherwise might never be nothing.  What one of
 * the two kinds of paths, Weft's or the server's with parallel workers, has begun, the
 * other one cannot go on with: then the leader starts again.
 */
void
writers_renew(int count)
{
	bool		keeps_streams;

	if (leader.num_writers > 0)
		leader_drain(leader.producer.seq);
	keeps_streams = streams_open();
	if (count == 0 ? keeps_streams : leader.parallel_streams > 0)
		restart();
	if (leader.segment != NULL)
		stop_all();
	writers_start(count);
	if (leader.num_writers > 0)
		streams_renew();
	else if (keeps_streams)
		restart();
}

/* A stream writer has ended because there was nothing to do, or never begun. */
static void
forget_stream_writer(int number)
{
	uint32		stream = pg_atomic_read_u32(&leader.shared->writers[number].stream);

	if (stream != STREAM_WRITER_LEAVES)
		ring_report_stream(&leader.shared->streams[stream - 1], STREAM_FAILED);
	pfree(leader.writers[number]);
	leader.writers[number] = NULL;
}

/*
 * Looks after one writer; *attached is cleared if it is still starting.  Returns
 * false if it is gone and should not be.
 */
static bool
check_writer(int number, bool *attached)
{
	WriterShared *writer = &leader.shared->writers[number];
	bool		for_streams = number >= WEFT_MAX_WRITERS;
	pid_t		pid;

	if (pg_atomic_read_u32(&writer->pid) == 0)
	{
		*attached = false;
		if (GetBackgroundWorkerPid(leader.writers[number], &pid) != BGWH_STOPPED)
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

/*
 * Throws what a writer has reported, and ends the leader if a writer is gone.
 */
void
writers_check(void)
{
	if (leader.num_writers == 0)
		return;
	if (failure_reported(&leader.producer.ring->failure))
		failure_throw(&leader.producer.ring->failure);
	compat_injection_point("weft-leader-checks");
	if (leader.all_attached && pg_atomic_read_u32(&leader.shared->writers_gone) == 0)
		return;

	leader.all_attached = true;
	pg_atomic_write_u32(&leader.shared->writers_gone, 0);
	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
	{
		if (leader.writers[i] == NULL || check_writer(i, &leader.all_attached))
			continue;

		/* It may have reported why. */
		if (failure_reported(&leader.producer.ring->failure))
			failure_throw(&leader.producer.ring->failure);

		/* The launcher starts us again. */
		ereport(LOG,
				(errmsg("logical replication worker for subscription \"%s\" will restart because writer %d has ended",
						MySubscription->name, i)));
		proc_exit(0);
	}
}
