/*
 * attempt.h
 *	  An attempt to switch over: what is stored of it, and what is not.
 */
#ifndef WEFT_SWITCH_ATTEMPT_H
#define WEFT_SWITCH_ATTEMPT_H

#include "catalog/pg_subscription.h"
#include "switch/side.h"
#include "utils/timestamp.h"

/* In this order; the names are in attempt.c. */
typedef enum AttemptPhase
{
	PHASE_UNDONE,				/* nothing is left of it but the fence of the target */
	PHASE_BEGUN,				/* the source accepts writes, or may do so at any moment */
	PHASE_FINAL,				/* the source does not accept writes any more */
	PHASE_OPENED,				/* the target accepts writes */
	PHASE_DONE					/* the source follows the target, if it should */
} AttemptPhase;

typedef struct Attempt
{
	Subscription *subscription;
	int64		id;				/* positive; the value of the fences (fence.c) */
	bool		back;			/* is this server the source? */
	AttemptPhase phase;
	bool		follow;			/* is the source to follow the target? */

	/* The slot of the subscription, which a way back creates again. */
	char	   *slot;
	char	   *plugin;
	bool		two_phase;
} Attempt;

/* Which side accepts writes before the attempt, and which after it. */
#define ATTEMPT_SOURCE(attempt) ((attempt)->back ? SIDE_HERE : SIDE_THERE)
#define ATTEMPT_TARGET(attempt) ((attempt)->back ? SIDE_THERE : SIDE_HERE)

extern bool attempt_load(Attempt *attempt);
extern void attempt_store(const Attempt *attempt);
extern int64 attempt_new_id(void);
extern void attempt_begin_step(const Attempt *attempt, int position, const char *step);
extern void attempt_end_step(const Attempt *attempt, int position, const char *result);
extern int	attempt_steps(const Attempt *attempt);
extern char *attempt_object_name(const Attempt *attempt);
extern char *attempt_subscription_name(const Attempt *attempt);

#endif							/* WEFT_SWITCH_ATTEMPT_H */
