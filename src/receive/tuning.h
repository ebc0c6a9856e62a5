/*
 * tuning.h
 *	  How many writers to use, and how many transactions each takes at a time.
 */
#ifndef WEFT_TUNING_H
#define WEFT_TUNING_H

#include "datatype/timestamp.h"
#include "ring/ring.h"

/* 1, 2, 4 ... up to all writers with groups, and all writers without groups. */
#define TUNING_MAX_SETTINGS 8

typedef struct TuningSetting
{
	int			writers;
	int			group;			/* transactions that may share a commit */
	double		rate;			/* transactions per second; 0: not measured */
} TuningSetting;

typedef enum TuningPhase
{
	TUNING_NO_FLOW,				/* transactions come rarely, or have begun to
								 * come only a moment ago: all writers */
	TUNING_SETTLING,			/* in a flow: a setting takes effect */
	TUNING_MEASURING,			/* its commits are counted */
	TUNING_KEEPING_PACE,		/* in a flow: one writer is enough */
} TuningPhase;

/* The steps of a trial; one that finds a better setting is repeated. */
typedef enum TrialStep
{
	TRIAL_MORE,					/* compares the next setting with more writers */
	TRIAL_FEWER,				/* with fewer */
	TRIAL_ONE,					/* compares one writer */
	TRIAL_OVER,
} TrialStep;

typedef struct Tuning
{
	Ring	   *ring;			/* whose limits are set; NULL: none yet */
	int			writers;
	int			processors;
	bool		batches;		/* from the publisher */
	int			configured_group;	/* the parameters at the last reset */
	bool		configured_tuning;

	/*
	 * In the order of what they cost: 1, 2, 4 ... up to all writers with
	 * groups, then all writers without groups.  The best setting is close to
	 * the one that was best before.
	 */
	TuningSetting settings[TUNING_MAX_SETTINGS];
	int			num_settings;
	int			all_grouped;	/* all writers with groups */

	TuningPhase phase;
	int			best;
	int			current;		/* the best one, or the candidate */

	/* Between two trials: measurements of the best setting. */
	int			hold;			/* how many, at most */
	int			held;			/* how many so far */
	TimestampTz held_since;		/* the end of the first one */
	int			slow_measurements;	/* the last so many were slow */

	/* A trial: other settings are compared with the best one. */
	int			candidate;		/* that is compared; -1: no trial */
	int			comparisons;	/* that it has won */
	int			best_before;	/* the best setting when the trial began */
	TrialStep	step;

	/* TUNING_SETTLING, TUNING_MEASURING */
	TimestampTz since;			/* begin of this phase; 0: at the next step */
	uint64		committed_then;
	uint64		taken_then;		/* when the current setting was chosen */

	TimestampTz last_step;
	TimestampTz flow_since;
	int			steps_behind;	/* since nothing was left to do */
	uint64		last_pause;		/* the newest seq when nothing was left to do */
} Tuning;

extern void tuning_reset(Tuning *tuning, Ring *ring, int writers, int processors, bool batches);
extern void tuning_interrupt(Tuning *tuning, TimestampTz now, uint64 seq, bool all_committed);
extern void tuning_step(Tuning *tuning, TimestampTz now, bool was_full);

#endif							/* WEFT_TUNING_H */
