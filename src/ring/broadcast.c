/*
 * broadcast.c
 *	  A log of messages that every writer must have seen.
 *
 * The log is a list in dynamic shared memory, which the leader extends and the writers
 * read, without a lock.  The leader completes a message and the link to it before it
 * stores the version that includes them; a writer follows a link only for a version that
 * the ring has told it of.
 */
#include "postgres.h"

#include "lock_tranche.h"
#include "ring/broadcast.h"
#include "utils/memutils.h"

typedef struct BroadcastMessage
{
	dsa_pointer next;
	Size		length;
	char		data[FLEXIBLE_ARRAY_MEMBER];
} BroadcastMessage;

#define TRANCHE "WeftBroadcast"

/* Of the locks in all logs; set once, when the process gets the shared memory. */
static int	tranche;

void
broadcast_request(void)
{
	lock_tranche_request(TRANCHE);
}

void
broadcast_startup(void)
{
	tranche = lock_tranche_startup(TRANCHE);
}

/* Creates an empty log for a ring. */
void
broadcast_create(BroadcastLog *log, Ring *ring)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	log->ring = ring;
	log->area = dsa_create(tranche);
	MemoryContextSwitchTo(old);
	dsa_pin_mapping(log->area);
	log->last = InvalidDsaPointer;
	log->version = 0;
	log->bytes = 0;
	ring->broadcast_area = dsa_get_handle(log->area);
}

/* Appends a message; returns the version that includes it. */
uint64
broadcast_append(BroadcastLog *log, const char *data, Size length)
{
	dsa_pointer pointer = dsa_allocate(log->area,
									   offsetof(BroadcastMessage, data) + length);
	BroadcastMessage *message = dsa_get_address(log->area, pointer);

	message->next = InvalidDsaPointer;
	message->length = length;
	memcpy(message->data, data, length);

	if (DsaPointerIsValid(log->last))
		((BroadcastMessage *) dsa_get_address(log->area, log->last))->next = pointer;
	else
		log->ring->broadcast_first = pointer;
	log->last = pointer;
	log->version++;
	log->bytes += length;
	pg_write_barrier();
	pg_atomic_write_u64(&log->ring->broadcast_version, log->version);
	return log->version;
}

/* Attaches a writer to a ring's log, at a place before the first message. */
void
broadcast_attach(BroadcastReader *reader, Ring *ring)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	reader->ring = ring;
	reader->area = dsa_attach(ring->broadcast_area);
	MemoryContextSwitchTo(old);
	dsa_pin_mapping(reader->area);
	reader->last = InvalidDsaPointer;
	reader->version = 0;
}

/*
 * Reads the next message up to a version.  Returns false if the reader has reached that
 * version.
 */
bool
broadcast_read(BroadcastReader *reader, uint64 version,
			   const char **data, Size *length)
{
	BroadcastMessage *message;

	if (reader->version >= version)
		return false;
	Assert(pg_atomic_read_u64(&reader->ring->broadcast_version) >= version);
	pg_read_barrier();

	if (DsaPointerIsValid(reader->last))
	{
		message = dsa_get_address(reader->area, reader->last);
		reader->last = message->next;
	}
	else
		reader->last = reader->ring->broadcast_first;

	message = dsa_get_address(reader->area, reader->last);
	reader->version++;
	*data = message->data;
	*length = message->length;
	return true;
}

/* Detaches from a log, which is removed with the last process that detaches. */
void
broadcast_detach(dsa_area *area)
{
	dsa_detach(area);
}
