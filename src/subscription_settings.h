/*
 * subscription_settings.h
 *	  What Weft stores for a subscription: its number of writers, whether conflicts are
 *	  detected, and where it ends.
 */
#ifndef WEFT_SUBSCRIPTION_SETTINGS_H
#define WEFT_SUBSCRIPTION_SETTINGS_H

#include "access/xlogdefs.h"

/* No number of writers is stored for the subscription. */
#define NUM_WRITERS_DEFAULT (-1)

/* The subscription has no end. */
#define NO_END PG_UINT64_MAX

typedef struct SubscriptionSettings
{
	int			num_writers;	/* or NUM_WRITERS_DEFAULT */
	bool		detect_conflicts;

	/*
	 * Transactions whose commit record begins here or later on the publisher
	 * are not applied.
	 */
	XLogRecPtr	until_lsn;
} SubscriptionSettings;

extern void subscription_settings_define(void);
extern SubscriptionSettings subscription_settings_get(Oid subid);
extern void subscription_settings_set(Oid subid, SubscriptionSettings settings);
extern void subscription_settings_check_detection(const char *subscription);

#endif							/* WEFT_SUBSCRIPTION_SETTINGS_H */
