/*
 * turn.h
 *	  The commit order: whose turn it is, and who gives way to whom.
 */
#ifndef WEFT_TURN_H
#define WEFT_TURN_H

#include "ring/wait.h"

extern void turn_init(RingRest rest);
extern RingWaiter *turn_waiter(void);
extern void turn_begin(uint64 first);
extern void turn_begin_stream(void);
extern bool turn_of_stream(void);
extern bool turn_is_oldest(void);
extern bool turn_wait_oldest(void);
extern bool turn_wait_dependency(uint64 seq);
extern void turn_wait_retry(void);
extern bool turn_must_yield(void);
extern bool turn_blocks_others(void);

#endif							/* WEFT_TURN_H */
