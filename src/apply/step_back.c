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
 * Therefore W waits first, without locks.  The time is twice as long after each deadlock of T1, since
 * the others may need more of it to be out of W's way; and it is random, so that two that step back
 * at the same moment do not meet again.  It begins with the error, since W may have to wait for its turn, too.
 *
 * Later transactions of W's subscription wait for T1 meanwhile, and V may wait for a lock of theirs.  They yield to V then, as
 * they do when T1 waits for a lock (turn.c).
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

/* Until when to wait before the next attempt; 0: the last one was not chosen to end a deadlock. */
static TimestampTz end = 0;

/* Other transactions begin. */
void
step_back_reset(void)
{
	limit = FIRST_LIMIT;
	end = 0;
}

/* Told of each error of an attempt. */
void
step_back_note(const ErrorData *error)
{
	double		time = limit / 2 * (1 + pg_prng_double(&pg_global_prng_state));

	end = 0;
	if (error->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED)
		return;
	end = GetCurrentTimestamp() + (TimestampTz) (1000 * time);
	limit = Min(2 * limit, LAST_LIMIT);
}

/* Called between two attempts, without locks, in the transaction's turn. */
void
step_back(void)
{
	long		left;

	/* The clock may be set back meanwhile. */
	while (end != 0 && (left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end)) > 0)
		if (!ring_writer_sleep(Min(left, LAST_LIMIT), wait_event_id(WEFT_WAIT_WRITER_STEP_BACK)))
			break;
	end = 0;
}
