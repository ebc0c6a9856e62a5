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
 * How far a streamed transaction has come, in the order of its life.  While it is
 * STREAM_APPLYING, the writer of its own may fail, and whoever wants it to do
 * something else takes it from there by compare-and-exchange; apply/stream_writer.c tells
 * the protocol.
 */
typedef enum StreamState
{
	STREAM_FREE,				/* no transaction */
	STREAM_SPOOLED,				/* nobody applies it before it ends */
	STREAM_APPLYING,			/* a writer of its own does */
	STREAM_DISCARDED,			/* that is to roll it back */
	STREAM_FINISHING,			/* or to commit it */
	STREAM_COMMITTED,			/* it has; local_end is valid */
	STREAM_FAILED,				/* it has rolled it back */
} StreamState;

/* A streamed transaction that the writers know of. */
typedef struct StreamShared
{
	pg_atomic_uint32 state;		/* a StreamState */
	pg_atomic_uint32 xid;		/* on the publisher */
	pg_atomic_uint64 written;	/* bytes of the spool that can be read */
	pg_atomic_uint32 data_awaited;	/* the writer sleeps until more is */
	pg_atomic_uint32 writer;	/* its number, valid from STREAM_APPLYING on */
	pg_atomic_uint64 received_changes;
	pg_atomic_uint64 applied_changes;

	/*
	 * Set by the leader when the transaction has ended; before that, seq is
	 * zero. The other fields are valid once it is not.
	 */
	pg_atomic_uint64 seq;
	uint32		number;			/* of the spool; valid at any time */
	uint64		base;			/* what SPOOL_AFTER asks for before this
								 * position is committed; valid at any time */
	uint32		num_void;		/* ranges of it, right behind "written" */
	bool		prepare;		/* to be prepared, not committed */
	bool		alone;			/* nobody may have applied it before its turn */
	XLogRecPtr	final_lsn;		/* on the publisher */

	/* Set by whoever asks for STREAM_FINISHING or STREAM_DISCARDED. */
	int			waiter_procno;
	XLogRecPtr	end_lsn;		/* on the publisher; to finish */
	TimestampTz end_time;		/* on the publisher; the same */

	XLogRecPtr	local_end;		/* end of the commit record */
} StreamShared;

/* So many streamed transactions are taken care of at a time. */
#define NUM_STREAMS 64

#endif							/* WEFT_STREAM_SHARED_H */
