/*
 * stream_wait.c
 *	  Waiting for, and waking, those that work on a streamed transaction.
 *
 * The rule is that of wait.c.  The leader wakes the stream writer S when it has written
 * more of the spool; the ordinary writer W, whose turn it is to commit the transaction,
 * asks S to finish or discard it, and waits for S's answer.  W holds no locks then, so
 * that S waits for nothing of W's.
 */
#include "postgres.h"

#include "compat.h"
#include "guc.h"
#include "miscadmin.h"
#include "ring/stream_wait.h"
#include "ring/wake.h"
#include "storage/proc.h"
#include "wait_event.h"

/*
 * Wakes the writer of a streamed transaction if there is more to read, or its state
 * has changed.
 */
void
ring_wake_stream_writer(Ring *ring, StreamShared *stream)
{
	pg_memory_barrier();
	if (pg_atomic_read_u32(&stream->data_awaited) != 0)
	{
		pg_atomic_write_u32(&stream->data_awaited, 0);
		ring_wake_process(ring->writer_procno[pg_atomic_read_u32(&stream->writer)]);
	}
}

/*
 * Waits until the calling stream writer is given a streamed transaction; returns
 * its index from 0 on, or -1 if it is to end, or the timeout, in milliseconds, is
 * over.
 */
int
ring_wait_stream(RingWaiter *waiter, WriterShared *shared, long timeout)
{
	for (;;)
	{
		uint32		stream;

		CHECK_FOR_INTERRUPTS();
		guc_reload_if_requested();
		pg_memory_barrier();
		stream = pg_atomic_read_u32(&shared->stream);
		if (stream != 0)
			return (int) stream - 1;
		if (ring_stopping(waiter->ring) ||
			!ring_writer_sleep(timeout, wait_event_id(WEFT_WAIT_WRITER_MAIN)))
			return -1;
	}
}

/*
 * Waits until there may be more of a streamed transaction to read than up to "position",
 * or its state has changed, or some time has passed.  Returns false if give_up said to
 * stop.
 */
bool
ring_wait_stream_data(RingWaiter *waiter, StreamShared *stream, uint64 position)
{
	pg_atomic_write_u32(&stream->data_awaited, 1);
	pg_memory_barrier();
	if (pg_atomic_read_u64(&stream->written) == position &&
		pg_atomic_read_u32(&stream->state) == STREAM_APPLYING)
		return ring_writer_doze(waiter, wait_event_id(WEFT_WAIT_WRITER_DATA));
	return true;
}

/*
 * Asks the writer of a streamed transaction to finish or to discard it, and waits
 * until it has; returns the state in which it has left the transaction.  The caller
 * holds no locks.
 */
StreamState
ring_wait_stream_writer(RingWaiter *waiter, StreamShared *stream, StreamState asked)
{
	uint32		state = STREAM_APPLYING;

	stream->waiter_procno = MyProcNumber;
	compat_injection_point("weft-writer-asks-stream");
	if (pg_atomic_compare_exchange_u32(&stream->state, &state, asked))
		ring_wake_stream_writer(waiter->ring, stream);
	while ((state = pg_atomic_read_u32(&stream->state)) == asked)
		(void) ring_writer_sleep(-1, wait_event_id(WEFT_WAIT_WRITER_STREAM));
	pg_read_barrier();
	return state;
}

/*
 * Sets the state in which a stream writer leaves its transaction, which belongs to it no
 * longer.
 */
void
ring_report_stream(StreamShared *stream, StreamState state)
{
	int			waiter;

	pg_memory_barrier();
	/* A process that waits has set waiter_procno before it changed the state. */
	waiter = pg_atomic_exchange_u32(&stream->state, state) == STREAM_APPLYING ?
		INVALID_PROC_NUMBER : stream->waiter_procno;
	ring_wake_process(waiter);
}
