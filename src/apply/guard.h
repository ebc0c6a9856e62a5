/*
 * guard.h
 *	  Makes an attempt; an error in it is either reported or a misspeculation.
 */
#ifndef WEFT_GUARD_H
#define WEFT_GUARD_H

#include "apply/attempt.h"

/* Applies and commits something; returns false if it came too early. */
typedef bool (*GuardAttempt) (void);

/* Told of an error before it is dealt with; may be NULL. */
typedef void (*GuardReport) (const ErrorData *error);

extern bool guard_attempt(AttemptStage stage, GuardAttempt attempt, GuardReport report);

#endif							/* WEFT_GUARD_H */
