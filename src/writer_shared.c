/*
 * writer_shared.c
 *	  The shared state of a writer, ordinary or of streams.
 */
#include "postgres.h"

#include "writer_shared.h"

/* Resets what an earlier writer with that number has left behind. */
void
writer_shared_reset(WriterShared *writer)
{
	pg_atomic_write_u32(&writer->pid, 0);
	pg_atomic_write_u32(&writer->activity, WRITER_STARTING);
	pg_atomic_write_u64(&writer->seq, 0);
	pg_atomic_write_u64(&writer->remote_lsn, 0);
	pg_atomic_write_u32(&writer->stream, 0);
}

/* The same for what has been counted since the leader started. */
void
writer_shared_reset_counters(WriterShared *writer)
{
	pg_atomic_write_u64(&writer->transactions, 0);
	pg_atomic_write_u64(&writer->changes, 0);
	pg_atomic_write_u64(&writer->dependency_waits, 0);
	pg_atomic_write_u64(&writer->order_waits, 0);
	pg_atomic_write_u64(&writer->misspeculations, 0);
}
