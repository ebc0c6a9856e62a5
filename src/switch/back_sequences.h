/*
 * back_sequences.h
 *	  Sets the other server's sequences at or beyond this one's.
 */
#ifndef WEFT_SWITCH_BACK_SEQUENCES_H
#define WEFT_SWITCH_BACK_SEQUENCES_H

#include "switch/switch_attempt.h"

extern void back_sequences_sync(const SwitchAttempt *attempt, int64 margin);

#endif							/* WEFT_SWITCH_BACK_SEQUENCES_H */
