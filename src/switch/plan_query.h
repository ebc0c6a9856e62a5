/*
 * plan_query.h
 *	  Checks of a switch-over that consist of queries.
 */
#ifndef WEFT_SWITCH_PLAN_QUERY_H
#define WEFT_SWITCH_PLAN_QUERY_H

#include "catalog/pg_subscription.h"
#include "nodes/pg_list.h"
#include "replication/walreceiver.h"

/*
 * A check reads on the publisher ("there"), in this database ("here"), or first there and
 * then here, with what it has read there.
 *
 * The last or only query returns a row for each finding: what it is about, 'warning' or
 * 'error', the problem, and a remedy or NULL.  Names in it must be quoted.
 *
 * Somebody may paste a remedy into a session here, with many rights, and the publisher may be
 * hostile.  Therefore text that it has sent is a name or a literal there, quoted here, or it
 * follows PLAN_FROM_PUBLISHER in the same line.
 *
 * Queries of both sides find "subscription", with one row: name, caller (the name of the
 * role that asks, here), reverse (see plan_check()); and there also slot.  There is also
 * publication (pubname) there, published (relid, nspname, relname, relkind) there, and
 * replicated (relid, nspname, relname, relkind) here.  search_path is pg_catalog alone.
 */
#define PLAN_FROM_PUBLISHER "-- written by the publisher: "

/* The same in a query here; "text" is an SQL expression. */
#define PLAN_QUOTE_PUBLISHER(text) \
	"'" PLAN_FROM_PUBLISHER "' || translate(" text ", E'\\n\\r', '  ')"

typedef struct PlanCheck
{
	const char *name;
	bool		for_reverse;	/* concerns only the way back */
	const char *there;			/* or NULL */

	/*
	 * Names of the columns of the first query, if there are two: the second
	 * one reads them, as text, from "there".
	 */
	const char *columns;
	const char *here;			/* or NULL */
	const char *remedy;			/* of all findings, if there is only "there";
								 * or NULL */
} PlanCheck;

typedef struct PlanRun
{
	Subscription *subscription;
	WalReceiverConn *conn;
	Oid			caller;
	bool		reverse;
	List	   *findings;		/* of PlanFinding */
} PlanRun;

extern void plan_query_run(PlanRun *run, const PlanCheck *checks, int count);

#endif							/* WEFT_SWITCH_PLAN_QUERY_H */
