/*
 * steps.c
 *	  The steps of a switch-over.
 *
 * Each runs in a transaction of its own, and can be repeated.  What the order is good for:
 *
 * - The target is fenced before anything else, so that it never has writers besides the
 *	 source, and so that its slot (follower.c) begins before anybody can write there.
 * - Everything that may take long comes before the fence of the source.
 * - The source's fence is final before the target is opened.  Between the two, nobody accepts
 *	 writes; this is where a crash of both leaves it, and what calling again repairs.
 * - The target stops following before it is opened, and what it followed with is gone before
 *	 the source begins to follow: nothing goes in circles.
 */
#include "postgres.h"

#include "switch/back_sequences.h"
#include "switch/drain.h"
#include "switch/fence.h"
#include "switch/follower.h"
#include "switch/link.h"
#include "switch/plan.h"
#include "switch/row_counts.h"
#include "switch/steps.h"
#include "utils/pg_lsn.h"
#include "verify/check_worker.h"
#include "verify/sequences.h"

/* The target is close behind when a round of waiting takes no longer, in ms. */
#define CLOSE_BEHIND 500

/* How much longer than max_pause a provisional fence refuses writes at most, in ms. */
#define FENCE_GRACE 5000

static const char *const names[] = {
	[STEP_PLAN] = "plan",
	[STEP_ARM_TARGET] = "arm_target",
	[STEP_FENCE_TARGET] = "fence_target",
	[STEP_ARM_SOURCE] = "arm_source",
	[STEP_PUBLISH] = "publish",
	[STEP_CREATE_SLOT] = "create_slot",
	[STEP_SUBSCRIBE] = "subscribe",
	[STEP_COMPARE] = "compare",
	[STEP_CATCH_UP] = "catch_up",
	[STEP_SEQUENCES_BEFORE] = "sequences_before",
	[STEP_FENCE_SOURCE] = "fence_source",
	[STEP_DRAIN] = "drain",
	[STEP_SEQUENCES] = "sequences",
	[STEP_VERIFY] = "verify",
	[STEP_POSITION] = "position",
	[STEP_FINAL] = "final",
	[STEP_STOP] = "stop",
	[STEP_OPEN] = "open",
	[STEP_REMOVE] = "remove",
	[STEP_FOLLOW] = "follow",
	[STEP_DISARM] = "disarm",
};

const char *
steps_name(SwitchStep step)
{
	return names[step];
}

/* Is there anything to do in this step? */
bool
steps_is_needed(const SwitchAttempt *attempt, const SwitchOptions *options, SwitchStep step)
{
	switch (step)
	{
		case STEP_PUBLISH:
			return attempt->follow && !attempt->back;
		case STEP_CREATE_SLOT:
		case STEP_SUBSCRIBE:
		case STEP_POSITION:
		case STEP_FOLLOW:
			return attempt->follow;
		case STEP_COMPARE:
			return strcmp(options->verify, "recent") == 0;
		default:
			return true;
	}
}

/* Does a step need the session on the other server? */
bool
steps_needs_link(const SwitchAttempt *attempt, SwitchStep step)
{
	if (step == STEP_STOP || step == STEP_OPEN || step == STEP_DISARM)
		return attempt->back;
	return true;
}

static char *
lsn_text(XLogRecPtr lsn)
{
	return psprintf("%X/%X", LSN_FORMAT_ARGS(lsn));
}

/* Fails unless both sides replicate the same tables. */
static void
check_tables(const SwitchAttempt *attempt)
{
	static const char list[] =
		"SELECT pg_catalog.string_agg(t.name, ', ' ORDER BY t.name COLLATE \"C\")"
		" FROM (SELECT DISTINCT pg_catalog.format('%%I.%%I', n.nspname, c.relname) AS name"
		"  FROM (%s) base JOIN pg_catalog.pg_class c ON c.oid = base.oid"
		"  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace) t";
	char	   *here = side_value(SIDE_HERE, psprintf(list, fence_base_tables(attempt, SIDE_HERE)));
	char	   *there = side_value(SIDE_THERE, psprintf(list, fence_base_tables(attempt, SIDE_THERE)));

	if (here == NULL || there == NULL || strcmp(here, there) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the publisher of subscription \"%s\" does not publish the tables of the subscription",
						attempt->subscription->name),
				 errdetail("It publishes: %s.  The subscription has: %s.",
						   there ? there : "nothing", here ? here : "nothing"),
				 errhint("Run ALTER SUBSCRIPTION ... REFRESH PUBLICATION, and wait until the tables are synchronized.")));
}

/*
 * Rows that a subscription applies on the source are not fenced.  Only the one that this
 * server's changes go through may exist there.
 */
static void
check_other_writers(const SwitchAttempt *attempt)
{
	SwitchSide	source = ATTEMPT_SOURCE(attempt);
	char	   *other = side_value(source,
								   psprintf("SELECT s.subname FROM pg_catalog.pg_subscription s"
											" JOIN pg_catalog.pg_subscription_rel r ON r.srsubid = s.oid"
											" WHERE s.subenabled AND r.srrelid IN (%s) LIMIT 1",
											fence_base_tables(attempt, source)));

	if (other != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" writes to the published tables", other),
				 errdetail("A fence does not hold up what is replicated."),
				 errhint("Disable the subscription on the server that is to be fenced.")));
}

static const char *
side_name(const SwitchAttempt *attempt, SwitchSide side)
{
	return side == SIDE_HERE ? "this server" :
		psprintf("the publisher of subscription \"%s\"", attempt->subscription->name);
}

/* Somebody else relies on a fence that this attempt would open, or could. */
static void
refuse_fence(const SwitchAttempt *attempt, SwitchSide side)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the fence of %s belongs to another switch-over", side_name(attempt, side)),
			 errdetail("There is one fence for all tables of a database.  Another server may accept the writes that it refuses."),
			 errhint("Switch that one back, or cancel it.  If no other server accepts writes, run there: SELECT setval('weft_switch.state', 0).")));
}

/*
 * Fails if the fence of the target is not this attempt's to open.  There is one value for all
 * tables of a database: another subscription may have closed it, and its tables have writers
 * elsewhere.
 *
 * Both locks are held, or that of the target.  Therefore a negative value is what a dead session
 * has left, and nobody else changes the values until the attempt is over.
 */
void
steps_check_target(const SwitchAttempt *attempt)
{
	SwitchSide	target = ATTEMPT_TARGET(attempt);
	int64		value = fence_state(target);

	if (value > 0 && !switch_attempt_is_own(attempt, value))
		refuse_fence(attempt, target);
}

/* The same for both sides: another subscriber may have closed that of the source. */
static void
check_fences(const SwitchAttempt *attempt)
{
	if (fence_state(ATTEMPT_SOURCE(attempt)) > 0)
		refuse_fence(attempt, ATTEMPT_SOURCE(attempt));
	steps_check_target(attempt);
}

static char *
run_plan(const SwitchAttempt *attempt)
{
	check_tables(attempt);
	check_fences(attempt);
	check_other_writers(attempt);
	if (!attempt->back)
		plan_require(attempt->subscription,
					 plan_check(attempt->subscription, link_connection(), attempt->follow));
	return NULL;
}

/* Returns true if it must be called again. */
static bool
arm(const SwitchAttempt *attempt, const SwitchOptions *options, SwitchSide side)
{
	if (GetCurrentTimestamp() >= options->deadline)
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("timed out while fencing the tables of subscription \"%s\"",
						attempt->subscription->name)));
	if (!options->repeated)
		fence_install(side);
	return fence_arm_next(attempt, side, options->lock_timeout);
}

/*
 * Returns true if it must be called again, because the target, or its new slot, is still far
 * behind.
 */
static bool
catch_up(const SwitchAttempt *attempt, const SwitchOptions *options, char **result)
{
	TimestampTz begin = GetCurrentTimestamp();

	follower_advance(attempt);
	*result = lsn_text(drain(attempt, options->deadline));
	return GetCurrentTimestamp() > TimestampTzPlusMilliseconds(begin, CLOSE_BEHIND);
}

static void
sync_sequences(const SwitchAttempt *attempt, const SwitchOptions *options, bool must_be_safe)
{
	bool		safe;

	if (attempt->back)
	{
		back_sequences_sync(attempt, options->margin);
		return;
	}
	(void) sequences_sync(attempt->subscription, link_connection(), options->margin, true, &safe);
	if (must_be_safe && !safe)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a sequence of subscription \"%s\" would make numbers again that the publisher has used",
						attempt->subscription->name),
				 errhint("See weft.sync_sequences().")));
}

static void
drain_completely(const SwitchAttempt *attempt, const SwitchOptions *options, char **result)
{
	*result = lsn_text(drain(attempt, options->deadline));

	/* For follower_position(): everything that has been applied is flushed. */
	fence_flush(ATTEMPT_TARGET(attempt));
}

/*
 * Compares all rows under load, so that only those that change from now on remain to be
 * compared during the pause.
 */
static char *
compare_before_pause(const SwitchAttempt *attempt, SwitchOptions *options)
{
	CheckOrder	order = {.kind = CHECK_MARK_AND_COMPARE,.subid = attempt->subscription->oid};

	check_worker_run(&order, options->deadline, link_ping);
	options->mark = order.mark;
	return psprintf("comparison " INT64_FORMAT, order.comparison);
}

/*
 * With "full", a switch-over stores a comparison, which lists what differs.  On the way back, the
 * subscription that replicates is one of the other server, which need not have Weft: there
 * are no cuts, but as nobody writes, none is needed, either.
 */
static char *
verify(const SwitchAttempt *attempt, const SwitchOptions *options)
{
	CheckOrder	order = {.kind = attempt->back ? CHECK_ALL : CHECK_COMPARE,
	.subid = attempt->subscription->oid,.mark = options->mark};

	if (strcmp(options->verify, "none") == 0)
		return NULL;
	if (strcmp(options->verify, "counts") == 0)
		return row_counts_compare(attempt);
	if (strcmp(options->verify, "recent") == 0)
		order.kind = CHECK_RECENT;

	/*
	 * The step's own limit should end it; two ends at the same time would
	 * cancel the undoing.
	 */
	check_worker_run(&order, TimestampTzPlusMilliseconds(options->deadline, 5000), link_ping);
	if (order.kind == CHECK_COMPARE)
		return psprintf("comparison " INT64_FORMAT, order.comparison);
	return psprintf("%d tables, " INT64_FORMAT " rows", order.result.tables, order.result.rows);
}

/*
 * Here the pause begins.  The other session is not idle for longer than the pause may be,
 * unless its caller is frozen; the fence has a limit, too, which is the only one if this server
 * is the source.
 */
static void
close_source(const SwitchAttempt *attempt, SwitchOptions *options)
{
	int64		limit = options->max_pause + INT64CONST(2) * options->lock_timeout + FENCE_GRACE;

	link_limit_idleness(limit);
	fence_close(attempt, ATTEMPT_SOURCE(attempt), limit, options->lock_timeout);
	options->deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), options->max_pause);
}

static void
make_final(SwitchAttempt *attempt)
{
	if (!fence_make_final(attempt))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the fence of %s has been opened again",
						side_name(attempt, ATTEMPT_SOURCE(attempt))),
				 errdetail("It opens by itself when \"max_pause\" has been over for some seconds.")));
	attempt->phase = PHASE_FINAL;
	switch_attempt_store(attempt);
}

static void
open_target(SwitchAttempt *attempt)
{
	fence_open(ATTEMPT_TARGET(attempt));
	attempt->phase = PHASE_OPENED;
	switch_attempt_store(attempt);
}

/*
 * Runs a step.  Returns true if it must be called again, in another transaction; otherwise
 * *result says something about it, or is NULL.
 */
bool
steps_run(SwitchAttempt *attempt, SwitchOptions *options, SwitchStep step, char **result)
{
	switch (step)
	{
		case STEP_PLAN:
			*result = run_plan(attempt);
			return false;
		case STEP_ARM_TARGET:
			return arm(attempt, options, ATTEMPT_TARGET(attempt));
		case STEP_FENCE_TARGET:
			fence_close(attempt, ATTEMPT_TARGET(attempt), 0, options->lock_timeout);
			return false;
		case STEP_ARM_SOURCE:
			return arm(attempt, options, ATTEMPT_SOURCE(attempt));
		case STEP_PUBLISH:
			follower_publish(attempt);
			return false;
		case STEP_CREATE_SLOT:
			follower_create_slot(attempt);
			return false;
		case STEP_SUBSCRIBE:
			follower_subscribe(attempt, options->reverse);
			return false;
		case STEP_COMPARE:
			*result = compare_before_pause(attempt, options);
			return false;
		case STEP_CATCH_UP:
			return catch_up(attempt, options, result);
		case STEP_SEQUENCES_BEFORE:
			sync_sequences(attempt, options, false);
			return false;
		case STEP_FENCE_SOURCE:
			close_source(attempt, options);
			return false;
		case STEP_DRAIN:
			drain_completely(attempt, options, result);
			return false;
		case STEP_SEQUENCES:
			sync_sequences(attempt, options, true);
			return false;
		case STEP_VERIFY:
			*result = verify(attempt, options);
			return false;
		case STEP_POSITION:
			*result = lsn_text(follower_position(attempt));
			return false;
		case STEP_FINAL:
			make_final(attempt);
			return false;
		case STEP_STOP:
			follower_stop_target(attempt);
			return false;
		case STEP_OPEN:
			open_target(attempt);
			return false;
		case STEP_REMOVE:
			follower_remove_old(attempt, options->deadline);
			return false;
		case STEP_FOLLOW:
			follower_start(attempt);
			return false;
		case STEP_DISARM:
			return fence_disarm_next(ATTEMPT_TARGET(attempt), options->lock_timeout);
		case STEP_END:
			break;
	}
	return false;
}
