/*
 * drain.h
 *	  Waits until the target has what the source had.
 */
#ifndef WEFT_SWITCH_DRAIN_H
#define WEFT_SWITCH_DRAIN_H

#include "switch/switch_attempt.h"

extern XLogRecPtr drain(const SwitchAttempt *attempt, TimestampTz deadline);

#endif							/* WEFT_SWITCH_DRAIN_H */
