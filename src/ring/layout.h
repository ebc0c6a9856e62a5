/*
 * layout.h
 *	  The shared memory of a ring.
 *
 * The protocol is described at the heads of ring.c and wait.c.
 */
#ifndef WEFT_RING_LAYOUT_H
#define WEFT_RING_LAYOUT_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "guc.h"
#include "port/atomics.h"
#include "ring/failure.h"
#include "storage/dsm.h"
#include "storage/fileset.h"
#include "utils/dsa.h"

/* Transactions that can be in the ring at a time; a power of two. */
#define RING_TRANSACTIONS 16384

/* Every record begins at a multiple of this. */
#define RING_ALIGNMENT 16

typedef enum RingRecordKind
{
	RING_MESSAGE,				/* payload is (part of) a message */
	RING_BROADCAST,				/* read the broadcast log up to version
								 * "number", then go on */
} RingRecordKind;

/* The message continues in the next record. */
#define RING_MORE		0x0001

/*
 * A writer that reads this record first waits until its transaction is the oldest.  From
 * there on the transaction cannot be retried.
 */
#define RING_EXCLUSIVE	0x0002

/* For a RING_MESSAGE with a change; apply/order.c explains their use. */
#define RING_ROW_AGAIN	0x0004	/* its transaction has touched the row before */
#define RING_SEVERAL	0x0008	/* it depends on more than "number" says, all
								 * of it before that in the commit order */
#define RING_IN_PLACE	0x0010	/* needs all that is before it in its group */

typedef struct RingRecordHeader
{
	uint32		length;			/* of the payload */
	uint16		kind;			/* a RingRecordKind */
	uint16		flags;
	uint64		number;			/* RING_MESSAGE: newest seq that this depends
								 * on, or 0; RING_BROADCAST: version */
} RingRecordHeader;

StaticAssertDecl(sizeof(RingRecordHeader) == RING_ALIGNMENT,
				 "a record header fills one unit of alignment");

/*
 * A transaction in the ring.  The leader fills it in and publishes it; the
 * fields below "complete" are set before "complete" is, and read after it.
 */
typedef struct RingTransaction
{
	uint64		start;			/* ring position of the first record */
	uint64		broadcast;		/* version of the broadcast log it starts with */
	pg_atomic_uint64 end;		/* records before this may be read */
	pg_atomic_uint64 consumed;	/* the writer needs nothing before this */
	pg_atomic_uint32 complete;	/* "end" is the end of the transaction */
	bool		alone;			/* shares no commit with others; valid once
								 * complete */
	pg_atomic_uint32 data_awaited;	/* writer sleeps until "end" moves */
	int			stream;			/* index of a streamed transaction, from 1;
								 * its changes are in the spool.  Else zero. */
	int			writer;			/* number of the writer that applies it; valid
								 * once taken */

	XLogRecPtr	end_lsn;		/* on the publisher */
	TimestampTz commit_time;	/* on the publisher */

	/* Set by the writer before it advances Ring.committed. */
	XLogRecPtr	local_end;		/* end of the local commit record, or invalid */
} RingTransaction;

/* A field that is written often gets a cache line of its own. */
typedef union RingCounter
{
	pg_atomic_uint64 value;
	char		padding[PG_CACHE_LINE_SIZE];
} RingCounter;

typedef struct Ring
{
	uint64		size;			/* of data, in bytes; a power of two */
	int			num_writers;
	int			leader_procno;

	/* The broadcast log; see broadcast.h. */
	dsa_handle	broadcast_area;
	dsa_pointer broadcast_first;	/* written before the version becomes 1 */
	pg_atomic_uint64 broadcast_version;

	/* Written by the leader: highest seq that may be taken. */
	RingCounter published;

	/* Written by the writers, in commit order: highest seq committed. */
	RingCounter committed;

	/* Written by any writer: highest seq taken. */
	RingCounter taken;

	/* Highest number of stream writers so far; set by the leader. */
	pg_atomic_uint32 num_stream_writers;

	/* Bit n: writer n is idle: it sleeps because there was nothing to take. */
	RingCounter idle_writers;

	/*
	 * Set by the leader (receive/tuning.c): the maximum number of
	 * transactions that a writer takes at a time, the maximum that share a
	 * commit, and the number of active writers; these are the ones with the
	 * lowest numbers, and the others take nothing.
	 */
	pg_atomic_uint32 run_limit;
	pg_atomic_uint32 group_limit;
	pg_atomic_uint32 active_writers;

	/* Set by the leader to end the writers once they are idle. */
	pg_atomic_uint32 stop;

	/*
	 * The seq that "committed" must reach for the leader, or the writer, to
	 * be woken; zero while it does not sleep for that.
	 */
	pg_atomic_uint64 leader_awaits;
	pg_atomic_uint64 writer_awaits[WEFT_MAX_PROCESSES];
	int			writer_procno[WEFT_MAX_PROCESSES];

	/* Of the spools; set before the first one is made. */
	FileSet		stream_files;

	Failure		failure;

	RingTransaction transactions[RING_TRANSACTIONS];
	char		data[FLEXIBLE_ARRAY_MEMBER];
} Ring;

static inline RingTransaction *
ring_transaction(Ring *ring, uint64 seq)
{
	return &ring->transactions[seq & (RING_TRANSACTIONS - 1)];
}

static inline uint64
ring_committed(Ring *ring)
{
	return pg_atomic_read_u64(&ring->committed.value);
}

/* How many transactions are published that no writer has taken? */
static inline uint64
ring_backlog(Ring *ring)
{
	uint64		taken = pg_atomic_read_u64(&ring->taken.value);
	uint64		published;

	/* In this order, so that the difference is never negative. */
	pg_read_barrier();
	published = pg_atomic_read_u64(&ring->published.value);
	return published - taken;
}

/* Are the writers to end? */
static inline bool
ring_stopping(Ring *ring)
{
	return pg_atomic_read_u32(&ring->stop) != 0;
}

#endif							/* WEFT_RING_LAYOUT_H */
