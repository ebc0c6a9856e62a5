/*
 * plan.c
 *	  What can be known before a switch-over: the checks, and what they have found.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "subscription_settings.h"
#include "switch/plan.h"
#include "switch/plan_database.h"
#include "switch/plan_query.h"
#include "switch/plan_replication.h"
#include "switch/plan_tables.h"
#include "utils/guc.h"
#include "utils/builtins.h"
#include "verify/sequences.h"

/* How many errors are listed in a message. */
#define LISTED_ERRORS 10

/*
 * Sequences that are just behind will be set; everything else must be mended before.  One
 * that cannot be set could give out numbers a second time.
 */
static void
check_sequences(PlanRun *run)
{
	const char *check = "sequences";
	List	   *states = sequences_sync(run->subscription, run->conn, 0, false, NULL);
	bool		found = false;
	ListCell   *lc;

	foreach(lc, states)
	{
		SequenceState *state = lfirst(lc);

		if (state->problem == NULL)
			continue;
		found = true;
		run->findings =
			plan_finding_add(run->findings, check, state->settable ? PLAN_WARNING : PLAN_ERROR,
							 quote_qualified_identifier(state->schema, state->name), state->problem,
							 state->settable ?
							 psprintf("SELECT * FROM weft.sync_sequences(%s);",
									  quote_literal_cstr(run->subscription->name)) : state->remedy);
	}
	if (!found)
		run->findings = plan_finding_add(run->findings, check, PLAN_OK, NULL, NULL, NULL);
}

/*
 * Where conflicts are detected, as in a node group, other servers accept writes as well: a
 * fence on one of them protects nothing, and the way back would detect none.
 */
static void
check_conflict_detection(PlanRun *run)
{
	const char *check = "conflict_detection";
	const char *name = quote_identifier(run->subscription->name);

	if (subscription_settings_get(run->subscription->oid).detect_conflicts)
		run->findings =
			plan_finding_add(run->findings, check, PLAN_ERROR, name,
							 "the subscription detects conflicts, or belongs to a node group: both servers accept writes",
							 psprintf("Leave the node group, or: ALTER SUBSCRIPTION %s SET (detect_conflicts = off);", name));
	else
		run->findings = plan_finding_add(run->findings, check, PLAN_OK, NULL, NULL, NULL);
}

List *
plan_check(Subscription *subscription, WalReceiverConn *conn, bool reverse)
{
	PlanRun		run = {.subscription = subscription,.conn = conn,.reverse = reverse};
	int			context;
	int			nest_level;

	GetUserIdAndSecContext(&run.caller, &context);
	SetUserIdAndSecContext(subscription->owner, context | SECURITY_RESTRICTED_OPERATION);
	nest_level = NewGUCNestLevel();
	RestrictSearchPath();

	plan_replication_run(&run);
	check_conflict_detection(&run);
	plan_tables_run(&run);
	check_sequences(&run);
	plan_database_run(&run);

	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(run.caller, context);
	return run.findings;
}

void
plan_require(Subscription *subscription, List *findings)
{
	StringInfoData list;
	int			errors = 0;
	ListCell   *lc;

	initStringInfo(&list);
	foreach(lc, findings)
	{
		PlanFinding *finding = lfirst(lc);

		if (finding->severity != PLAN_ERROR || ++errors > LISTED_ERRORS)
			continue;
		appendStringInfo(&list, "%s%s: %s%s%s", errors > 1 ? "\n" : "", finding->check,
						 finding->object ? finding->object : "", finding->object ? ": " : "",
						 finding->problem);
	}
	if (errors == 0)
		return;
	if (errors > LISTED_ERRORS)
		appendStringInfo(&list, "\nand %d more", errors - LISTED_ERRORS);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot switch over to the subscriber of subscription \"%s\"", subscription->name),
			 errdetail_internal("%s", list.data),
			 errhint("See weft.switch_over_plan() for all problems and remedies.")));
}
