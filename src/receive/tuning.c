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
 * are measured.  They are ordered from few writers to many.  The first one has as many
 * writers as there are processors.  It has half as many if each transaction has a commit of its
 * own, because then passing the turn costs more than a second processor gains, and if the
 * publisher sends no batches, because then sending and receiving a transaction takes as long as
 * applying it.  In a steady flow, a trial compares the best setting from time to time with the next one with more
 * writers, and goes on in that direction while settings get better; if it is not better, then
 * with the next one with fewer, and with one writer.  Each trial in vain doubles the time until
 * the next one.
 *
 * Fewer writers are better already if they are as fast.  The rate is the same for all settings
 * where the publisher is the limit.  More writers are then ahead of it more often: they commit
 * shorter groups, leave out fewer updates, and take processor time from a walsender on the same
 * machine, and from whoever reads there.
 *
 * A measurement is noisy, and what it measures drifts: caches warm up, and the disk stalls
 * now and then.  Therefore a setting that seems better is compared with what the best
 * setting reaches before and after, and, unless it is much better, once more.  A stall is
 * no reason to change anything: all settings are slow then.  If a wrong setting is chosen all
 * the same, the next trial is never far away, however slow transactions are.
 *
 * An idle subscriber has nothing to measure: while the writers repeatedly commit
 * everything before more arrives, one writer is used ("keeps pace"), since waking
 * several costs more than it gains.  All of them are used if transactions come rarely, or
 * have begun to come only a moment ago, and not many of them: then latency counts, not
 * throughput.
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
 * A measurement ends early, but not before MIN_MEASURE_TIME, if the rate will be below this
 * share of the best one's.
 */
#define MIN_MEASURE_TIME 10000	/* us */
#define HOPELESS 0.7

/*
 * One writer is not tried if it was hopeless.  Each time, its rate is assumed to have grown
 * by this factor since, so that it is tried again some time.
 */
#define FORGETTING 1.5

/*
 * A flow ends when no transaction has come for FLOW_GAP, and begins once transactions
 * have come for FLOW_BEGINS_AFTER without such a gap, or once FLOW_BACKLOG of them wait
 * for writers.
 */
#define FLOW_GAP 100000			/* us */
#define FLOW_BEGINS_AFTER 50000 /* us */
#define FLOW_BACKLOG 1024

/*
 * One writer keeps pace if fewer than KEEPING_PACE transactions come between two
 * moments with nothing left to do, and no longer once STEPS_BEHIND steps pass without
 * such a moment.
 */
#define KEEPING_PACE 16
#define STEPS_BEHIND 2

/*
 * How many times the best setting is measured before the next trial: at first, after a
 * trial that has found a better one, and at most.  A trial in vain doubles it.  If
 * measurements take long, then LONG_HOLD of them are enough once LONG_HOLD_TIME is over.
 */
#define FIRST_HOLD 4
#define MIN_HOLD 30
#define MAX_HOLD 240
#define LONG_HOLD 10
#define LONG_HOLD_TIME (15 * USECS_PER_SEC)

/*
 * If so many measurements of the best setting in a row are below this share of its rate, a
 * trial begins at once.
 */
#define SUDDENLY_SLOWER 0.7
#define SLOW_MEASUREMENTS 2

/*
 * A setting with more writers is better if its rate exceeds the best one's by more than noise, one
 * with fewer if its rate is not below the best one's by more than noise, in COMPARISONS comparisons,
 * or in one if it is much better.
 */
#define BETTER 1.03
#define NOT_WORSE 0.97
#define MUCH_BETTER 1.15
#define COMPARISONS 2

/* The weight of one measurement in the rate of the best setting. */
#define WEIGHT 0.5

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

/* Begins to use and to measure the best setting; a trial is over without a result. */
static void
use_best(Tuning *tuning)
{
	tuning->candidate = -1;
	use(tuning, tuning->best);
}

/* Begins to count measurements of the best setting until the next trial. */
static void
hold_best(Tuning *tuning)
{
	tuning->held = 0;
	tuning->held_since = 0;
	tuning->slow_measurements = 0;
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

/*
 * Starts over: there is a new ring, or a parameter has changed.  "batches" tells whether the
 * publisher sends them.
 */
void
tuning_reset(Tuning *tuning, Ring *ring, int writers, int processors, bool batches)
{
	int			group = guc_max_commit_group();
	int			likely = group > 1 && batches ? processors : processors / 2;

	memset(tuning, 0, sizeof(Tuning));
	tuning->ring = ring;
	tuning->writers = writers;
	tuning->processors = processors;
	tuning->batches = batches;
	tuning->configured_group = group;
	tuning->configured_tuning = weft_tune_writers;

	for (int fewer = 1; fewer < writers; fewer *= 2)
	{
		if (fewer <= likely)
			tuning->best = tuning->num_settings;
		add_setting(tuning, fewer, group);
	}
	tuning->all_grouped = tuning->num_settings;
	if (writers <= likely)
		tuning->best = tuning->all_grouped;
	add_setting(tuning, writers, group);
	if (group > 1)
		add_setting(tuning, writers, 1);

	tuning->phase = TUNING_NO_FLOW;
	tuning->current = tuning->best;
	tuning->candidate = -1;
	tuning->hold = FIRST_HOLD;
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

static void
end_trial(Tuning *tuning)
{
	const TuningSetting *best = &tuning->settings[tuning->best];

	if (tuning->best != tuning->best_before)
		tuning->hold = MIN_HOLD;
	else
		tuning->hold = Min(Max(tuning->hold * 2, MIN_HOLD), MAX_HOLD);
	hold_best(tuning);
	use_best(tuning);
	elog(DEBUG1, "writers in use: %d, transactions in a commit: up to %d, for %d measurements",
		 best->writers, best->group, tuning->hold);
}

static bool
one_was_hopeless(Tuning *tuning)
{
	double	   *rate = &tuning->settings[0].rate;

	*rate *= FORGETTING;
	return *rate > 0 && *rate < tuning->settings[tuning->best].rate * HOPELESS;
}

/* Is there anything to be learnt from comparing this setting with the best one? */
static bool
is_candidate(Tuning *tuning, int setting)
{
	if (setting < 0 || setting >= tuning->num_settings ||
		setting == tuning->best || setting == tuning->candidate)
		return false;
	switch (tuning->step)
	{
		case TRIAL_MORE:
			return true;
		case TRIAL_FEWER:
			/* Those between have been compared. */
			return setting < tuning->best_before;
		case TRIAL_ONE:
			return !one_was_hopeless(tuning);
		case TRIAL_OVER:
			break;
	}
	pg_unreachable();
}

/*
 * Goes on with the trial: with the next setting that differs from the best one and the last
 * candidate.  One writer never waits for its turn.  Therefore it is a candidate even if it
 * is not the next lower setting: it can be best though two writers are worse than four.
 */
static void
try_next(Tuning *tuning)
{
	for (; tuning->step < TRIAL_OVER; tuning->step++)
	{
		int			next = tuning->step == TRIAL_MORE ? tuning->best + 1 :
			tuning->step == TRIAL_FEWER ? tuning->best - 1 : 0;

		if (is_candidate(tuning, next))
		{
			tuning->candidate = next;
			tuning->comparisons = 0;
			use(tuning, next);
			return;
		}
	}
	end_trial(tuning);
}

static void
begin_trial(Tuning *tuning)
{
	tuning->best_before = tuning->best;
	tuning->candidate = -1;
	tuning->step = TRIAL_MORE;
	try_next(tuning);
}

/*
 * The candidate is better, or it is not.  While settings get better, the trial goes on in the
 * same direction.
 */
static void
decide(Tuning *tuning, bool better)
{
	const TuningSetting *candidate = &tuning->settings[tuning->candidate];
	const TuningSetting *best = &tuning->settings[tuning->best];

	elog(DEBUG1, "%d writers with up to %d transactions in a commit are %s: %.0f/s, %.0f/s with %d and %d",
		 candidate->writers, candidate->group, better ? "better" : "not better",
		 candidate->rate, best->rate, best->writers, best->group);
	if (better)
		tuning->best = tuning->candidate;
	else
		tuning->step++;
	try_next(tuning);
}

/* Is the candidate better than the best setting if its rate is so many times as high? */
static bool
is_better(const Tuning *tuning, double gain)
{
	return tuning->candidate < tuning->best ? gain >= NOT_WORSE : gain > BETTER;
}

/* The candidate has reached this rate.  If that seems better, measures the best one again. */
static void
tried(Tuning *tuning, double rate)
{
	double		gain = rate / tuning->settings[tuning->best].rate;

	tuning->settings[tuning->candidate].rate = rate;
	if (is_better(tuning, gain))
		use(tuning, tuning->best);
	else
		decide(tuning, false);
}

/* The best setting has reached this rate after the candidate was measured. */
static void
compared(Tuning *tuning, double rate)
{
	TuningSetting *best = &tuning->settings[tuning->best];
	double		gain = tuning->settings[tuning->candidate].rate / Max(best->rate, rate);

	best->rate = rate;
	if (!is_better(tuning, gain))
		decide(tuning, false);
	else if (gain > MUCH_BETTER || ++tuning->comparisons >= COMPARISONS)
		decide(tuning, true);
	else
		use(tuning, tuning->candidate);
}

/* The best setting has reached this rate, and no trial is going on. */
static void
held(Tuning *tuning, double rate, TimestampTz now)
{
	double	   *usual = &tuning->settings[tuning->best].rate;
	bool		slow = rate < *usual * SUDDENLY_SLOWER;

	tuning->since = 0;
	tuning->slow_measurements = slow ? tuning->slow_measurements + 1 : 0;
	if (*usual == 0 || tuning->slow_measurements >= SLOW_MEASUREMENTS)
		*usual = rate;
	else if (!slow)
		*usual += WEIGHT * (rate - *usual);
	if (tuning->held_since == 0)
		tuning->held_since = now;

	tuning->held++;
	if (tuning->held >= tuning->hold ||
		tuning->slow_measurements >= SLOW_MEASUREMENTS ||
		(tuning->held >= LONG_HOLD && now - tuning->held_since >= LONG_HOLD_TIME))
		begin_trial(tuning);
}

/*
 * Is a measurement over?  The candidate's ends early if it is clear that it is much slower than the
 * best setting, even if each of its writers is about to commit a run.
 */
static bool
is_measured(const Tuning *tuning, uint64 committed, TimestampTz elapsed)
{
	const TuningSetting *setting = &tuning->settings[tuning->current];
	uint64		runs = setting->writers * run_of(setting);

	if (tuning->current == tuning->candidate && elapsed >= MIN_MEASURE_TIME &&
		(committed + runs) * 1e6 / elapsed < tuning->settings[tuning->best].rate * HOPELESS)
		return true;
	return elapsed >= MEASURE_TIME && committed >= MEASURE_RUNS * runs;
}

/* Measures the current setting in a flow. */
static void
measure(Tuning *tuning, TimestampTz now)
{
	uint64		committed = ring_committed(tuning->ring);
	uint64		done = committed - tuning->committed_then;
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
	else if (is_measured(tuning, done, elapsed))
	{
		double		rate = Max(done, 1) * 1e6 / elapsed;

		if (tuning->candidate < 0)
			held(tuning, rate, now);
		else if (tuning->current == tuning->candidate)
			tried(tuning, rate);
		else
			compared(tuning, rate);
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
		tuning_reset(tuning, tuning->ring, tuning->writers, tuning->processors, tuning->batches);
	if (!weft_tune_writers)
		return;

	if (gap)
	{
		tuning->flow_since = now;
		tuning->phase = TUNING_NO_FLOW;
		announce(tuning, tuning->all_grouped);
	}
	switch (tuning->phase)
	{
		case TUNING_NO_FLOW:
			if (now - tuning->flow_since >= FLOW_BEGINS_AFTER ||
				ring_backlog(tuning->ring) >= FLOW_BACKLOG)
				use_best(tuning);
			break;
		case TUNING_KEEPING_PACE:
			if (++tuning->steps_behind >= STEPS_BEHIND)
				use_best(tuning);
			break;
		case TUNING_SETTLING:
		case TUNING_MEASURING:
			measure(tuning, now);
			break;
	}
}

/*
 * The leader has nothing to receive at the moment.  While the writers are far behind, they are
 * measured all the same.  Otherwise the measurement at hand is void, since it would measure the
 * publisher.  "seq" is the newest transaction in the ring, "all_committed" says that nothing is
 * left to do.
 */
void
tuning_interrupt(Tuning *tuning, TimestampTz now, uint64 seq, bool all_committed)
{
	bool		few = all_committed && seq - tuning->last_pause < KEEPING_PACE;

	if (all_committed)
	{
		tuning->last_pause = seq;
		tuning->steps_behind = 0;
	}
	if (is_far_behind(tuning))
	{
		tuning_step(tuning, now, true);
		return;
	}
	if (tuning->phase == TUNING_NO_FLOW ||
		(tuning->phase == TUNING_KEEPING_PACE &&
		 seq - ring_committed(tuning->ring) < KEEPING_PACE))
		return;
	use_best(tuning);
	if (few)
		keep_pace(tuning);
}
