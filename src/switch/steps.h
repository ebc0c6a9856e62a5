/*
 * steps.h
 *	  The steps of a switch-over.
 */
#ifndef WEFT_SWITCH_STEPS_H
#define WEFT_SWITCH_STEPS_H

#include "switch/switch_attempt.h"
#include "verify/rest_check.h"

/* In their order; names and functions are in steps.c. */
typedef enum SwitchStep
{
	STEP_PLAN,
	STEP_ARM_TARGET,
	STEP_FENCE_TARGET,
	STEP_ARM_SOURCE,
	STEP_PUBLISH,
	STEP_CREATE_SLOT,
	STEP_SUBSCRIBE,
	STEP_COMPARE,
	STEP_CATCH_UP,
	STEP_SEQUENCES_BEFORE,
	STEP_FENCE_SOURCE,
	STEP_DRAIN,
	STEP_SEQUENCES,
	STEP_VERIFY,
	STEP_POSITION,
	STEP_FINAL,
	STEP_STOP,
	STEP_OPEN,
	STEP_REMOVE,
	STEP_FOLLOW,
	STEP_DISARM,
	STEP_END
} SwitchStep;

/* How a switch-over is to be done. */
typedef struct SwitchOptions
{
	char	   *reverse;		/* connection string of the other server to
								 * this one */
	char	   *connection;		/* the way to the other server; NULL: the
								 * subscription's own */
	char	   *verify;
	int			max_pause;		/* in ms, as lock_timeout is */
	int			lock_timeout;
	int64		margin;			/* of sequences */
	TimestampTz deadline;		/* of the current wait */
	bool		repeated;		/* is the step called again? */

	/* With verify => 'recent': of the step "compare", for "verify". */
	RestCheckMark mark;
} SwitchOptions;

extern const char *steps_name(SwitchStep step);
extern bool steps_is_needed(const SwitchAttempt *attempt, const SwitchOptions *options,
							SwitchStep step);
extern bool steps_needs_link(const SwitchAttempt *attempt, SwitchStep step);
extern void steps_check_target(const SwitchAttempt *attempt);
extern bool steps_run(SwitchAttempt *attempt, SwitchOptions *options, SwitchStep step, char **result);

#endif							/* WEFT_SWITCH_STEPS_H */
