/*
 * stream_shared.h
 *	  The shared state of a streamed transaction.
 */
#ifndef WEFT_STREAM_SHARED_H
#define WEFT_STREAM_SHARED_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"

/*
 * The state of a streamed transaction, in the order of its life.  While it is
 * STREAM_APPLYING, its stream writer may fail, and the leader or an ordinary writer may
 * request something else by compare-and-exchange; apply/stream_writer.c describes the
 * protocol.
 */
typedef enum StreamState
{
	STREAM_FREE,				/* no transaction */
	STREAM_SPOOLED,				/* it is not applied before it ends */
	STREAM_APPLYING,			/* a stream writer applies it */
	STREAM_DISCARDED,			/* the stream writer is to roll it back */
	STREAM_FINISHING,			/* the stream writer is to commit it */
	STREAM_COMMITTED,			/* committed; local_end is valid */
	STREAM_FAILED,				/* rolled back by the stream writer */
} StreamState;

/* A streamed transaction that the writers know of. */
typedef struct StreamShared
{
	pg_atomic_uint32 state;		/* a StreamState */
	pg_atomic_uint32 xid;		/* on the publisher */
	pg_atomic_uint64 written;	/* bytes of the spool that can be read */
	pg_atomic_uint32 data_awaited;	/* the stream writer sleeps until
									 * "written" moves */
	pg_atomic_uint32 writer;	/* its number, valid from STREAM_APPLYING on */
	pg_atomic_uint64 received_changes;
	pg_atomic_uint64 applied_changes;

	/*
	 * Set by the leader when the transaction has ended; until then, seq is
	 * zero. The other fields are valid once seq is not zero.
	 */
	pg_atomic_uint64 seq;
	uint32		number;			/* of the spool; valid at any time */
	uint64		base;			/* everything that SPOOL_AFTER names up to
								 * here has committed; valid at any time */
	uint32		num_void;		/* ranges of it, right behind "written" */
	bool		prepare;		/* to be prepared, not committed */
	bool		alone;			/* must not be applied before its turn */
	XLogRecPtr	final_lsn;		/* on the publisher */

	/* Set by the process that requests STREAM_FINISHING or STREAM_DISCARDED. */
	int			waiter_procno;
	XLogRecPtr	end_lsn;		/* on the publisher; to finish */
	TimestampTz end_time;		/* on the publisher; the same */

	XLogRecPtr	local_end;		/* end of the commit record */
} StreamShared;

/* How many streamed transactions of a subscription can be in progress here at a time. */
#define NUM_STREAMS 64

#endif							/* WEFT_STREAM_SHARED_H */
