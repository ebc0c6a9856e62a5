/*
 * led_subscription.c
 *	  The subscription that this process leads.
 */
#include "postgres.h"

#include "access/xact.h"
#include "extension_version.h"
#include "receive/led_subscription.h"
#include "replication/logicallauncher.h"
#include "replication/worker_internal.h"
#include "storage/ipc.h"
#include "subscription_settings.h"
#include "utils/memutils.h"

LedSubscription led;

/* Claims the subscription's shared entry; called once in a leader. */
void
led_claim(void)
{
	SubscriptionShared *shared = shmem_claim(MySubscription->oid);

	if (shared == NULL)
		elog(ERROR, "no free entry for subscription %u", MySubscription->oid);

	led.context = AllocSetContextCreate(TopMemoryContext, "weft leader",
										ALLOCSET_DEFAULT_SIZES);
	led.message_context = AllocSetContextCreate(led.context, "weft message",
												ALLOCSET_DEFAULT_SIZES);
	led.shared = shared;
	extension_version_report();
}

/* Ends the leader; the launcher starts another one at once.  The log says why. */
void
led_restart(const char *reason)
{
	ereport(LOG,
			(errmsg("logical replication worker for subscription \"%s\" will restart because %s",
					MySubscription->name, reason)));
	ApplyLauncherForgetWorkerStartTime(MySubscription->oid);
	proc_exit(0);
}

/*
 * Reads what is stored for the subscription.  Returns how many writers it should have;
 * zero means that the server's apply loop applies everything.
 */
int
led_wanted_writers(void)
{
	SubscriptionSettings settings;

	StartTransactionCommand();
	settings = subscription_settings_get(MySubscription->oid);
	CommitTransactionCommand();
	if (settings.detect_conflicts != led.detect_conflicts || settings.ddl != led.ddl)
		led_restart("of a parameter change");
	led.until_lsn = settings.until_lsn;
	if (settings.num_writers == NUM_WRITERS_DEFAULT)
		settings.num_writers = weft_writers_per_subscription;
	return Min(settings.num_writers, weft_max_writers_per_subscription);
}
