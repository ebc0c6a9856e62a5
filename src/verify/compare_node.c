/*
 * compare_node.c
 *	  weft.compare_node(): compares this member of a node group with another one.
 *
 * A is the other member, B is this one.  At a cut of B's subscription to A, B has exactly A's own
 * changes; but each of the two may have changes of B and of others that the other one does not have
 * yet.  Therefore a row that differs at the cut is only a candidate, which is looked at again:
 *
 *	 1. Wait until A and B have applied what all members had committed.
 *	 2. Compare at cuts, as weft.compare_subscription() does (compare_cut.c), storing
 *		candidates.  A row that is equal at the cut needs no second look.
 *	 3. Wait as in 1, and look at the candidates on both sides.  Repeat, up to MAX_LOOKS times,
 *		while there are candidates.
 *
 * A candidate that is equal at a look is dropped.  It is a difference if both sides differed at three
 * looks in a row, and one side had the row in the same version at all three.  Whatever remains is
 * reported as changing.
 *
 * Why that is no false difference.  Let A have version v of the row at looks 1, 2 and 3, and let B have
 * something else, or nothing, at look 2.  (If it is B that has v, exchange A and B.)  A1 is the set of
 * all members' changes that A had at look 1; A3 and B2 likewise.
 *
 *	 - A1 is contained in B2: what A had at look 1 was committed somewhere by then, and B has since
 *	   waited for all that all members had committed.  B2 is contained in A3 for the same
 *	   reason.
 *	 - No change in A3 but not in A1 has had an effect on the row at A, else it would have another
 *	   version.  So those in B2 that are not in A1 have no effect on it, either.
 *	 - In a group that works, the row depends only on the set of changes that were applied, in
 *	   whatever order, and for counters on their sum (docs/conflicts.md has the exceptions).
 *	   Therefore B must have had v at look 2.  It had not, so no change under way explains it.
 *
 * What a member lost of changes that were committed before the call is found; of later ones, maybe.
 *
 * Two looks would not do: B could have received the row and deleted it again in between, without A knowing of
 * that yet.  The looks need no cut, and no common snapshot: each happens between two waits.
 *
 * A wait asks each member from which A and B receive for its position (a vector), after the
 * look before it, and ends when all of it is applied, and visible (weft.member_await_members()).
 * Changes of a member that is down cannot be waited for, so the comparison fails and names
 * it.  While a node is joining or parting, not all members have the same sources: refused.
 *
 * Exceptions by which members differ without ever becoming equal are differences: writes that
 * are not replicated, conflicts that were resolved otherwise than by last_update_wins, TRUNCATE with
 * concurrent INSERTs, and changes that were skipped.
 *
 * Nothing is locked during a wait, on any member.
 */
#include "postgres.h"

#include "executor/spi.h"
#include "fmgr.h"
#include "local_query.h"
#include "miscadmin.h"
#include "shmem.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "verify/candidate.h"
#include "verify/compare.h"
#include "verify/publisher.h"

PG_FUNCTION_INFO_V1(weft_compare_node);

/* A row that changes each time is given up after so many looks. */
#define MAX_LOOKS 12

/*
 * Candidates of a table, for each difference that the caller wants, and at least.  Under load, there
 * are as many as rows were changed during the lag of replication.
 */
#define CANDIDATES_PER_DIFFERENCE 10
#define MIN_CANDIDATES 10000

/* Waits in a transaction of its own until A and B have what all members have committed. */
static void
await_members(const char *node, const char *timeout)
{
	local_run(psprintf("SELECT weft.await_both_members(%s, %s)",
					   quote_literal_cstr(node), quote_literal_cstr(timeout)));
	SPI_commit();
}

static int
count_left(List *tables)
{
	int			result = 0;

	foreach_ptr(CandidateTable, table, tables)
		if (strcmp(table->table->result.status, "done") == 0)
		result += candidates_left(table);
	return result;
}

/* Step 3. */
static int
look_again(CompareState *state, List *tables, const char *timeout)
{
	int			looks = 0;

	while (count_left(tables) > 0 && looks < MAX_LOOKS)
	{
		CHECK_FOR_INTERRUPTS();
		await_members(state->comparison.node, timeout);
		candidates_look(state, tables);
		comparison_count_looks(state->comparison.id, ++looks);
		SPI_commit();
	}
	return looks;
}

/* Stores the outcome for each table that had candidates. */
static void
store(CompareState *state, List *tables, int looks)
{
	foreach_ptr(CandidateTable, item, tables)
	{
		TableResult *result = &item->table->result;
		bool		done = strcmp(result->status, "done") == 0;

		result->candidates = candidates_left(item);
		if (done && item->table->limited)
			result->reason = psprintf("There are more differences than max_differences (%d), or more rows than can be looked at again (%d).",
									  state->comparison.max_differences, state->comparison.limit);
		else if (done && result->candidates > 0)
			result->reason = psprintf(INT64_FORMAT " rows were changing each time that they were looked at (%d times).",
									  result->candidates, looks);
		if (item->table->limited || result->candidates > 0)
			result->complete = false;
		comparison_put_table(state->comparison.id, result);
	}
}

static void
run(CompareState *state, const char *timeout)
{
	List	   *tables;
	int			looks;

	await_members(state->comparison.node, timeout);
	compare_start(state, 0);
	compare_cuts_run(state);
	tables = candidates_load(state);
	looks = look_again(state, tables, timeout);
	store(state, tables, looks);
	comparison_finish(state->comparison.id);
	SPI_commit();
	compare_report(state);
}

/* Finds the subscription to the other member. */
static void
find_subscription(CompareState *state)
{
	const char *node = state->comparison.node;
	char	   *subid = local_value(psprintf("SELECT weft.local_subscription(%s)",
											 quote_literal_cstr(node)));

	if (subid == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("this node has no subscription to a node \"%s\"", node),
				 errhint("See \"weft.node\" for the other members of the group.")));
	state->subscription = publisher_subscription_by_oid(atooid(subid));
	state->comparison.subid = state->subscription->oid;
	state->comparison.subname = state->subscription->name;
	state->comparison.owner = state->subscription->owner;
}

/* The timeout as text, in units that every IntervalStyle understands. */
static char *
get_timeout(FunctionCallInfo fcinfo)
{
	Interval   *interval;
	double		seconds;

	if (PG_ARGISNULL(5))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("\"%s\" must not be null", "timeout")));
	interval = PG_GETARG_INTERVAL_P(5);
	seconds = interval->time / 1000000.0 + (interval->day + interval->month * 30.0) * SECS_PER_DAY;
	if (INTERVAL_NOT_FINITE(interval) || seconds <= 0 || seconds > 7 * SECS_PER_DAY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" must be positive, and at most 7 days", "timeout")));
	return psprintf("%.3f seconds", seconds);
}

/*
 * weft.compare_node(node name, tables regclass[], jobs int, max_rows_per_second bigint,
 * max_differences int, timeout interval, INOUT comparison bigint)
 *
 * sql/10-verify.sql describes the arguments.  Fails if the caller does not own the subscription to the
 * node or lacks the rights of a manager, if any member cannot be reached or does not keep up
 * within the timeout, and if a node is joining or parting.
 */
Datum
weft_compare_node(PG_FUNCTION_ARGS)
{
	CompareState *state = palloc0(sizeof(CompareState));
	Comparison *comparison = &state->comparison;
	char	   *timeout;

	shmem_require();
	compare_require_own_transaction(fcinfo, "weft.compare_node()");
	compare_get_arguments(fcinfo, "node", comparison);
	comparison->node = pstrdup(NameStr(*PG_GETARG_NAME(0)));
	comparison->limit = Max(comparison->max_differences * CANDIDATES_PER_DIFFERENCE, MIN_CANDIDATES);
	timeout = get_timeout(fcinfo);
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	state->memory = CurrentMemoryContext;
	find_subscription(state);
	PG_TRY();
	{
		run(state, timeout);
	}
	PG_FINALLY();
	{
		compare_clean_up(state);
	}
	PG_END_TRY();
	SPI_finish();
	return compare_make_result(fcinfo, comparison->id);
}
