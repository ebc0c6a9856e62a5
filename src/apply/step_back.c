/*
 * step_back.c
 *	  A writer that was chosen to end a deadlock lets the others go on before it begins again.
 *
 * W, a writer, has applied T1 in part, was in a cycle of waits with others, such as writers of other
 * subscriptions and users' sessions, and has been rolled back to end it.  V waits for a row of W's and can go on
 * now, but has to be woken first.  If W began again at once, it would have the row before V is awake: an aborted
 * writer of a row does not count, whoever queues for it.  V would wait for W again, and W for somebody in the cycle,
 * and the server would choose W again, because it has waited longest.  Three writers that change
 * the same 100 rows in different orders were seen to do this for minutes.
 *
 * Therefore W waits first.  It holds no locks, so nobody waits for it, but the later transactions of its subscription,
 * which would wait for T1 in any case.  The time is twice as long after each deadlock of T1, since
 * the others may need more of it to be out of W's way; and it is random, so that two that step back
 * at the same moment do not meet again.
 */
#include "postgres.h"

#include "apply/step_back.h"
#include "common/pg_prng.h"
#include "ring/wait.h"
#include "utils/timestamp.h"
#include "wait_event.h"

/* Between these limits, in milliseconds, is the longest time that it may take. */
#define FIRST_LIMIT 20
#define LAST_LIMIT 2560

/* The limit for the next deadlock of the transactions at hand. */
static int	limit = FIRST_LIMIT;

/* Was the last attempt chosen to end a deadlock? */
static bool pending = false;

/* Other transactions begin. */
void
step_back_reset(void)
{
	limit = FIRST_LIMIT;
	pending = false;
}

/* Told of each error of an attempt. */
void
step_back_note(const ErrorData *error)
{
	pending = error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED;
}

/* Called between two attempts, without locks: waits if the first one has ended a deadlock. */
void
step_back(void)
{
	TimestampTz end;
	long		left;

	if (!pending)
		return;
	pending = false;
	end = GetCurrentTimestamp() + 1000 * (int64) (limit / 2 * (1 + pg_prng_double(&pg_global_prng_state)));
	limit = Min(2 * limit, LAST_LIMIT);
	while ((left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end)) > 0)
		(void) ring_writer_sleep(left, wait_event_id(WEFT_WAIT_WRITER_RETRY));
}
