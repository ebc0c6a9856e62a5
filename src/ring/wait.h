/*
 * wait.h
 *	  Sleeping and waking around a ring.
 */
#ifndef WEFT_WAIT_H
#define WEFT_WAIT_H

#include "ring/ring.h"
#include "shmem.h"

/*
 * Asked from time to time while a writer waits.  If it returns true, the
 * writer gives up waiting.
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

/* When the leader has last seen that something was taken. */
typedef struct RingProgress
{
	uint64		taken;			/* highest seq */
	TimestampTz time;
} RingProgress;

/* Leader */
extern void ring_wake_for_backlog(Ring *ring);
extern bool ring_wake_before_sleep(Ring *ring, RingProgress *progress);
extern void ring_wake_reader(Ring *ring, RingTransaction *transaction);
extern void ring_wake_stream_writer(Ring *ring, StreamShared *stream);
extern void ring_stop(Ring *ring);
extern void ring_await_commit(Ring *ring, uint64 seq);

/* Writers */
extern uint64 ring_wait_transactions(RingWaiter *waiter, long timeout, int *count);
extern bool ring_stopping(Ring *ring);
extern bool ring_wait_committed(RingWaiter *waiter, uint64 seq, uint32 wait_event);
extern bool ring_wait_data(RingWaiter *waiter, RingCursor *cursor);
extern int	ring_wait_stream(RingWaiter *waiter, WriterShared *shared, long timeout);
extern bool ring_wait_stream_data(RingWaiter *waiter, StreamShared *stream, uint64 position);
extern StreamState ring_wait_stream_writer(RingWaiter *waiter, StreamShared *stream,
										   StreamState asked);
extern void ring_report_stream(StreamShared *stream, StreamState state);
extern void ring_commit(Ring *ring, uint64 first, uint64 last, XLogRecPtr local_end);

/* Wait events, as pg_stat_activity shows them. */
typedef enum RingWaitEvent
{
	RING_WAIT_LEADER_MAIN,
	RING_WAIT_LEADER_SPACE,
	RING_WAIT_LEADER_DRAIN,
	RING_WAIT_WRITER_MAIN,
	RING_WAIT_WRITER_DATA,
	RING_WAIT_WRITER_DEPENDENCY,
	RING_WAIT_WRITER_COMMIT_ORDER,
	RING_WAIT_WRITER_RETRY,
	RING_WAIT_WRITER_CLOCK,
	RING_WAIT_WRITER_STREAM,
	RING_WAIT_SUBSCRIPTION,
	RING_WAIT_COPY_HELPERS,
	RING_WAIT_COPY_DATA,
} RingWaitEvent;

extern uint32 ring_wait_event(RingWaitEvent event);

#endif							/* WEFT_WAIT_H */
