/*
 * wake.h
 *	  Waking those that sleep around a ring.
 */
#ifndef WEFT_RING_WAKE_H
#define WEFT_RING_WAKE_H

#include "ring/layout.h"

/* When the leader has last seen that a writer took something. */
typedef struct RingProgress
{
	uint64		taken;			/* highest seq */
	TimestampTz time;
} RingProgress;

extern void ring_wake_process(int procno);
extern void ring_wake_for_backlog(Ring *ring);
extern bool ring_wake_before_sleep(Ring *ring, RingProgress *progress);
extern void ring_wake_reader(Ring *ring, RingTransaction *transaction);
extern void ring_wake_committed(Ring *ring, uint64 last);
extern void ring_wake_all_writers(Ring *ring);

#endif							/* WEFT_RING_WAKE_H */
