/*
 * switch_attempt.h
 *	  An attempt to switch over: what is stored of it, and what is not.
 */
#ifndef WEFT_SWITCH_SWITCH_ATTEMPT_H
#define WEFT_SWITCH_SWITCH_ATTEMPT_H

#include "catalog/pg_subscription.h"
#include "switch/side.h"
#include "utils/timestamp.h"

/* In this order; the names are in switch_attempt.c. */
typedef enum SwitchPhase
{
	PHASE_UNDONE,				/* nothing is left of it but the fence of the
								 * target */
	PHASE_BEGUN,				/* the source accepts writes, or may do so at
								 * any moment */
	PHASE_FINAL,				/* the source does not accept writes any more */
	PHASE_OPENED,				/* the target accepts writes */
	PHASE_DONE					/* the source follows the target, if it should */
} SwitchPhase;

typedef struct SwitchAttempt
{
	Subscription *subscription;
	int64		id;				/* positive; the value of the fences (fence.c) */
	bool		back;			/* is this server the source? */
	SwitchPhase phase;
	bool		follow;			/* is the source to follow the target? */

	/* The slot of the subscription, which a way back creates again. */
	char	   *slot;
	char	   *plugin;
	bool		two_phase;
} SwitchAttempt;

/* Which side accepts writes before the attempt, and which after it. */
#define ATTEMPT_SOURCE(attempt) ((attempt)->back ? SIDE_HERE : SIDE_THERE)
#define ATTEMPT_TARGET(attempt) ((attempt)->back ? SIDE_THERE : SIDE_HERE)

extern bool switch_attempt_load(SwitchAttempt *attempt);
extern void switch_attempt_store(const SwitchAttempt *attempt);
extern int64 switch_attempt_new_id(void);
extern void switch_attempt_begin_step(const SwitchAttempt *attempt, int position, const char *step);
extern void switch_attempt_end_step(const SwitchAttempt *attempt, int position, const char *result);
extern bool switch_attempt_is_own(const SwitchAttempt *attempt, int64 id);
extern int	switch_attempt_steps(const SwitchAttempt *attempt);
extern char *switch_attempt_object_name(const SwitchAttempt *attempt);
extern char *switch_attempt_subscription_name(const SwitchAttempt *attempt);

#endif							/* WEFT_SWITCH_SWITCH_ATTEMPT_H */
