/*
 * follower.h
 *	  What makes the source follow the target, and what is left of the way before.
 */
#ifndef WEFT_SWITCH_FOLLOWER_H
#define WEFT_SWITCH_FOLLOWER_H

#include "switch/switch_attempt.h"

extern void follower_read_slot(SwitchAttempt *attempt);
extern void follower_check_slot(const SwitchAttempt *attempt);
extern void follower_publish(const SwitchAttempt *attempt);
extern void follower_create_slot(const SwitchAttempt *attempt);
extern void follower_subscribe(const SwitchAttempt *attempt, const char *connection);
extern void follower_advance(const SwitchAttempt *attempt);
extern XLogRecPtr follower_position(const SwitchAttempt *attempt);
extern void follower_stop_target(const SwitchAttempt *attempt);
extern void follower_remove_old(const SwitchAttempt *attempt, TimestampTz deadline);
extern void follower_start(const SwitchAttempt *attempt);
extern void follower_undo(const SwitchAttempt *attempt);

#endif							/* WEFT_SWITCH_FOLLOWER_H */
