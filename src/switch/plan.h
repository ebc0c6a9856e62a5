/*
 * plan.h
 *	  What can be known before a switch-over: the checks, and what they have found.
 */
#ifndef WEFT_SWITCH_PLAN_H
#define WEFT_SWITCH_PLAN_H

#include "catalog/pg_subscription.h"
#include "nodes/pg_list.h"
#include "replication/walreceiver.h"
#include "switch/plan_finding.h"

/*
 * Runs all checks of a switch-over from the publisher of "subscription" to this server.
 * "reverse" says whether the old publisher is to follow this server afterwards.
 *
 * "conn" is an ordinary connection to the publisher with the settings of
 * publisher_connect(), outside of a transaction.  Its role is the one whose rights there are
 * checked, the current user the one whose rights here are.  Changes nothing on either side.
 * Reads as the owner of the subscription.
 *
 * Returns a list of PlanFinding, at least one for each check, in the order in which the
 * checks run.  A query that fails on the publisher is a finding of its check (PLAN_ERROR),
 * not an error.
 */
extern List *plan_check(Subscription *subscription, WalReceiverConn *conn, bool reverse);

/* Fails if one of the findings is a PLAN_ERROR; the detail lists them. */
extern void plan_require(Subscription *subscription, List *findings);

#endif							/* WEFT_SWITCH_PLAN_H */
