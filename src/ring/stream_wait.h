/*
 * stream_wait.h
 *	  Waiting for, and waking, those that work on a streamed transaction.
 */
#ifndef WEFT_RING_STREAM_WAIT_H
#define WEFT_RING_STREAM_WAIT_H

#include "ring/wait.h"
#include "stream_shared.h"
#include "writer_shared.h"

/* Leader, and ordinary writers */
extern void ring_wake_stream_writer(Ring *ring, StreamShared *stream);
extern StreamState ring_wait_stream_writer(RingWaiter *waiter, StreamShared *stream,
										   StreamState asked);

/* Stream writers */
extern int	ring_wait_stream(RingWaiter *waiter, WriterShared *shared, long timeout);
extern bool ring_wait_stream_data(RingWaiter *waiter, StreamShared *stream, uint64 position);
extern void ring_report_stream(StreamShared *stream, StreamState state);

#endif							/* WEFT_RING_STREAM_WAIT_H */
