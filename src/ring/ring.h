/*
 * ring.h
 *	  The shared-memory buffer between a leader and its writers.
 *
 * The protocol is described at the head of ring.c.
 */
#ifndef WEFT_RING_H
#define WEFT_RING_H

#include "ring/layout.h"

/* The leader's end of a ring. */
typedef struct RingProducer
{
	Ring	   *ring;
	uint64		write;			/* ring position of the next record */
	uint64		released;		/* everything before this may be overwritten */
	uint64		seq;			/* of the newest transaction */
	bool		open;			/* that transaction is not complete yet */
	bool		published;		/* and the writers know of it */
} RingProducer;

/* A writer's place in the transaction that it applies. */
typedef struct RingCursor
{
	Ring	   *ring;
	RingTransaction *transaction;
	uint64		seq;
	uint64		position;
} RingCursor;

typedef enum RingReadResult
{
	RING_READ_RECORD,
	RING_READ_END,				/* of the transaction */
	RING_READ_NOTHING_YET,
} RingReadResult;

extern uint64 ring_bytes(int kilobytes);
extern Size ring_shmem_size(uint64 bytes);
extern void ring_init(Ring *ring, uint64 bytes, int num_writers);

extern bool ring_begin(RingProducer *producer, uint64 broadcast, uint64 collected);
extern Size ring_append(RingProducer *producer, RingRecordKind kind, uint16 flags,
						uint64 number, const char *data, Size length);
extern void ring_publish(RingProducer *producer);
extern void ring_use_stream(RingProducer *producer, int stream);
extern void ring_complete(RingProducer *producer, XLogRecPtr end_lsn,
						  TimestampTz commit_time);
extern uint64 ring_used(RingProducer *producer);
extern void ring_stop(Ring *ring);

extern uint64 ring_take(Ring *ring, int writer, int *count);
extern int	ring_take_more(Ring *ring, int writer, uint64 last, int wanted);
extern void ring_commit(Ring *ring, uint64 first, uint64 last, XLogRecPtr local_end);
extern void ring_rewind(RingCursor *cursor, Ring *ring, uint64 seq);
extern RingReadResult ring_read(RingCursor *cursor, const RingRecordHeader **header,
								const char **payload);

#endif							/* WEFT_RING_H */
