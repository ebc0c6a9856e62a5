/*
 * led_subscription.h
 *	  The subscription that this process leads.
 */
#ifndef WEFT_LED_SUBSCRIPTION_H
#define WEFT_LED_SUBSCRIPTION_H

#include "compat.h"
#include "shmem.h"
#include "subscription_settings.h"

typedef struct LedSubscription
{
	SubscriptionShared *shared; /* NULL: this process is not a leader (yet) */
	MemoryContext context;		/* lives as long as the leader */
	MemoryContext message_context;	/* reset for each message */

	/* As stored for the subscription.  A leader restarts if they change. */
	bool		detect_conflicts;
	SubscriptionDdl ddl;
	XLogRecPtr	until_lsn;		/* apply nothing from here on */
} LedSubscription;

/*
 * Global, since a process leads one subscription at most, and nearly every module
 * of receive/ writes statistics to the shared entry or allocates for the leader.
 */
extern LedSubscription led;

extern void led_claim(void);
extern int	led_wanted_writers(void);
pg_noreturn extern void led_restart(const char *reason);

#endif							/* WEFT_LED_SUBSCRIPTION_H */
