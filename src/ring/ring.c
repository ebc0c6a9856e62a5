/*
 * ring.c
 *	  The shared-memory buffer between a leader and its writers.
 *
 * One leader appends, many writers read.  Ring positions are 64-bit numbers that only
 * grow; the place of a position in memory is its remainder modulo the size.  A record is a
 * header of 16 bytes and a payload.  A record never wraps around the end of the memory:
 * the leader splits a message that would into two records (RING_MORE), and also one that
 * does not fit into the free space.
 *
 * Transactions get their seq in the order in which they committed on the publisher, and
 * stand in the ring in that order, one after the other.  The life of transaction T with
 * number seq, which leader L sends to writer W:
 *
 *	 L  ring_begin		fills in the descriptor transactions[seq].  The slot is free,
 *						because seq - RING_TRANSACTIONS has committed and L has collected
 *						it since.
 *	 L  ring_append		copies records into free memory.
 *	 L  ring_publish	end := write position, then published := seq.  Happens in
 *						ring_complete, or earlier if T is long or L must wait for space.
 *	 W  ring_take		taken := seq, by compare-and-exchange.  Therefore exactly one
 *						writer gets T, and transactions are taken in the order of seq.  W
 *						may take a run of several consecutive transactions, and further
 *						ones behind these while it would otherwise have to wait.
 *	 W  ring_read		reads up to "end", and waits there unless T is "complete".
 *	 W  (wait.c)		waits until committed = seq - 1, and commits.
 *	 W  ring_commit		sets local_end, then committed := seq.  For a group that shares a
 *						commit, W has waited for the transaction before its first one, and
 *						"committed" becomes the seq of its last one.
 *	 L  ring_used		the memory up to T's end is free again.
 *
 * Space is released in commit order.  Therefore T's records stay until T has committed,
 * and W may apply T again from its beginning.  The exception is a transaction that does
 * not fit into the ring: by advancing "consumed", W promises not to go back.  W may do so
 * only once T is the oldest transaction, so L has to look at the oldest one only.
 *
 * Deadlocks:
 * 1. L waits for space, W for L: L waits for space only after it has published what it
 *	  wrote.  The writers then take, in order, whatever fills the ring; the oldest
 *	  transaction waits for nobody but L, and if it fills the ring alone, "consumed" frees
 *	  its memory.
 * 2. Among writers, and through locks: see wait.c.
 *
 * If a process dies between any two of these steps, the leader ends and takes all writers
 * with it, and the next leader makes a new ring; the replication origin tells from which
 * position on to request transactions again.
 */
#include "postgres.h"

#include "compat.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "ring/ring.h"
#include "ring/wake.h"
#include "storage/proc.h"

/* Turns weft.ring_size into the size of a ring's data. */
uint64
ring_bytes(int kilobytes)
{
	return pg_nextpower2_64((uint64) kilobytes * 1024);
}

/* Returns the size of the shared memory of a ring with this many bytes of data. */
Size
ring_shmem_size(uint64 bytes)
{
	return add_size(offsetof(Ring, data), bytes);
}

/* Initializes a ring in zeroed shared memory. */
void
ring_init(Ring *ring, uint64 bytes, int num_writers)
{
	ring->size = bytes;
	ring->num_writers = num_writers;
	ring->leader_procno = MyProcNumber;
	ring->broadcast_first = InvalidDsaPointer;
	pg_atomic_init_u64(&ring->broadcast_version, 0);
	pg_atomic_init_u64(&ring->published.value, 0);
	pg_atomic_init_u64(&ring->taken.value, 0);
	pg_atomic_init_u64(&ring->committed.value, 0);
	pg_atomic_init_u64(&ring->idle_writers.value, 0);
	pg_atomic_init_u32(&ring->run_limit, 1);
	pg_atomic_init_u32(&ring->group_limit, 1);
	pg_atomic_init_u32(&ring->active_writers, num_writers);
	pg_atomic_init_u32(&ring->stop, 0);
	pg_atomic_init_u64(&ring->leader_awaits, 0);
	pg_atomic_init_u32(&ring->num_stream_writers, 0);
	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
	{
		pg_atomic_init_u64(&ring->writer_awaits[i], 0);
		ring->writer_procno[i] = INVALID_PROC_NUMBER;
	}
	failure_init(&ring->failure);
	for (int i = 0; i < RING_TRANSACTIONS; i++)
	{
		RingTransaction *transaction = &ring->transactions[i];

		pg_atomic_init_u64(&transaction->end, 0);
		pg_atomic_init_u64(&transaction->consumed, 0);
		pg_atomic_init_u32(&transaction->complete, 0);
		pg_atomic_init_u32(&transaction->data_awaited, 0);
	}
}

/* Notes what the writers have released; returns the number of bytes in use. */
uint64
ring_used(RingProducer *producer)
{
	Ring	   *ring = producer->ring;
	uint64		committed = ring_committed(ring);
	uint64		released = producer->released;

	if (committed > 0)
		released = Max(released,
					   pg_atomic_read_u64(&ring_transaction(ring, committed)->end));
	if (committed < producer->seq)
		released = Max(released,
					   pg_atomic_read_u64(&ring_transaction(ring, committed + 1)->consumed));

	/* These reads come before the memory is written again. */
	pg_memory_barrier();

	producer->released = released;
	return producer->write - released;
}

/*
 * Opens the next transaction.  Returns false, with nothing changed, if the ring has no
 * free descriptor.  Transactions up to seq "collected" have committed, and the caller no
 * longer needs their descriptors.
 */
bool
ring_begin(RingProducer *producer, uint64 broadcast, uint64 collected)
{
	Ring	   *ring = producer->ring;
	RingTransaction *transaction;

	Assert(!producer->open);
	if (producer->seq + 1 - collected >= RING_TRANSACTIONS)
		return false;

	producer->seq++;
	producer->open = true;
	producer->published = false;

	transaction = ring_transaction(ring, producer->seq);
	transaction->start = producer->write;
	transaction->broadcast = broadcast;
	transaction->writer = -1;
	transaction->alone = false;
	transaction->stream = 0;
	transaction->end_lsn = InvalidXLogRecPtr;
	transaction->commit_time = 0;
	transaction->local_end = InvalidXLogRecPtr;
	pg_atomic_write_u64(&transaction->end, producer->write);
	pg_atomic_write_u64(&transaction->consumed, 0);
	pg_atomic_write_u32(&transaction->complete, 0);
	pg_atomic_write_u32(&transaction->data_awaited, 0);
	return true;
}

/*
 * Appends a record to the open transaction, or as much of its payload as there is room
 * for.  Returns the number of payload bytes appended.  If these are not all, the caller
 * publishes, waits for space, and calls again with the rest.  For a record without payload
 * that finds no room, returns SIZE_MAX.
 */
Size
ring_append(RingProducer *producer, RingRecordKind kind, uint16 flags,
			uint64 number, const char *data, Size length)
{
	Ring	   *ring = producer->ring;
	Size		done = 0;

	do
	{
		uint64		offset = producer->write & (ring->size - 1);
		uint64		room = ring->size - (producer->write - producer->released);
		RingRecordHeader *header = (RingRecordHeader *) (ring->data + offset);
		Size		part;

		if (room < RING_ALIGNMENT + length - done)
			room = ring->size - ring_used(producer);

		/* Many tiny pieces would cost more than waiting for more space. */
		if (room < Min(RING_ALIGNMENT + length - done, ring->size / 8))
			return length == 0 ? SIZE_MAX : done;

		room = Min(room, ring->size - offset);
		part = Min(length - done, room - RING_ALIGNMENT);

		if (flags & RING_EXCLUSIVE)
			ring_transaction(ring, producer->seq)->alone = true;
		header->length = part;
		header->kind = kind;
		header->flags = flags | (part < length - done ? RING_MORE : 0);
		header->number = number;
		memcpy(header + 1, data + done, part);

		done += part;
		producer->write += TYPEALIGN(RING_ALIGNMENT, RING_ALIGNMENT + part);
	} while (done < length);

	return done;
}

/*
 * Makes what was appended to the open transaction readable.  The first call for a
 * transaction also offers it to the writers.
 */
void
ring_publish(RingProducer *producer)
{
	Ring	   *ring = producer->ring;
	RingTransaction *transaction = ring_transaction(ring, producer->seq);

	/* The records, and the plain fields, before "end" and "published". */
	pg_write_barrier();
	pg_atomic_write_u64(&transaction->end, producer->write);

	if (!producer->published)
	{
		producer->published = true;
		pg_write_barrier();
		pg_atomic_write_u64(&ring->published.value, producer->seq);
		ring_wake_for_backlog(ring);
	}
	else
		ring_wake_reader(ring, transaction);
}

/*
 * Declares the open transaction, which has no records, to be streamed transaction
 * "stream", counted from 1.
 */
void
ring_use_stream(RingProducer *producer, int stream)
{
	RingTransaction *transaction = ring_transaction(producer->ring, producer->seq);

	Assert(producer->open && !producer->published);
	transaction->stream = stream;
	transaction->alone = true;
}

/* Closes the open transaction: all its records have been appended. */
void
ring_complete(RingProducer *producer, XLogRecPtr end_lsn, TimestampTz commit_time)
{
	RingTransaction *transaction = ring_transaction(producer->ring, producer->seq);

	Assert(producer->open);
	transaction->end_lsn = end_lsn;
	transaction->commit_time = commit_time;
	pg_write_barrier();
	pg_atomic_write_u64(&transaction->end, producer->write);
	pg_write_barrier();
	pg_atomic_write_u32(&transaction->complete, 1);
	producer->open = false;
	ring_publish(producer);
}

static void
name_writer(Ring *ring, uint64 first, uint64 count, int writer)
{
	for (uint64 i = 0; i < count; i++)
		ring_transaction(ring, first + i)->writer = writer;
}

/*
 * Takes the next transactions for a writer, at most its share of the backlog.  Returns the
 * seq of the first one and sets *count, or returns zero if there is none for this writer
 * now.
 */
uint64
ring_take(Ring *ring, int writer, int *count)
{
	int			active = pg_atomic_read_u32(&ring->active_writers);
	int			limit = pg_atomic_read_u32(&ring->run_limit);
	uint64		taken = pg_atomic_read_u64(&ring->taken.value);
	uint64		run;

	if (writer >= active)
		return 0;
	for (;;)
	{
		uint64		published = pg_atomic_read_u64(&ring->published.value);

		if (taken >= published)
			return 0;
		run = (published - taken) / active;
		run = Min(Max(run, 1), limit);
		compat_injection_point("weft-ring-take");
		if (pg_atomic_compare_exchange_u64(&ring->taken.value, &taken, taken + run))
			break;
	}
	name_writer(ring, taken + 1, run, writer);
	*count = run;
	return taken + 1;
}

/*
 * Takes up to "wanted" transactions that directly follow "last", which the writer has
 * taken before.  Returns how many: zero if another writer has taken them already.
 */
int
ring_take_more(Ring *ring, int writer, uint64 last, int wanted)
{
	uint64		published = pg_atomic_read_u64(&ring->published.value);
	uint64		taken = last;
	uint64		run = Min(published - last, wanted);

	if (run == 0 || !pg_atomic_compare_exchange_u64(&ring->taken.value, &taken, last + run))
		return 0;
	name_writer(ring, last + 1, run, writer);
	return run;
}

/*
 * Records that the calling writer has committed the transactions from first to
 * last, which must be the oldest ones, and wakes whoever waits for that.
 */
void
ring_commit(Ring *ring, uint64 first, uint64 last, XLogRecPtr local_end)
{
	Assert(ring_committed(ring) == first - 1);
	for (uint64 seq = first; seq <= last; seq++)
		ring_transaction(ring, seq)->local_end = local_end;
	pg_write_barrier();
	pg_atomic_write_u64(&ring->committed.value, last);
	ring_wake_committed(ring, last);
}

/* Tells the writers to end as soon as they have nothing to do. */
void
ring_stop(Ring *ring)
{
	pg_atomic_write_u32(&ring->stop, 1);
	ring_wake_all_writers(ring);
}

/* Sets a cursor to the beginning of a transaction that was taken. */
void
ring_rewind(RingCursor *cursor, Ring *ring, uint64 seq)
{
	cursor->ring = ring;
	cursor->seq = seq;
	cursor->transaction = ring_transaction(ring, seq);
	cursor->position = cursor->transaction->start;
}

/*
 * Reads the next record.  The payload stays in the ring until the transaction has
 * committed or "consumed" has passed it.
 */
RingReadResult
ring_read(RingCursor *cursor, const RingRecordHeader **header, const char **payload)
{
	RingTransaction *transaction = cursor->transaction;
	const RingRecordHeader *record;

	if (cursor->position == pg_atomic_read_u64(&transaction->end))
	{
		bool		complete = pg_atomic_read_u32(&transaction->complete) != 0;

		/* "end" may have moved before "complete" was set: look again. */
		pg_read_barrier();
		if (cursor->position == pg_atomic_read_u64(&transaction->end))
			return complete ? RING_READ_END : RING_READ_NOTHING_YET;
	}
	pg_read_barrier();

	record = (const RingRecordHeader *)
		(cursor->ring->data + (cursor->position & (cursor->ring->size - 1)));
	*header = record;
	*payload = (const char *) (record + 1);
	cursor->position += TYPEALIGN(RING_ALIGNMENT, RING_ALIGNMENT + record->length);
	return RING_READ_RECORD;
}
