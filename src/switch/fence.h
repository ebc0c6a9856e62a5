/*
 * fence.h
 *	  The fence that keeps everybody but replication from writing on one side.
 */
#ifndef WEFT_SWITCH_FENCE_H
#define WEFT_SWITCH_FENCE_H

#include "switch/switch_attempt.h"

extern void fence_install(SwitchSide side);
extern bool fence_arm_next(const SwitchAttempt *attempt, SwitchSide side, int lock_timeout);
extern bool fence_disarm_next(SwitchSide side, int lock_timeout);
extern void fence_close(const SwitchAttempt *attempt, SwitchSide side, int64 limit,
						int lock_timeout);
extern bool fence_make_final(const SwitchAttempt *attempt);
extern void fence_flush(SwitchSide side);
extern void fence_reopen(const SwitchAttempt *attempt);
extern void fence_open(SwitchSide side);
extern int64 fence_state(SwitchSide side);
extern char *fence_base_tables(const SwitchAttempt *attempt, SwitchSide side);

#endif							/* WEFT_SWITCH_FENCE_H */
