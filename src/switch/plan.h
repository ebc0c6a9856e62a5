/*
 * plan.h
 *	  What can be known before a switch-over: the checks, and what they have found.
 */
#ifndef WEFT_SWITCH_PLAN_H
#define WEFT_SWITCH_PLAN_H

#include "catalog/pg_subscription.h"
#include "nodes/pg_list.h"
#include "replication/walreceiver.h"

typedef enum PlanSeverity
{
	PLAN_OK,					/* the check has found nothing; the only finding of its check */
	PLAN_WARNING,
	PLAN_ERROR					/* a switch-over would fail, or lose something */
} PlanSeverity;

typedef struct PlanFinding
{
	const char *check;			/* name of the check, such as "lag" */
	PlanSeverity severity;
	char	   *object;			/* what it is about, quoted where SQL wants it; may be NULL */
	char	   *problem;		/* NULL if severity is PLAN_OK */
	char	   *remedy;			/* SQL or a sentence; may be NULL */
} PlanFinding;

/*
 * Runs all checks of a switch-over from the publisher of "subscription" to this server.
 * "reverse" says whether the old publisher is to follow this server afterwards.
 *
 * "conn" is an ordinary connection to the publisher with the settings of
 * publisher_connect(), outside of a transaction.  Changes nothing on either side.
 * Reads as the owner of the subscription.
 *
 * Returns a list of PlanFinding, at least one for each check, in the order in which the
 * checks are documented.  A query that fails on the publisher is a finding of its check
 * (PLAN_ERROR), not an error; a connection that breaks is an error.
 */
extern List *plan_check(Subscription *subscription, WalReceiverConn *conn, bool reverse);

/* Fails if one of the findings is a PLAN_ERROR; the detail lists them. */
extern void plan_require(Subscription *subscription, List *findings);

#endif							/* WEFT_SWITCH_PLAN_H */
