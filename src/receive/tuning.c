/*
 * tuning.c
 *	  How many writers to use, and how many transactions each takes at a time.
 *
 * What is best depends on what the machine is short of.  While writers wait for
 * the disk, all of them should, each for a transaction of its own.  While it is
 * processors that are missing, or every transaction needs the rows of the one
 * before, further writers only add the price of waking them and of caches that
 * they share, and few writers that commit long groups are fastest.  No figure that
 * could be looked at tells these apart for certain, so they are measured, in the
 * order of settings from few writers to many: as many as there are processors are
 * used at first, and while there is a steady flow, now and then, more are tried for
 * a moment, further and further on for as long as that is better, or else fewer.
 * The longer nothing better is found, the less often it is looked for.
 *
 * A subscriber that is up to date has nothing to measure: while everything is committed
 * before more comes, time and again, one writer is used, since to wake several costs
 * more than it gains.  Where the leader has received all there is, and the writers are
 * far behind, all of them are used, as they are where transactions come rarely, or
 * have begun to come a moment ago: then it is how long a transaction waits that counts.
 *
 * This decides about speed only: any setting is right at any moment.
 */
#include "postgres.h"

#include <unistd.h>

#include "receive/leader.h"
#include "utils/timestamp.h"

/*
 * For so long a setting is measured, after so long for it to take effect.  Where
 * transactions are slow, for longer: until those that were taken before are committed,
 * and then until each writer has had so many runs.
 */
#define SETTLE_TIME 15000		/* us */
#define MEASURE_TIME 40000		/* us */
#define MEASURE_RUNS 2

/* If nothing has come for so long, what comes next is no flow before so long. */
#define FLOW_GAP 100000			/* us */
#define FLOW_BEGINS_AFTER 50000 /* us */

/* The writers keep pace if fewer transactions than this come between two pauses. */
#define KEEPING_PACE 16

/* And no longer if there is none in so many of our caller's steps. */
#define STEPS_BEHIND 2

/*
 * The best setting is used for so many measures before others are tried: at first,
 * after it has changed, and at most.  Each time in vain doubles it.
 */
#define FIRST_HOLD 5
#define MIN_HOLD 30
#define MAX_HOLD 240

/* If the best one is suddenly slower by more than this, others are tried at once. */
#define SUDDENLY_SLOWER 0.7

/* Another setting is better if it is faster by more than what is chance. */
#define BETTER 1.03

/* The weight of one measure in the rate of the setting that is being used. */
#define WEIGHT 0.2

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
static int	configured_group;	/* the parameters that they are for */
static bool configured_tuning;

static int	best;
static int	current;			/* the best one, or one that is being tried */
static int	direction;			/* in which others are tried: 1 up, -1 down */
static bool improved;			/* by this trial */
static int	hold;				/* measures with the best one between trials */
static int	measures_left;		/* of these */

static TimestampTz since;		/* of the current setting, or of its measure */
static uint64 committed_then;
static uint64 taken_then;		/* before the current setting was used */
static bool settling;
static TimestampTz last_step;
static TimestampTz flow_since;
static bool in_flow;
static bool keeping_pace;		/* in a flow */
static int	steps_behind;
static uint64 last_pause;		/* the transaction before the last one with
								 * nothing left to do */

/* How many transactions a writer takes at a time. */
static int
run_of(const Setting *setting)
{
	return setting->writers == 1 ? setting->group : Max(setting->group / RUNS_PER_GROUP, 1);
}

/* Tells the writers. */
static void
set(int setting)
{
	Ring	   *ring = leader.producer.ring;
	const Setting *chosen = &settings[setting];

	pg_atomic_write_u32(&ring->run_limit, run_of(chosen));
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
	taken_then = pg_atomic_read_u64(&leader.producer.ring->taken.value);
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

/* Begins anew: there is a new ring, or a parameter has changed. */
void
tuning_reset(void)
{
	long		processors = sysconf(_SC_NPROCESSORS_ONLN);

	num_settings = 0;
	best = 0;
	for (int writers = 1; writers < leader.num_writers; writers *= 2)
	{
		if (writers <= processors)
			best = num_settings;
		add(writers, guc_max_commit_group());
	}
	all_grouped = num_settings;
	if (leader.num_writers <= processors)
		best = all_grouped;
	add(leader.num_writers, guc_max_commit_group());
	if (guc_max_commit_group() > 1)
		add(leader.num_writers, 1);
	configured_group = weft_commit_group_size;
	configured_tuning = weft_tune_writers;
	current = best;
	hold = measures_left = FIRST_HOLD;
	in_flow = false;
	flow_since = last_step = 0;
	last_pause = 0;
	set(all_grouped);
}

/* Is there more to take than all writers would take twice? */
static bool
is_far_behind(void)
{
	const Setting *all = &settings[all_grouped];

	return ring_backlog(leader.producer.ring) > 2 * all->writers * run_of(all);
}

/* Uses one writer, which leaves others something to take if it should be too slow. */
static void
keep_pace(void)
{
	set(0);
	pg_atomic_write_u32(&leader.producer.ring->run_limit,
						Min(KEEPING_PACE, guc_max_commit_group()));
}

/* Is there more to do than one writer should have? */
static bool
is_behind(void)
{
	return leader.producer.seq - ring_committed(leader.producer.ring) >= KEEPING_PACE;
}

/*
 * There is a pause, if a short one: what is being measured is worth nothing.
 * "all_committed" says whether nothing is left to do.
 */
void
tuning_interrupt(bool all_committed)
{
	uint64		seq = leader.producer.seq;
	bool		few = all_committed && seq - last_pause < KEEPING_PACE;

	if (leader.num_writers == 0)
		return;
	if (all_committed)
	{
		last_pause = seq;
		steps_behind = 0;
	}
	if (!in_flow || (keeping_pace && !is_behind()))
		return;
	use(best);
	keeping_pace = few;
	if (few)
		keep_pace();
	else if (is_far_behind())
		set(all_grouped);
}

/* Tries the next setting in this direction; false if there is none. */
static bool
try_next(int from)
{
	int			next = from + direction;

	if (next < 0 || next >= num_settings)
		return false;
	use(next);
	return true;
}

static void
begin_trial(void)
{
	improved = false;
	direction = 1;
	if (try_next(best))
		return;
	direction = -1;
	if (!try_next(best))
		measures_left = hold;
}

static void
end_trial(void)
{
	hold = improved ? MIN_HOLD : Min(Max(hold * 2, MIN_HOLD), MAX_HOLD);
	measures_left = hold;
	use(best);
	elog(DEBUG1, "writers in use: %d, transactions in a commit: up to %d",
		 settings[best].writers, settings[best].group);
}

/* The setting that is being tried has made so many transactions per second. */
static void
tried(double rate)
{
	settings[current].rate = rate;
	if (rate > settings[best].rate * BETTER)
	{
		best = current;
		improved = true;
		if (try_next(current))
			return;
	}
	else if (direction > 0 && !improved)
	{
		direction = -1;
		if (try_next(best))
			return;
	}
	end_trial();
}

/* The best setting has made so many transactions per second. */
static void
held(double rate)
{
	double	   *usual = &settings[best].rate;
	bool		suddenly_slower = rate < *usual * SUDDENLY_SLOWER;

	*usual = *usual == 0 || suddenly_slower ? rate : *usual + WEIGHT * (rate - *usual);
	since = 0;
	if (--measures_left <= 0 || suddenly_slower)
		begin_trial();
}

/* Measures the setting that is being used, while there is a flow. */
static void
measure(TimestampTz now)
{
	const Setting *setting = &settings[current];
	uint64		committed = ring_committed(leader.producer.ring);
	int			enough = MEASURE_RUNS * setting->writers * run_of(setting);

	if (since == 0)
	{
		since = now;
		committed_then = committed;
	}
	else if (settling && now - since >= SETTLE_TIME && committed >= taken_then)
	{
		settling = false;
		since = now;
		committed_then = committed;
	}
	else if (!settling && now - since >= MEASURE_TIME && committed - committed_then >= enough)
	{
		double		rate = (committed - committed_then) * 1e6 / (now - since);

		if (current == best)
			held(rate);
		else
			tried(rate);
	}
}

/*
 * Called now and then while transactions come, and each time that the ring has been
 * full.
 */
void
tuning_step(bool was_full)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		gap = !was_full && now - last_step > FLOW_GAP;

	last_step = now;
	if (configured_group != weft_commit_group_size || configured_tuning != weft_tune_writers)
		tuning_reset();
	if (!weft_tune_writers)
		return;
	if (gap)
	{
		flow_since = now;
		in_flow = false;
		set(all_grouped);
	}
	else if (in_flow && keeping_pace)
	{
		if (++steps_behind >= STEPS_BEHIND)
		{
			keeping_pace = false;
			use(best);
		}
	}
	else if (in_flow)
		measure(now);
	else if (now - flow_since >= FLOW_BEGINS_AFTER)
	{
		in_flow = true;
		keeping_pace = false;
		use(best);
	}
}
