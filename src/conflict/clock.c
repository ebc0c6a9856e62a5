/*
 * clock.c
 *	  Waiting until this server's clock has passed a time.
 */
#include "postgres.h"

#include "conflict/clock.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "storage/latch.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"
#include "wait_event.h"

/* A clock that is so far ahead of ours is told of in the log, in milliseconds. */
#define REPORTED_SKEW 10000

/* Waits until our clock has passed a time. */
void
clock_wait(TimestampTz time)
{
	static TimestampTz reported = 0;
	TimestampTz now;

	while ((now = GetCurrentTimestamp()) <= time)
	{
		long		ahead = TimestampDifferenceMilliseconds(now, time) + 1;

		if (ahead > REPORTED_SKEW &&
			TimestampDifferenceExceeds(reported, now, 60 * 1000))
		{
			reported = now;
			ereport(WARNING,
					(errmsg("the publisher's clock is ahead of ours by more than %ld ms, which delays subscription \"%s\"",
							ahead, MySubscription->name),
					 errhint("Synchronize the clocks of the servers.")));
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(ahead, 1000), wait_event_id(WEFT_WAIT_WRITER_CLOCK));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}
