/*
 * tuning.c
 *	  How many writers to use, and how many transactions each takes at a time.
 *
 * The best setting depends on what the machine is short of.  While writers wait
 * for the disk, all of them should be used, each for a transaction of its own.
 * While processors are short, or every transaction needs the rows of the one
 * before, a further writer only adds the price of waking it and of sharing caches
 * with it; few writers that commit long groups are fastest then.  No figure that
 * the leader could look up tells these cases apart for certain.  Therefore settings
 * are measured.  They are ordered from few writers to many.  The first one has as
 * many writers as there are processors.  In a steady flow, a trial measures from time
 * to time the next setting with more writers, and goes on in that direction while
 * settings get better; if the first one is not better, the trial goes in the other
 * direction.  Each trial in vain doubles the time until the next one.
 *
 * An idle subscriber has nothing to measure: while the writers repeatedly commit
 * everything before more arrives, one writer is used ("keeps pace"), since waking
 * several costs more than it gains.  If the leader has received everything available
 * and the writers are far behind, all of them are used.  All are used, too, if
 * transactions come rarely or have begun to come only a moment ago: then latency
 * counts, not throughput.
 *
 * Tuning decides about speed only: every setting is correct at every moment.
 *
 * The module sees a ring and the time that its caller passes, nothing else, so that
 * a test can simulate both.  It is the only one that writes run_limit, group_limit
 * and active_writers of a ring after ring_init().
 */
#include "postgres.h"

#include "guc.h"
#include "receive/tuning.h"

/*
 * Measure each setting for MEASURE_TIME, after letting it settle for SETTLE_TIME.
 * Both take longer where transactions are slow: a setting has settled once all
 * transactions taken before it was chosen are committed, and is measured until each
 * writer can have had MEASURE_RUNS runs.
 */
#define SETTLE_TIME 15000		/* us */
#define MEASURE_TIME 40000		/* us */
#define MEASURE_RUNS 2

/*
 * A flow ends when no transaction has come for FLOW_GAP, and begins once transactions
 * have come for FLOW_BEGINS_AFTER without such a gap.
 */
#define FLOW_GAP 100000			/* us */
#define FLOW_BEGINS_AFTER 50000 /* us */

/*
 * One writer keeps pace if fewer than KEEPING_PACE transactions come between two
 * moments with nothing left to do, and no longer once STEPS_BEHIND steps pass without
 * such a moment.
 */
#define KEEPING_PACE 16
#define STEPS_BEHIND 2

/*
 * How many times the best setting is measured before the next trial: at first, after a
 * trial that has found a better one, and at most.  A trial in vain doubles it.
 */
#define FIRST_HOLD 5
#define MIN_HOLD 30
#define MAX_HOLD 240

/* If the rate of the best setting drops below this share, a trial begins at once. */
#define SUDDENLY_SLOWER 0.7

/* Another setting is better if its rate exceeds the best one's by more than noise. */
#define BETTER 1.03

/* The weight of one measurement in the rate of the best setting. */
#define WEIGHT 0.2

/*
 * Each of several writers takes one RUNS_PER_GROUP-th of a group at a time, and more
 * only while it would have to wait.
 */
#define RUNS_PER_GROUP 4

/* How many transactions a writer takes at a time. */
static int
run_of(const TuningSetting *setting)
{
	return setting->writers == 1 ? setting->group : Max(setting->group / RUNS_PER_GROUP, 1);
}

/* Tells the writers to work by a setting. */
static void
announce(Tuning *tuning, int setting)
{
	Ring	   *ring = tuning->ring;
	const TuningSetting *chosen = &tuning->settings[setting];

	pg_atomic_write_u32(&ring->run_limit, run_of(chosen));
	pg_atomic_write_u32(&ring->group_limit, chosen->group);
	pg_atomic_write_u32(&ring->active_writers, chosen->writers);
}

/* Begins to use a setting, and to measure it. */
static void
use(Tuning *tuning, int setting)
{
	tuning->current = setting;
	tuning->phase = TUNING_SETTLING;
	tuning->since = 0;
	announce(tuning, setting);
	tuning->taken_then = pg_atomic_read_u64(&tuning->ring->taken.value);
}

static void
add_setting(Tuning *tuning, int writers, int group)
{
	TuningSetting *setting = &tuning->settings[tuning->num_settings++];

	Assert(tuning->num_settings <= TUNING_MAX_SETTINGS);
	setting->writers = writers;
	setting->group = group;
	setting->rate = 0;
}

/* Starts over: there is a new ring, or a parameter has changed. */
void
tuning_reset(Tuning *tuning, Ring *ring, int writers, int processors)
{
	int			group = guc_max_commit_group();

	memset(tuning, 0, sizeof(Tuning));
	tuning->ring = ring;
	tuning->writers = writers;
	tuning->processors = processors;
	tuning->configured_group = group;
	tuning->configured_tuning = weft_tune_writers;

	for (int fewer = 1; fewer < writers; fewer *= 2)
	{
		if (fewer <= processors)
			tuning->best = tuning->num_settings;
		add_setting(tuning, fewer, group);
	}
	tuning->all_grouped = tuning->num_settings;
	if (writers <= processors)
		tuning->best = tuning->all_grouped;
	add_setting(tuning, writers, group);
	if (group > 1)
		add_setting(tuning, writers, 1);

	tuning->phase = TUNING_NO_FLOW;
	tuning->current = tuning->best;
	tuning->hold = tuning->measurements_left = FIRST_HOLD;
	announce(tuning, tuning->all_grouped);
}

/* Is the backlog more than all writers would take in two runs each? */
static bool
is_far_behind(const Tuning *tuning)
{
	const TuningSetting *all = &tuning->settings[tuning->all_grouped];

	return ring_backlog(tuning->ring) > 2 * all->writers * run_of(all);
}

/*
 * Uses one writer.  Its runs are short, so that others find something to take if it
 * turns out to be too slow.
 */
static void
keep_pace(Tuning *tuning)
{
	tuning->phase = TUNING_KEEPING_PACE;
	announce(tuning, 0);
	pg_atomic_write_u32(&tuning->ring->run_limit,
						Min(KEEPING_PACE, guc_max_commit_group()));
}

/*
 * The leader has nothing to receive at the moment.  The measurement at hand is void,
 * since it would measure the publisher.  "seq" is the newest transaction in the ring,
 * "all_committed" says that nothing is left to do.
 */
void
tuning_interrupt(Tuning *tuning, uint64 seq, bool all_committed)
{
	bool		few = all_committed && seq - tuning->last_pause < KEEPING_PACE;

	if (all_committed)
	{
		tuning->last_pause = seq;
		tuning->steps_behind = 0;
	}
	if (tuning->phase == TUNING_NO_FLOW ||
		(tuning->phase == TUNING_KEEPING_PACE &&
		 seq - ring_committed(tuning->ring) < KEEPING_PACE))
		return;
	use(tuning, tuning->best);
	if (few)
		keep_pace(tuning);
	else if (is_far_behind(tuning))
		announce(tuning, tuning->all_grouped);
}

/* Tries the next setting in the trial's direction; returns false if there is none. */
static bool
try_next(Tuning *tuning, int from)
{
	int			next = from + tuning->direction;

	if (next < 0 || next >= tuning->num_settings)
		return false;
	use(tuning, next);
	return true;
}

static void
begin_trial(Tuning *tuning)
{
	tuning->best_before = tuning->best;
	tuning->direction = 1;
	if (try_next(tuning, tuning->best))
		return;
	tuning->direction = -1;
	if (!try_next(tuning, tuning->best))
		tuning->measurements_left = tuning->hold;
}

static void
end_trial(Tuning *tuning)
{
	const TuningSetting *best = &tuning->settings[tuning->best];

	if (tuning->best != tuning->best_before)
		tuning->hold = MIN_HOLD;
	else
		tuning->hold = Min(Max(tuning->hold * 2, MIN_HOLD), MAX_HOLD);
	tuning->measurements_left = tuning->hold;
	use(tuning, tuning->best);
	elog(DEBUG1, "writers in use: %d, transactions in a commit: up to %d",
		 best->writers, best->group);
}

/* The setting that is tried has reached this rate. */
static void
tried(Tuning *tuning, double rate)
{
	tuning->settings[tuning->current].rate = rate;
	if (rate > tuning->settings[tuning->best].rate * BETTER)
	{
		tuning->best = tuning->current;
		if (try_next(tuning, tuning->current))
			return;
	}
	else if (tuning->direction > 0 && tuning->best == tuning->best_before)
	{
		tuning->direction = -1;
		if (try_next(tuning, tuning->best))
			return;
	}
	end_trial(tuning);
}

/* The best setting has reached this rate. */
static void
held(Tuning *tuning, double rate)
{
	double	   *usual = &tuning->settings[tuning->best].rate;
	bool		suddenly_slower = rate < *usual * SUDDENLY_SLOWER;

	*usual = *usual == 0 || suddenly_slower ? rate : *usual + WEIGHT * (rate - *usual);
	tuning->since = 0;
	if (--tuning->measurements_left <= 0 || suddenly_slower)
		begin_trial(tuning);
}

/* Measures the current setting in a flow. */
static void
measure(Tuning *tuning, TimestampTz now)
{
	const TuningSetting *setting = &tuning->settings[tuning->current];
	uint64		committed = ring_committed(tuning->ring);
	TimestampTz elapsed = now - tuning->since;

	if (tuning->since == 0)
	{
		tuning->since = now;
		tuning->committed_then = committed;
	}
	else if (tuning->phase == TUNING_SETTLING)
	{
		if (elapsed >= SETTLE_TIME && committed >= tuning->taken_then)
		{
			tuning->phase = TUNING_MEASURING;
			tuning->since = now;
			tuning->committed_then = committed;
		}
	}
	else if (elapsed >= MEASURE_TIME &&
			 committed - tuning->committed_then >= MEASURE_RUNS * setting->writers * run_of(setting))
	{
		double		rate = (committed - tuning->committed_then) * 1e6 / elapsed;

		if (tuning->current == tuning->best)
			held(tuning, rate);
		else
			tried(tuning, rate);
	}
}

/*
 * Called every few transactions, and each time that the ring has been full.
 */
void
tuning_step(Tuning *tuning, TimestampTz now, bool was_full)
{
	bool		gap = !was_full && now - tuning->last_step > FLOW_GAP;

	tuning->last_step = now;
	if (tuning->configured_group != guc_max_commit_group() ||
		tuning->configured_tuning != weft_tune_writers)
		tuning_reset(tuning, tuning->ring, tuning->writers, tuning->processors);
	if (!weft_tune_writers)
		return;

	if (gap)
	{
		tuning->flow_since = now;
		tuning->phase = TUNING_NO_FLOW;
		announce(tuning, tuning->all_grouped);
		return;
	}
	switch (tuning->phase)
	{
		case TUNING_NO_FLOW:
			if (now - tuning->flow_since >= FLOW_BEGINS_AFTER)
				use(tuning, tuning->best);
			break;
		case TUNING_KEEPING_PACE:
			if (++tuning->steps_behind >= STEPS_BEHIND)
				use(tuning, tuning->best);
			break;
		case TUNING_SETTLING:
		case TUNING_MEASURING:
			measure(tuning, now);
			break;
	}
}
