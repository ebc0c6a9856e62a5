/*
 * follower.h
 *	  What makes the source follow the target, and what is left of the way before.
 */
#ifndef WEFT_SWITCH_FOLLOWER_H
#define WEFT_SWITCH_FOLLOWER_H

#include "switch/attempt.h"

extern void follower_read_slot(Attempt *attempt);
extern void follower_publish(const Attempt *attempt);
extern void follower_create_slot(const Attempt *attempt);
extern void follower_subscribe(const Attempt *attempt, const char *connection);
extern XLogRecPtr follower_position(const Attempt *attempt);
extern void follower_stop_target(const Attempt *attempt);
extern void follower_remove_old(const Attempt *attempt, TimestampTz deadline);
extern void follower_start(const Attempt *attempt);
extern void follower_undo(const Attempt *attempt);

#endif							/* WEFT_SWITCH_FOLLOWER_H */
