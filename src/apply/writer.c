/*
 * writer.c
 *	  Who this writer is: its number, its subscription, its ring.
 */
#include "postgres.h"

#include "apply/writer.h"
#include "catalog/pg_subscription.h"
#include "compat.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "replication/worker_internal.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

/*
 * A global, for callbacks of the server that take no argument ask for it, too.  It is
 * filled in by writer_attach() and never changes afterwards.
 */
Writer		writer;

/* Has nothing changed in the catalogs that MySubscription was read from? */
static bool subscription_valid = true;

/*
 * Everything is rolled back: tells the leader that the writer has ended.  The ring is
 * no longer mapped.
 */
static void
writer_gone(int code, Datum leader_procno)
{
	pg_atomic_write_u32(&writer.shared->activity, WRITER_EXITED);
	pg_atomic_fetch_add_u32(&writer.subscription->writers_gone, 1);
	SetLatch(&GetPGProcByNumber(DatumGetInt32(leader_procno))->procLatch);
}

/*
 * Finds the ring that the writer was started for, from the argument of its background
 * worker.  If the ring no longer exists, the leader has ended or has started other
 * writers.  Then this one ends, too.
 */
void
writer_attach(Datum main_arg)
{
	SubscriptionShared *subscription = shmem_get(DatumGetInt32(main_arg) / WEFT_MAX_PROCESSES);
	uint32		generation;
	dsm_handle	handle = DSM_HANDLE_INVALID;
	dsm_segment *segment;

	writer.number = DatumGetInt32(main_arg) % WEFT_MAX_PROCESSES;
	writer.subscription = subscription;
	writer.shared = &subscription->writers[writer.number];
	memcpy(&generation, MyBgworkerEntry->bgw_extra, sizeof(generation));

	SpinLockAcquire(&subscription->mutex);
	if (subscription->generation == generation)
		handle = subscription->ring;
	writer.detect_conflicts = subscription->detect_conflicts;
	SpinLockRelease(&subscription->mutex);

	segment = handle == DSM_HANDLE_INVALID ? NULL : dsm_attach(handle);
	if (segment == NULL)
		proc_exit(0);
	dsm_pin_mapping(segment);
	writer.ring = dsm_segment_address(segment);
	writer.ring->writer_procno[writer.number] = MyProcNumber;
	pg_write_barrier();
	pg_atomic_write_u32(&writer.shared->pid, MyProcPid);
	on_shmem_exit(writer_gone, Int32GetDatum(writer.ring->leader_procno));
}

/* Does it apply streamed transactions, rather than those in the ring? */
bool
writer_is_for_streams(void)
{
	return writer.number >= WEFT_MAX_WRITERS;
}

static void
subscription_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	subscription_valid = false;
}

/* Takes notice of changes to the subscription; called once. */
void
writer_watch_subscription(void)
{
	CacheRegisterSyscacheCallback(SUBSCRIPTIONOID, subscription_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHOID, subscription_changed, (Datum) 0);
}

/*
 * Reads the subscription again if it has changed; called between transactions.  A
 * writer needs it to know as whom the changes are made.  If anything else has changed, the
 * leader restarts, and its writers with it.
 */
void
writer_reread_subscription(void)
{
	MemoryContext old;
	Subscription *subscription;

	AcceptInvalidationMessages();
	if (!subscription_valid)
	{
		subscription_valid = true;
		StartTransactionCommand();
		old = MemoryContextSwitchTo(ApplyContext);
		subscription = GetSubscription(MySubscription->oid, true);
		MemoryContextSwitchTo(old);
		if (subscription)
		{
			compat_free_subscription(MySubscription);
			MySubscription = subscription;
		}
		CommitTransactionCommand();
	}
}
