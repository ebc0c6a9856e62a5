/*
 * subscription_settings.h
 *	  What Weft stores for a subscription: its number of writers, whether conflicts are
 *	  detected, whose schema changes are applied, and where it ends.
 */
#ifndef WEFT_SUBSCRIPTION_SETTINGS_H
#define WEFT_SUBSCRIPTION_SETTINGS_H

#include "access/xlogdefs.h"

/* No number of writers is stored for the subscription. */
#define NUM_WRITERS_DEFAULT (-1)

/* The subscription has no end. */
#define NO_END PG_UINT64_MAX

/* Which schema changes of the publisher are applied. */
typedef enum SubscriptionDdl
{
	SUBSCRIPTION_DDL_OFF,		/* none */
	SUBSCRIPTION_DDL_ON,		/* those that Weft has captured there */
	SUBSCRIPTION_DDL_TRUST_OWNER,	/* the same, or those in a table whose
									 * owner may speak for all roles */
} SubscriptionDdl;

typedef struct SubscriptionSettings
{
	int			num_writers;	/* or NUM_WRITERS_DEFAULT */
	bool		detect_conflicts;
	SubscriptionDdl ddl;

	/*
	 * Transactions whose commit record begins here or later on the publisher
	 * are not applied.
	 */
	XLogRecPtr	until_lsn;
} SubscriptionSettings;

extern void subscription_settings_define(void);
extern bool subscription_settings_parse_ddl(const char *text, SubscriptionDdl *ddl);
extern SubscriptionSettings subscription_settings_get(Oid subid);
extern void subscription_settings_set(Oid subid, SubscriptionSettings settings);
extern void subscription_settings_check_detection(const char *subscription);

#endif							/* WEFT_SUBSCRIPTION_SETTINGS_H */
