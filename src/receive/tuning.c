/*
 * tuning.c
 *	  How many writers to use, and how many transactions each takes at a time.
 *
 * What is best depends on what the machine is short of.  While writers wait for
 * the disk, all of them should, each for a transaction of its own.  While it is
 * processors that are missing, or every transaction needs the rows of the one
 * before, further writers only add the price of waking them, and few writers that
 * commit long groups are fastest.  No figure that could be looked at tells these
 * apart for certain, so while there is a steady flow each setting is tried for a
 * moment, and the one that has committed most is used.  Then its neighbours are
 * tried again now and then.
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

/*
 * Of several writers, each takes such a share of a group at a time, and more only
 * while it would have to wait.
 */
#define RUNS_PER_GROUP 4

typedef struct Setting
{
	int			writers;
	int			group;			/* transactions that may share a commit */
	double		rate;			/* transactions per second when last measured */
} Setting;

/*
 * Groups with 1, 2, 4 ... up to all writers, then all writers without groups:
 * what is best is not far from what was.
 */
static Setting settings[8];
static int	num_settings;
static int	all_grouped;		/* all writers with groups: outside of a flow */
static int	configured;			/* weft.commit_group_size that they are for */
static int	current;
static int	best;
static int	first_tried;		/* in this trial */
static int	last_tried;
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
	const Setting *chosen = &settings[setting];
	int			run = chosen->writers == 1 ? chosen->group : chosen->group / RUNS_PER_GROUP;

	pg_atomic_write_u32(&ring->run_limit, Max(run, 1));
	pg_atomic_write_u32(&ring->group_limit, chosen->group);
	pg_atomic_write_u32(&ring->active_writers, chosen->writers);
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
add(int writers, int group)
{
	Assert(num_settings < lengthof(settings));
	settings[num_settings].writers = writers;
	settings[num_settings].group = group;
	settings[num_settings].rate = 0;
	num_settings++;
}

/* Begins anew: there is a new ring, or weft.commit_group_size has changed. */
void
tuning_reset(void)
{
	num_settings = 0;
	for (int writers = 1; writers < leader.num_writers; writers *= 2)
		add(writers, group_size());
	all_grouped = num_settings;
	add(leader.num_writers, group_size());
	if (group_size() > 1)
		add(leader.num_writers, 1);
	configured = weft_commit_group_size;
	best = all_grouped;
	first_tried = 0;
	last_tried = num_settings - 1;
	measures_left = 0;
	current = first_tried;
	in_flow = false;
	set(all_grouped);
}

/* The flow is interrupted: what is being measured is worth nothing. */
void
tuning_interrupt(void)
{
	if (!in_flow || leader.num_writers == 0)
		return;
	in_flow = false;
	set(all_grouped);
}

/* A measure is complete: go on to the next. */
static void
measured(double rate)
{
	settings[current].rate = rate;
	if (measures_left > 0)
	{
		if (--measures_left > 0)
		{
			since = 0;
			return;
		}
		first_tried = Max(best - 1, 0);
		last_tried = Min(best + 1, num_settings - 1);
		use(first_tried);
	}
	else if (current < last_tried)
		use(current + 1);
	else
	{
		best = first_tried;
		for (int i = first_tried + 1; i <= last_tried; i++)
			if (settings[i].rate > settings[best].rate)
				best = i;
		measures_left = MEASURES_BETWEEN_TRIALS;
		use(best);
	}
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
