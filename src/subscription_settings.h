/*
 * subscription_settings.h
 *	  What we store for a subscription: its own number of writers, and whether
 *	  conflicts are detected.
 */
#ifndef WEFT_SUBSCRIPTION_SETTINGS_H
#define WEFT_SUBSCRIPTION_SETTINGS_H

/* No number of writers is stored for the subscription. */
#define NUM_WRITERS_DEFAULT (-1)

typedef struct SubscriptionSettings
{
	int			num_writers;	/* or NUM_WRITERS_DEFAULT */
	bool		detect_conflicts;
} SubscriptionSettings;

extern void subscription_settings_define(void);
extern SubscriptionSettings subscription_settings_get(Oid subid);
extern void subscription_settings_set(Oid subid, SubscriptionSettings settings);
extern void subscription_settings_check_detection(const char *subscription);

#endif							/* WEFT_SUBSCRIPTION_SETTINGS_H */
