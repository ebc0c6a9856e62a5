/*
 * wait.h
 *	  Waiting around a ring.
 */
#ifndef WEFT_RING_WAIT_H
#define WEFT_RING_WAIT_H

#include "ring/ring.h"

/*
 * Asked from time to time while a writer waits.  If it returns true, the writer gives
 * up waiting.
 */
typedef bool (*RingGiveUp) (void *arg);

/*
 * Called when a writer that has a transaction open has slept for a while, and is
 * going to sleep on.
 */
typedef void (*RingRest) (void);

typedef struct RingWaiter
{
	Ring	   *ring;
	int			writer;			/* own number */
	RingGiveUp	give_up;
	void	   *arg;			/* for give_up */
	RingRest	rest;
} RingWaiter;

/* Leader */
extern void ring_await_commit(Ring *ring, uint64 seq);

/* Writers */
extern bool ring_writer_sleep(long timeout, uint32 wait_event);
extern bool ring_writer_doze(RingWaiter *waiter, uint32 wait_event);
extern uint64 ring_wait_transactions(RingWaiter *waiter, long timeout, int *count);
extern bool ring_wait_committed(RingWaiter *waiter, uint64 seq, uint32 wait_event);
extern bool ring_wait_data(RingWaiter *waiter, RingCursor *cursor);

#endif							/* WEFT_RING_WAIT_H */
