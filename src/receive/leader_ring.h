/*
 * leader_ring.h
 *	  The leader's end of the ring.
 */
#ifndef WEFT_LEADER_RING_H
#define WEFT_LEADER_RING_H

#include "receive/tuning.h"
#include "ring/broadcast.h"
#include "ring/ring.h"
#include "storage/dsm.h"

typedef struct LeaderRing
{
	dsm_segment *segment;
	RingProducer producer;		/* its ring is NULL while there is none */
	BroadcastLog broadcast;
	Tuning		tuning;			/* valid while writers run */
	uint64		collected;		/* all transactions up to this seq are
								 * accounted for */
	uint64		barrier;		/* no transaction may begin before this seq is
								 * committed */
} LeaderRing;

/*
 * Global, since a leader has one ring at a time, and every change that goes into it
 * uses the producer.
 */
extern LeaderRing leader_ring;

extern const char *leader_ring_create(int num_writers);
extern void leader_ring_drop(void);
extern void leader_ring_show_used(void);

/* Is there a transaction that is not committed? */
static inline bool
leader_ring_in_flight(void)
{
	RingProducer *producer = &leader_ring.producer;

	return producer->ring != NULL &&
		(producer->open || ring_committed(producer->ring) != producer->seq);
}

#endif							/* WEFT_LEADER_RING_H */
