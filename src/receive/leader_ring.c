/*
 * leader_ring.c
 *	  The leader's end of the ring.
 *
 * A ring belongs to one set of writers.  Another set, for instance of another size,
 * gets another ring, in which sequence numbers start again: whatever remembers any is
 * reset with it.
 */
#include "postgres.h"

#include "receive/dependency.h"
#include "receive/leader_ring.h"
#include "receive/led_subscription.h"
#include "receive/relations.h"

LeaderRing	leader_ring;

/* Allocates the segment; returns why that is not possible, or NULL. */
static const char *
create_segment(Size size)
{
	MemoryContext old = CurrentMemoryContext;
	ErrorData  *error = NULL;

	PG_TRY();
	{
		leader_ring.segment = dsm_create(size, DSM_CREATE_NULL_IF_MAXSEGMENTS);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(old);
		error = CopyErrorData();
		FlushErrorState();
		leader_ring.segment = NULL;
	}
	PG_END_TRY();

	if (leader_ring.segment != NULL)
		return NULL;
	return error ? error->message : "no dynamic shared memory segment is available";
}

/*
 * Makes a ring for up to that many writers.  Returns NULL, or the reason if there is no
 * memory for it.
 */
const char *
leader_ring_create(int num_writers)
{
	uint64		bytes = ring_bytes(weft_ring_size);
	const char *problem = create_segment(ring_shmem_size(bytes));
	Ring	   *ring;

	if (problem)
		return problem;
	dsm_pin_mapping(leader_ring.segment);

	memset(&leader_ring.producer, 0, sizeof(leader_ring.producer));
	ring = dsm_segment_address(leader_ring.segment);
	leader_ring.producer.ring = ring;
	memset(ring, 0, offsetof(Ring, data));
	ring_init(ring, bytes, num_writers);
	broadcast_create(&leader_ring.broadcast, ring);
	dependency_reset();
	leader_ring.collected = 0;
	leader_ring.barrier = 0;
	relations_renew(&leader_ring.broadcast);
	pg_atomic_write_u64(&led.shared->ring_size, bytes);
	return NULL;
}

/* Removes the ring, which no writer uses any more. */
void
leader_ring_drop(void)
{
	pg_atomic_write_u64(&led.shared->ring_size, 0);
	pg_atomic_write_u64(&led.shared->ring_used, 0);
	if (leader_ring.broadcast.area != NULL)
		broadcast_detach(leader_ring.broadcast.area);
	leader_ring.broadcast.area = NULL;
	dsm_detach(leader_ring.segment);
	leader_ring.segment = NULL;
	memset(&leader_ring.producer, 0, sizeof(leader_ring.producer));
}

/* Shows in statistics how full the ring is. */
void
leader_ring_show_used(void)
{
	pg_atomic_write_u64(&led.shared->ring_used, ring_used(&leader_ring.producer));
}
