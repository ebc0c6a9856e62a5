/*
 * sampler.c
 *	  Samples, a few times a second, how far the subscription is.
 *
 * Nothing of this is done for a change or a transaction: the leader looks at the counters that
 * there are anyway, and at the positions.
 */
#include "postgres.h"

#include "last_error.h"
#include "receive/led_subscription.h"
#include "receive/publisher_end.h"
#include "receive/reception.h"
#include "receive/sampler.h"
#include "totals.h"
#include "utils/timestamp.h"

/* Time between two samples. */
#define SAMPLE_INTERVAL 250		/* ms */

/*
 * There is a backlog if the leader was not idle for this long.  Much longer than a transaction
 * takes, so that the publisher is not asked for nothing.
 */
#define BACKLOG_TIME 2000		/* ms */

/*
 * There is one, too, if the publisher's WAL is known to reach this much farther than what is
 * applied.  The leader may be idle then: the walsender may decode WAL of which nothing is
 * published.
 */
#define BACKLOG_BYTES (16 * 1024 * 1024)

/*
 * Without a backlog that is known, the publisher is asked once in this time.  An idle leader does
 * not notice a backlog of a walsender that finds nothing to send.
 */
#define LOOK_INTERVAL 20000		/* ms */

static TimestampTz next_sample;
static TimestampTz next_look;
static TimestampTz last_idle;
static Totals added;			/* to the subscription's totals */
static bool overcome;			/* the error of an earlier leader */

/* Adds to the totals what was counted since the last time. */
static void
add_to_totals(void)
{
	Totals		counted = {
		.transactions = shmem_transactions(led.shared),
		.changes = shmem_changes(led.shared),
		.worker_starts = 1,
	};
	Totals		news = {
		.transactions = counted.transactions - added.transactions,
		.changes = counted.changes - added.changes,
		.worker_starts = counted.worker_starts - added.worker_starts,
	};

	if (news.transactions + news.changes + news.worker_starts == 0)
		return;
	totals_add(led.shared->subid, &news);
	added = counted;
}

/* Called once in a leader. */
void
sampler_start(void)
{
	add_to_totals();
	last_idle = next_sample = GetCurrentTimestamp();
	next_look = TimestampTzPlusMilliseconds(last_idle, BACKLOG_TIME);
}

static void
note_overcome(void)
{
	if (!overcome)
		overcome = last_error_overcome(led.shared->subid,
									   pg_atomic_read_u64(&led.shared->applied_lsn));
}

static bool
in_backlog(XLogRecPtr applied, XLogRecPtr publisher_end, TimestampTz now)
{
	return TimestampDifferenceExceeds(last_idle, now, BACKLOG_TIME) ||
		(applied != InvalidXLogRecPtr && publisher_end > applied &&
		 publisher_end - applied > BACKLOG_BYTES);
}

static void
sample(TimestampTz now)
{
	SubscriptionShared *shared = led.shared;
	PaceSample	sample = {
		.time = now,
		.transactions = shmem_transactions(shared),
		.applied = pg_atomic_read_u64(&shared->applied_lsn),
	};

	/*
	 * Only the leader writes these fields, so it reads them without the
	 * mutex.
	 */
	bool		backlog = in_backlog(sample.applied, shared->pace.publisher_end, now);
	XLogRecPtr	answer = publisher_end_ask(backlog || now >= next_look, now);

	if (!XLogRecPtrIsInvalid(answer))
		next_look = TimestampTzPlusMilliseconds(now, LOOK_INTERVAL);
	SpinLockAcquire(&shared->mutex);
	pace_sample(&shared->pace, &sample);
	pace_told(&shared->pace, reception.told_lsn, reception.told_time);
	if (reception.received_lsn > shared->pace.publisher_end)
		pace_told(&shared->pace, reception.received_lsn, reception.received_time);
	if (!XLogRecPtrIsInvalid(answer))
		pace_answered(&shared->pace, answer, now);
	if (!backlog)
		pace_caught_up(&shared->pace);
	SpinLockRelease(&shared->mutex);
	add_to_totals();
	note_overcome();
}

/* Takes a sample if it is time to.  "now" may be the time of the last message. */
void
sampler_tick(TimestampTz now)
{
	if (now < next_sample)
		return;
	sample(now);
	/* What is learned first is shown at once. */
	next_sample = XLogRecPtrIsInvalid(led.shared->pace.publisher_end) ? now :
		TimestampTzPlusMilliseconds(now, SAMPLE_INTERVAL);
}

/* Nothing may wait until the clock shows again what it has shown. */
static void
clock_set_back(TimestampTz now)
{
	next_sample = now;
	next_look = Min(next_look, TimestampTzPlusMilliseconds(now, LOOK_INTERVAL));
	last_idle = Min(last_idle, now);
	reception.received_time = Min(reception.received_time, now);
	reception.told_time = Min(reception.told_time, now);
	SpinLockAcquire(&led.shared->mutex);
	led.shared->pace.publisher_time = Min(led.shared->pace.publisher_time, now);
	SpinLockRelease(&led.shared->mutex);
}

/* The same, if "now" is the time. */
void
sampler_now(TimestampTz now)
{
	if (now < TimestampTzPlusMilliseconds(next_sample, -SAMPLE_INTERVAL))
		clock_set_back(now);
	sampler_tick(now);
}

/* The leader has nothing to receive, and nothing is in flight. */
void
sampler_idle(TimestampTz now)
{
	last_idle = now;
	sampler_now(now);
}

/* The leader ends, and its writers have ended. */
void
sampler_stop(void)
{
	add_to_totals();
	note_overcome();
	publisher_end_stop();
}
