/*
 * writer_shared.h
 *	  The shared state of a writer, ordinary or of streams.
 *
 * Statistics are read from here without a lock: they are atomics, and a reader that
 * meets a change of leader sees a mixture of old and new at worst.
 */
#ifndef WEFT_WRITER_SHARED_H
#define WEFT_WRITER_SHARED_H

#include "port/atomics.h"

/* What a writer is doing, as weft.stat_writer shows it. */
typedef enum WriterActivity
{
	WRITER_STARTING,
	WRITER_IDLE,
	WRITER_APPLYING,
	WRITER_WAITING_FOR_DATA,
	WRITER_WAITING_FOR_DEPENDENCY,
	WRITER_WAITING_FOR_COMMIT_ORDER,
	WRITER_RETRYING,
	WRITER_EXITED,
} WriterActivity;

typedef struct WriterShared
{
	/* Zero until the writer has attached; only the writer writes it. */
	pg_atomic_uint32 pid;
	pg_atomic_uint32 activity;	/* a WriterActivity */

	/*
	 * The seq of the current or last transaction; of the first one if several
	 * share a commit.  A stream writer has its stream's: see
	 * shmem_writer_seq().
	 */
	pg_atomic_uint64 seq;
	pg_atomic_uint64 remote_lsn;	/* end of the last commit, on the
									 * publisher */

	/* Counted since the leader started. */
	pg_atomic_uint64 transactions;
	pg_atomic_uint64 changes;
	pg_atomic_uint64 dependency_waits;
	pg_atomic_uint64 order_waits;
	pg_atomic_uint64 misspeculations;

	/*
	 * For a stream writer: the index, from 1, of the streamed transaction
	 * that it is to apply.  The leader sets it if it is zero; the writer sets
	 * it back to zero, or to STREAM_WRITER_LEAVES before it ends.
	 */
	pg_atomic_uint32 stream;
} WriterShared;

#define STREAM_WRITER_LEAVES PG_UINT32_MAX

extern void writer_shared_reset(WriterShared *writer);
extern void writer_shared_reset_counters(WriterShared *writer);

#endif							/* WEFT_WRITER_SHARED_H */
