/*
 * pace.c
 *	  How fast a subscription is applied, and when it will have caught up.
 *
 * The end of the publisher's WAL is learned in two ways.  Whatever the publisher sends tells
 * an end, but while its walsender is behind, that is only how far the walsender has come.
 * Therefore the leader also asks the publisher during a backlog (receive/publisher_end.c).
 * Only answers show how fast the publisher's WAL grows; the difference between an answer and
 * what was told before it is mostly the walsender's own backlog.
 */
#include "postgres.h"

#include <math.h>

#include "pace.h"

/* For how long the past counts, in seconds: what is this old counts 1 / e. */
#define TRANSACTIONS_SPAN 5.0
#define BYTES_SPAN 20.0

#define SECONDS(from, to) ((double) ((to) - (from)) / USECS_PER_SEC)

void
pace_reset(Pace *pace)
{
	memset(pace, 0, sizeof(Pace));
}

static void
rate_add(Rate *rate, double amount, double seconds, double span)
{
	double		fading = exp(-seconds / span);

	rate->amount = rate->amount * fading + amount;
	rate->seconds = rate->seconds * fading + seconds;
}

/* Returns the rate per second; negative if it is not known. */
double
pace_rate(const Rate *rate)
{
	return rate->seconds > 0 ? rate->amount / rate->seconds : -1;
}

/* Accounts for what was applied since the last sample. */
void
pace_sample(Pace *pace, const PaceSample *sample)
{
	PaceSample	last = pace->last;
	double		seconds = SECONDS(last.time, sample->time);

	/* Somebody may have set the clock back. */
	if (last.time != 0 && seconds <= 0 && seconds > -1)
		return;
	pace->last = *sample;
	if (last.time == 0 || seconds <= 0)
		return;
	if (sample->transactions >= last.transactions)
		rate_add(&pace->transactions, sample->transactions - last.transactions,
				 seconds, TRANSACTIONS_SPAN);
	/* From "not known" on, it is no distance. */
	if (!XLogRecPtrIsInvalid(last.applied) && sample->applied >= last.applied)
		rate_add(&pace->bytes, sample->applied - last.applied, seconds, BYTES_SPAN);
}

/* The publisher has told at that time that its WAL reaches to "end" at least. */
void
pace_told(Pace *pace, XLogRecPtr end, TimestampTz now)
{
	if (XLogRecPtrIsInvalid(end) || end < pace->publisher_end)
		return;
	pace->publisher_end = end;
	pace->publisher_time = Max(pace->publisher_time, now);
}

/* The publisher was asked, and has answered. */
void
pace_answered(Pace *pace, XLogRecPtr end, TimestampTz now)
{
	if (pace->answered_time != 0 && end >= pace->answered_end && now > pace->answered_time)
		rate_add(&pace->publisher, end - pace->answered_end,
				 SECONDS(pace->answered_time, now), BYTES_SPAN);
	pace->answered_end = end;
	pace->answered_time = now;
	pace_told(pace, end, now);
}

/* The backlog is over.  How fast the publisher's WAL grew says nothing about the next one. */
void
pace_caught_up(Pace *pace)
{
	pace->answered_time = 0;
	memset(&pace->publisher, 0, sizeof(Rate));
}

/*
 * Returns after how many seconds everything that the publisher will have by then is applied, if
 * both continue at their pace.  Negative: never, or that is not known.
 */
double
pace_seconds_left(const Pace *pace, XLogRecPtr applied)
{
	double		gain = pace_rate(&pace->bytes) - pace_rate(&pace->publisher);

	if (XLogRecPtrIsInvalid(applied) || XLogRecPtrIsInvalid(pace->publisher_end))
		return -1;
	if (applied >= pace->publisher_end)
		return 0;
	if (pace->publisher.seconds <= 0 || pace->bytes.seconds <= 0 || gain <= 0)
		return -1;
	return (pace->publisher_end - applied) / gain;
}
