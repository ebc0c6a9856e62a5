/*
 * clock.c
 *	  Waits until this server's clock has passed a time (version.c says why).
 */
#include "postgres.h"

#include "conflict/clock.h"
#include "conflict/log_limit.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "storage/latch.h"
#include "utils/timestamp.h"
#include "wait_event.h"

/*
 * A wait longer than this is logged, in milliseconds.  Well above the skew of clocks
 * that are synchronized over a network.
 */
#define REPORTED_SKEW 10000

/* A time that the clock has passed; a node's own clock must not be set back. */
static TimestampTz passed = 0;

/* Has this server's clock passed a time? */
bool
clock_has_passed(TimestampTz time)
{
	if (time >= passed)
		passed = GetCurrentTimestamp();
	return time < passed;
}

void
clock_wait(TimestampTz time)
{
	static TimestampTz reported = 0;

	while (!clock_has_passed(time))
	{
		long		ahead = TimestampDifferenceMilliseconds(passed, time) + 1;

		if (ahead > REPORTED_SKEW && log_limit_passed(&reported))
			ereport(WARNING,
					(errmsg("the publisher's clock is more than %ld ms ahead of this server's, which delays subscription \"%s\"",
							ahead, MySubscription->name),
					 errhint("Synchronize the clocks of the servers.")));
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(ahead, 1000), wait_event_id(WEFT_WAIT_WRITER_CLOCK));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}
