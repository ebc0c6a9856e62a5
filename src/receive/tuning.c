/*
 * tuning.c
 *	  How many writers to use, and how many transactions each takes at a time.
 *
 * What is best depends on what the machine is short of.  While writers wait for
 * the disk, all of them should, each for a transaction of its own.  While it is
 * processors that are missing, or every transaction needs the rows of the one
 * before, further writers only add the price of waking them, and one writer that
 * commits long groups is fastest.  No figure that could be looked at tells these
 * apart for certain, so while there is a steady flow each way is tried for a
 * moment now and then, and the one that has committed most is used in between.
 *
 * Outside of a steady flow nothing is measured, and all writers are used: then
 * it is how long a transaction waits that counts.
 *
 * This decides about speed only: any setting is right at any moment.
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "receive/leader.h"
#include "utils/timestamp.h"

/* For so long a setting is measured, after so long for it to take effect. */
#define SETTLE_TIME 15000		/* us */
#define MEASURE_TIME 40000		/* us */

/* So many times longer the best one is used before the others are tried again. */
#define MEASURES_BETWEEN_TRIALS 30

typedef struct Setting
{
	int			writers;
	int			run;
	double		rate;			/* transactions per second when last measured */
} Setting;

static Setting settings[3];
static int	num_settings;
static int	configured;			/* weft.commit_group_size that they are for */
static int	current;
static int	best;
static int	measures_left;		/* with the best one, before others are tried */
static TimestampTz since;		/* of the current setting, or of its measure */
static uint64 committed_then;
static bool settling;
static bool in_flow;

/*
 * How many transactions may share a commit.  If somebody looks at commit times,
 * each has its own.
 */
static int
group_size(void)
{
	return track_commit_timestamp ? 1 : weft_commit_group_size;
}

/* Tells the writers. */
static void
set(int setting)
{
	Ring	   *ring = leader.producer.ring;

	pg_atomic_write_u32(&ring->run_limit, settings[setting].run);
	pg_atomic_write_u32(&ring->active_writers, settings[setting].writers);
}

/* Begins to use a setting, and to measure it. */
static void
use(int setting)
{
	current = setting;
	settling = true;
	since = 0;
	set(setting);
}

static void
add(int writers, int run)
{
	for (int i = 0; i < num_settings; i++)
		if (settings[i].writers == writers && settings[i].run == run)
			return;
	settings[num_settings].writers = writers;
	settings[num_settings].run = run;
	settings[num_settings].rate = 0;
	num_settings++;
}

/* Begins anew: there is a new ring, or weft.commit_group_size has changed. */
void
tuning_reset(void)
{
	num_settings = 0;
	/* The first one is used whenever there is no flow. */
	add(leader.num_writers, group_size());
	add(1, group_size());
	add(leader.num_writers, 1);
	best = 0;
	measures_left = 0;
	configured = weft_commit_group_size;
	use(0);
}

/* The flow is interrupted: what is being measured is worth nothing. */
void
tuning_interrupt(void)
{
	if (!in_flow || leader.num_writers == 0)
		return;
	in_flow = false;
	set(0);
}

/* A measure is complete: go on to the next. */
static void
measured(double rate)
{
	settings[current].rate = rate;
	if (current != best || measures_left == 0)
	{
		/* The trial of one setting is over. */
		if (current + 1 < num_settings)
		{
			measures_left = 0;
			use(current + 1);
			return;
		}
		best = 0;
		for (int i = 1; i < num_settings; i++)
			if (settings[i].rate > settings[best].rate)
				best = i;
		measures_left = MEASURES_BETWEEN_TRIALS;
		use(best);
	}
	else if (--measures_left == 0)
		use(0);
	else
		since = 0;
}

/* Called now and then while transactions come without a pause. */
void
tuning_step(void)
{
	TimestampTz now = GetCurrentTimestamp();
	uint64		committed = ring_committed(leader.producer.ring);

	if (configured != weft_commit_group_size)
		tuning_reset();
	if (!in_flow)
	{
		in_flow = true;
		use(current);
	}
	if (since == 0)
	{
		since = now;
		committed_then = committed;
	}
	else if (settling && now - since >= SETTLE_TIME)
	{
		settling = false;
		since = now;
		committed_then = committed;
	}
	else if (!settling && now - since >= MEASURE_TIME)
		measured((committed - committed_then) * 1e6 / (now - since));
}
