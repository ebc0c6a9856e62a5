/*
 * housekeeping.c
 *	  What the leader does about changes around it.
 *
 * Parameters, the subscription, its tables and the number of available background workers
 * change while the leader works.  It reacts between transactions.  Some changes
 * need another set of writers, with another ring: the leader drains the old one, ends its
 * writers, and starts new ones.
 */
#include "postgres.h"

#include "access/xlogdefs.h"
#include "compat.h"
#include "guc.h"
#include "receive/concurrent_start.h"
#include "receive/connection.h"
#include "receive/handover.h"
#include "receive/housekeeping.h"
#include "receive/leader_ring.h"
#include "receive/led_subscription.h"
#include "receive/pause.h"
#include "receive/reception.h"
#include "receive/stream_set.h"
#include "receive/table_sync.h"
#include "receive/writers.h"
#include "replication/logicallauncher.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "storage/ipc.h"
#include "utils/inval.h"
#include "utils/syscache.h"

/* A broadcast log of this size is replaced, with its ring. */
#define BROADCAST_LIMIT (64 * 1024 * 1024)

static int	wanted_writers;		/* when last read */
static int	configured;			/* weft.writers_per_subscription then */
static bool subscription_valid; /* the subscription has not changed since */

static void
subscription_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	subscription_valid = false;
}

static void
read_wanted_writers(void)
{
	/* An invalidation that arrives meanwhile resets this. */
	subscription_valid = true;
	configured = weft_writers_per_subscription;
	wanted_writers = led_wanted_writers();
}

/*
 * The launcher has read the owner before it started this process, and the subscription has been
 * read since.  If it has been given to another role in between, nothing later would tell of it, and
 * everything would be applied with the privileges of the old owner.
 */
static void
check_owner(void)
{
	if (MySubscription->owner != GetUserId())
		led_restart("the owner of the subscription has changed");
}

/* Starts the first set of writers; called once in a leader. */
void
housekeeping_start(void)
{
	check_owner();
	table_sync_init();
	CacheRegisterSyscacheCallback(SUBSCRIPTIONOID, subscription_changed, (Datum) 0);
	read_wanted_writers();
	writers_start(wanted_writers);
}

/* Ends the writers, if there are any.  Open transactions stay in their spools. */
static void
stop_set(void)
{
	if (leader_ring.segment == NULL)
		return;
	stream_set_discard_all();
	writers_stop();
}

/* Ends the writers for good, and gives open streamed transactions up. */
void
housekeeping_stop_writers(void)
{
	stop_set();
	stream_set_remove_files();
}

/*
 * Replaces the set of writers.
 *
 * The new set takes over the open streamed transactions: to wait until none is open
 * could take for ever.  But what one of the two paths, Weft's or the server's with
 * parallel apply workers, has begun, the other one cannot continue.  Then the leader
 * restarts, and the publisher sends those transactions again.
 */
static void
renew_writers(void)
{
	bool		keeps_streams;

	if (writers_count() > 0)
		pause_drain(leader_ring.producer.seq);
	keeps_streams = stream_set_in_use();
	if (wanted_writers == 0 ? keeps_streams : stream_set_has_parallel())
		led_restart("of a parameter change");
	stop_set();
	writers_start(wanted_writers);
	if (writers_count() > 0)
		stream_set_renew();
	else if (keeps_streams)
		led_restart("of a parameter change");
}

/* Reacts to what has changed.  Called between transactions. */
void
housekeeping_between_transactions(void)
{
	MemoryContext old = CurrentMemoryContext;

	AcceptInvalidationMessages();
	maybe_reread_subscription();

	guc_reload_if_requested();
	if (connection_outdated())
		led_restart("\"weft.compression\" has changed");
	table_sync_refresh();
	if (!subscription_valid || configured != weft_writers_per_subscription)
		read_wanted_writers();
	if (writers_outdated(wanted_writers, Max(reception.received_time, handover_last_turn()),
						 !stream_set_has_parallel()) ||
		(writers_count() > 0 && leader_ring.broadcast.bytes > BROADCAST_LIMIT))
		renew_writers();
	concurrent_start_turn();
	MemoryContextSwitchTo(old);
}

/*
 * Ends the leader because everything that the subscription is to apply, up to until_lsn,
 * has arrived.  Once that is committed, advances the replication origin to until_lsn,
 * behind the last transaction.
 */
void
housekeeping_finish(void)
{
	if (leader_ring.producer.ring)
		pause_drain(leader_ring.producer.seq);
	replorigin_session_advance(led.until_lsn, InvalidXLogRecPtr);
	ereport(LOG,
			(errmsg("subscription \"%s\" has applied everything up to LSN " compat_lsn_format ", where it ends",
					MySubscription->name, LSN_FORMAT_ARGS(led.until_lsn))));
	proc_exit(0);
}
