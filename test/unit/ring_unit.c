/*
 * ring_unit.c
 *	  Unit tests of ring/ring.c and ring/wake.c.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "ring/wake.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "unit.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#define SMALL_RING 1024

/* The payload of a transaction's message, which tells the transaction and the place. */
static char *
payload_for(uint64 seq, int length)
{
	char	   *payload = palloc(Max(length, 1));

	for (int i = 0; i < length; i++)
		payload[i] = (char) (seq * 31 + i);
	return payload;
}

/* Opens, fills and completes a transaction with one message that the ring has room for. */
static void
add_transaction(RingProducer *producer, int length)
{
	CHECK(ring_begin(producer, 0, ring_committed(producer->ring)));
	CHECK_EQUAL(ring_append(producer, RING_MESSAGE, 0, 0,
							payload_for(producer->seq, length), length), length);
	ring_complete(producer, producer->seq * 100, producer->seq * 1000);
}

/* The same for transactions without records. */
static void
add_empty(RingProducer *producer, int count)
{
	for (int i = 0; i < count; i++)
	{
		CHECK(ring_begin(producer, 0, ring_committed(producer->ring)));
		ring_complete(producer, producer->seq * 100, 0);
	}
}

/* Reads a transaction, which is one message, and compares every byte. */
static void
check_transaction(Ring *ring, uint64 seq, int length)
{
	char	   *expected = payload_for(seq, length);
	RingCursor	cursor;
	const RingRecordHeader *header;
	const char *payload;
	int			done = 0;
	bool		more = true;

	ring_rewind(&cursor, ring, seq);
	while (ring_read(&cursor, &header, &payload) == RING_READ_RECORD)
	{
		CHECK(more);
		CHECK(payload >= ring->data && payload + header->length <= ring->data + ring->size);
		CHECK(done + header->length <= length);
		CHECK(memcmp(payload, expected + done, header->length) == 0);
		done += header->length;
		more = (header->flags & RING_MORE) != 0;
	}
	CHECK(!more);
	CHECK_EQUAL(done, length);
	CHECK_EQUAL(ring_read(&cursor, &header, &payload), RING_READ_END);
	pfree(expected);
}

static void
records(void)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, SMALL_RING, 1);
	RingCursor	cursor;
	const RingRecordHeader *header;
	const char *payload;
	int			count;

	CHECK(ring_begin(&producer, 7, 0));
	CHECK_EQUAL(ring_append(&producer, RING_MESSAGE, RING_SEVERAL, 42, "abc", 3), 3);
	CHECK_EQUAL(ring_take(ring, 0, &count), 0);
	ring_publish(&producer);
	CHECK_EQUAL(ring_take(ring, 0, &count), 1);
	CHECK_EQUAL(ring_transaction(ring, 1)->broadcast, 7);

	ring_rewind(&cursor, ring, 1);
	CHECK_EQUAL(ring_read(&cursor, &header, &payload), RING_READ_RECORD);
	CHECK_EQUAL(header->kind, RING_MESSAGE);
	CHECK_EQUAL(header->flags, RING_SEVERAL);
	CHECK_EQUAL(header->number, 42);
	CHECK_EQUAL(header->length, 3);
	CHECK(memcmp(payload, "abc", 3) == 0);
	CHECK_EQUAL(ring_read(&cursor, &header, &payload), RING_READ_NOTHING_YET);

	/* What is appended can be read once it is published. */
	CHECK_EQUAL(ring_append(&producer, RING_BROADCAST, 0, 8, NULL, 0), 0);
	CHECK_EQUAL(ring_read(&cursor, &header, &payload), RING_READ_NOTHING_YET);
	ring_publish(&producer);
	CHECK_EQUAL(ring_read(&cursor, &header, &payload), RING_READ_RECORD);
	CHECK_EQUAL(header->kind, RING_BROADCAST);
	CHECK_EQUAL(header->number, 8);
	CHECK_EQUAL(header->length, 0);
	CHECK_EQUAL(ring_read(&cursor, &header, &payload), RING_READ_NOTHING_YET);

	ring_complete(&producer, 1234, 5678);
	CHECK_EQUAL(ring_read(&cursor, &header, &payload), RING_READ_END);
	CHECK_EQUAL(ring_transaction(ring, 1)->end_lsn, 1234);
	CHECK_EQUAL(ring_transaction(ring, 1)->commit_time, 5678);
	CHECK_EQUAL(ring_transaction(ring, 1)->writer, 0);

	/* A writer may go back to the beginning. */
	ring_rewind(&cursor, ring, 1);
	CHECK_EQUAL(ring_read(&cursor, &header, &payload), RING_READ_RECORD);
	CHECK_EQUAL(header->number, 42);
}

/* Thousands of times around the ring, with messages of all lengths that fit. */
static void
wraparound(void)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, SMALL_RING, 1);
	int			count;

	for (int i = 0; i < 20000; i++)
	{
		int			length = unit_random(i % 2 ? 40 : SMALL_RING - 4 * RING_ALIGNMENT);

		add_transaction(&producer, length);
		CHECK_EQUAL(ring_take(ring, 0, &count), producer.seq);
		CHECK_EQUAL(count, 1);
		check_transaction(ring, producer.seq, length);
		ring_commit(ring, producer.seq, producer.seq, InvalidXLogRecPtr);
		CHECK_EQUAL(ring_used(&producer), 0);
	}
	CHECK(producer.write > 1000 * SMALL_RING);
}

/* The same with as many transactions in the ring as fit; none may be overwritten. */
static void
wraparound_filled(void)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, SMALL_RING, 1);
	int			lengths[128];
	uint64		committed = 0;

	for (int i = 0; i < 20000; i++)
	{
		int			length = unit_random(200);

		while (SMALL_RING - ring_used(&producer) < length + 4 * RING_ALIGNMENT)
		{
			committed++;
			check_transaction(ring, committed, lengths[committed % lengthof(lengths)]);
			ring_commit(ring, committed, committed, InvalidXLogRecPtr);
		}
		add_transaction(&producer, length);
		CHECK(producer.seq - committed < lengthof(lengths));
		lengths[producer.seq % lengthof(lengths)] = length;
		for (uint64 seq = committed + 1; seq <= producer.seq; seq++)
			check_transaction(ring, seq, lengths[seq % lengthof(lengths)]);
	}
}

static void
full_ring(void)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, SMALL_RING, 1);
	char	   *rest = payload_for(2, SMALL_RING);
	Size		taken;

	add_transaction(&producer, 500);
	CHECK_EQUAL(ring_used(&producer), 528);

	/* What there is room for is taken. */
	CHECK(ring_begin(&producer, 0, 0));
	taken = ring_append(&producer, RING_MESSAGE, 0, 0, rest, SMALL_RING);
	CHECK_EQUAL(taken, SMALL_RING - 528 - RING_ALIGNMENT);
	CHECK_EQUAL(ring_used(&producer), SMALL_RING);
	CHECK_EQUAL(ring_append(&producer, RING_MESSAGE, 0, 0, rest + taken, SMALL_RING - taken), 0);
	CHECK_EQUAL(ring_append(&producer, RING_BROADCAST, 0, 1, NULL, 0), SIZE_MAX);
	CHECK_EQUAL(ring_used(&producer), SMALL_RING);
	check_transaction(ring, 1, 500);

	/* A commit releases the space, and only that of its transaction. */
	ring_commit(ring, 1, 1, InvalidXLogRecPtr);
	CHECK_EQUAL(ring_used(&producer), SMALL_RING - 528);
	CHECK_EQUAL(ring_append(&producer, RING_MESSAGE, 0, 0, rest + taken, SMALL_RING - taken),
				528 - RING_ALIGNMENT);
	CHECK_EQUAL(ring_used(&producer), SMALL_RING);
}

/* A piece is not worth its header: the leader rather waits for more room. */
static void
no_tiny_pieces(void)
{
	RingProducer producer;
	char	   *payload = payload_for(1, SMALL_RING);

	unit_ring(&producer, SMALL_RING, 1);
	CHECK(ring_begin(&producer, 0, 0));
	CHECK_EQUAL(ring_append(&producer, RING_MESSAGE, 0, 0, payload, 912), 912);
	CHECK_EQUAL(ring_used(&producer), SMALL_RING - 96);
	CHECK_EQUAL(ring_append(&producer, RING_MESSAGE, 0, 0, payload, 200), 0);
	CHECK_EQUAL(ring_used(&producer), SMALL_RING - 96);
	CHECK_EQUAL(ring_append(&producer, RING_MESSAGE, 0, 0, payload, 80), 80);
	CHECK_EQUAL(ring_used(&producer), SMALL_RING);
}

/* The oldest transaction, if it is larger than the ring, is freed as it is consumed. */
static void
consumed(void)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, SMALL_RING, 1);
	char	   *payload = payload_for(1, SMALL_RING);

	CHECK(ring_begin(&producer, 0, 0));
	CHECK_EQUAL(ring_append(&producer, RING_MESSAGE, 0, 0, payload, 496), 496);
	CHECK_EQUAL(ring_append(&producer, RING_MESSAGE, 0, 0, payload, 496), 496);
	CHECK_EQUAL(ring_used(&producer), SMALL_RING);
	pg_atomic_write_u64(&ring_transaction(ring, 1)->consumed, 512);
	CHECK_EQUAL(ring_used(&producer), 512);
	CHECK_EQUAL(ring_append(&producer, RING_MESSAGE, 0, 0, payload, 240), 240);
	ring_complete(&producer, 1, 0);

	/* One that is not the oldest may go back to its beginning. */
	CHECK(ring_begin(&producer, 0, 0));
	CHECK_EQUAL(ring_append(&producer, RING_MESSAGE, 0, 0, payload, 112), 112);
	ring_complete(&producer, 1, 0);
	pg_atomic_write_u64(&ring_transaction(ring, 2)->consumed, producer.write);
	CHECK_EQUAL(ring_used(&producer), 896);
	ring_commit(ring, 1, 1, InvalidXLogRecPtr);
	CHECK_EQUAL(ring_used(&producer), 0);
}

/* RING_TRANSACTIONS descriptors: one more transaction waits until one is collected. */
static void
window_full(void)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, SMALL_RING, 1);
	RingTransaction *transaction;
	uint64		seq;

	add_empty(&producer, RING_TRANSACTIONS - 1);
	seq = producer.seq;
	CHECK(!ring_begin(&producer, 0, 0));
	CHECK_EQUAL(producer.seq, seq);
	CHECK(!producer.open);

	/* Committed, but the leader has not looked at it. */
	ring_commit(ring, 1, 1, 77);
	CHECK(!ring_begin(&producer, 0, 0));
	CHECK_EQUAL(ring_transaction(ring, 1)->local_end, 77);

	CHECK(ring_begin(&producer, 0, 1));
	CHECK_EQUAL(producer.seq, seq + 1);
	ring_complete(&producer, 1, 0);
	CHECK(!ring_begin(&producer, 0, 1));

	/*
	 * The next one gets the descriptor of the first, and nothing of what was
	 * in it.
	 */
	transaction = ring_transaction(ring, 1);
	transaction->alone = true;
	transaction->stream = 5;
	pg_atomic_write_u64(&transaction->consumed, 99);
	pg_atomic_write_u32(&transaction->data_awaited, 1);
	ring_commit(ring, 2, 2, 78);
	CHECK(ring_begin(&producer, 3, 2));
	CHECK(ring_transaction(ring, producer.seq) == transaction);
	CHECK(!transaction->alone);
	CHECK_EQUAL(transaction->stream, 0);
	CHECK_EQUAL(transaction->broadcast, 3);
	CHECK_EQUAL(transaction->writer, -1);
	CHECK_EQUAL(transaction->local_end, InvalidXLogRecPtr);
	CHECK_EQUAL(transaction->end_lsn, InvalidXLogRecPtr);
	CHECK_EQUAL(pg_atomic_read_u64(&transaction->consumed), 0);
	CHECK_EQUAL(pg_atomic_read_u32(&transaction->complete), 0);
	CHECK_EQUAL(pg_atomic_read_u32(&transaction->data_awaited), 0);
}

/* A writer takes its share of what there is, and no more than a run. */
static void
take(void)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, SMALL_RING, 4);
	int			count;

	pg_atomic_write_u32(&ring->active_writers, 3);
	pg_atomic_write_u32(&ring->run_limit, 8);
	CHECK_EQUAL(ring_take(ring, 0, &count), 0);

	add_empty(&producer, 12);
	CHECK_EQUAL(ring_backlog(ring), 12);
	CHECK_EQUAL(ring_take(ring, 3, &count), 0);
	CHECK_EQUAL(ring_take(ring, 2, &count), 1);
	CHECK_EQUAL(count, 4);
	CHECK_EQUAL(ring_take(ring, 0, &count), 5);
	CHECK_EQUAL(count, 2);
	CHECK_EQUAL(ring_backlog(ring), 6);
	for (uint64 seq = 1; seq <= 6; seq++)
		CHECK_EQUAL(ring_transaction(ring, seq)->writer, seq <= 4 ? 2 : 0);
	CHECK_EQUAL(ring_transaction(ring, 7)->writer, -1);

	/* The last ones go one by one. */
	CHECK_EQUAL(ring_take(ring, 1, &count), 7);
	CHECK_EQUAL(count, 2);
	for (uint64 seq = 9; seq <= 12; seq++)
	{
		CHECK_EQUAL(ring_take(ring, 1, &count), seq);
		CHECK_EQUAL(count, 1);
	}
	CHECK_EQUAL(ring_take(ring, 1, &count), 0);

	add_empty(&producer, 100);
	CHECK_EQUAL(ring_take(ring, 1, &count), 13);
	CHECK_EQUAL(count, 8);
}

/* A writer that would have to wait takes what is right behind its own. */
static void
take_more(void)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, SMALL_RING, 2);
	int			count;

	pg_atomic_write_u32(&ring->run_limit, 4);
	add_empty(&producer, 10);
	CHECK_EQUAL(ring_take(ring, 0, &count), 1);
	CHECK_EQUAL(count, 4);
	CHECK_EQUAL(ring_take_more(ring, 0, 4, 2), 2);
	CHECK_EQUAL(ring_transaction(ring, 6)->writer, 0);
	CHECK_EQUAL(ring_transaction(ring, 7)->writer, -1);

	/* Another writer was faster. */
	CHECK_EQUAL(ring_take(ring, 1, &count), 7);
	CHECK_EQUAL(count, 2);
	CHECK_EQUAL(ring_take_more(ring, 0, 6, 1), 0);
	CHECK_EQUAL(ring_transaction(ring, 7)->writer, 1);

	/* No more than there is. */
	CHECK_EQUAL(ring_take_more(ring, 1, 8, 100), 2);
	CHECK_EQUAL(ring_take_more(ring, 1, 10, 100), 0);
	CHECK_EQUAL(ring_backlog(ring), 0);
}

/* Which transactions share no commit with others. */
static void
alone(void)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, SMALL_RING, 1);
	RingCursor	cursor;
	const RingRecordHeader *header;
	const char *payload;

	add_transaction(&producer, 10);
	CHECK(!ring_transaction(ring, 1)->alone);
	CHECK_EQUAL(ring_transaction(ring, 1)->stream, 0);

	CHECK(ring_begin(&producer, 0, 0));
	CHECK_EQUAL(ring_append(&producer, RING_MESSAGE, 0, 0, "a", 1), 1);
	CHECK_EQUAL(ring_append(&producer, RING_MESSAGE, RING_EXCLUSIVE, 0, "b", 1), 1);
	CHECK_EQUAL(ring_append(&producer, RING_MESSAGE, 0, 0, "c", 1), 1);
	ring_complete(&producer, 1, 0);
	CHECK(ring_transaction(ring, 2)->alone);
	ring_rewind(&cursor, ring, 2);
	for (int i = 0; i < 3; i++)
	{
		CHECK_EQUAL(ring_read(&cursor, &header, &payload), RING_READ_RECORD);
		CHECK_EQUAL(header->flags, i == 1 ? RING_EXCLUSIVE : 0);
	}

	CHECK(ring_begin(&producer, 0, 0));
	ring_use_stream(&producer, 9);
	ring_complete(&producer, 1, 0);
	CHECK(ring_transaction(ring, 3)->alone);
	CHECK_EQUAL(ring_transaction(ring, 3)->stream, 9);
}

/* A group shares a commit record, and all of it is committed at once. */
static void
commit(void)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, SMALL_RING, 2);

	add_empty(&producer, 5);
	ring_commit(ring, 1, 3, 333);
	CHECK_EQUAL(ring_committed(ring), 3);
	for (uint64 seq = 1; seq <= 5; seq++)
		CHECK_EQUAL(ring_transaction(ring, seq)->local_end, seq <= 3 ? 333 : InvalidXLogRecPtr);
}

/* A published transaction wakes an idle writer if the awake ones have enough to do. */
static void
wake_idle(void)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, SMALL_RING, 4);

	pg_atomic_write_u32(&ring->active_writers, 3);
	for (int i = 0; i < 4; i++)
		ring->writer_procno[i] = MyProcNumber;

	/* One of three is awake, and can take two. */
	pg_atomic_write_u32(&ring->run_limit, 2);
	pg_atomic_write_u64(&ring->idle_writers.value, 0xE);
	ResetLatch(MyLatch);
	add_empty(&producer, 2);
	CHECK(!MyLatch->is_set);
	CHECK_EQUAL(pg_atomic_read_u64(&ring->idle_writers.value), 0xE);
	add_empty(&producer, 1);
	CHECK(MyLatch->is_set);
	CHECK_EQUAL(pg_atomic_read_u64(&ring->idle_writers.value), 0xC);
	add_empty(&producer, 2);
	CHECK_EQUAL(pg_atomic_read_u64(&ring->idle_writers.value), 0x8);

	/* The fourth takes nothing, so it is not woken. */
	ResetLatch(MyLatch);
	add_empty(&producer, 100);
	CHECK(!MyLatch->is_set);
	CHECK_EQUAL(pg_atomic_read_u64(&ring->idle_writers.value), 0x8);
}

/* Before the leader sleeps: as many as are needed, and all once nobody takes anything. */
static void
wake_before_sleep(void)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, SMALL_RING, 4);
	RingProgress progress = {0};

	pg_atomic_write_u32(&ring->run_limit, 4);
	CHECK(!ring_wake_before_sleep(ring, &progress));

	/* Nobody is idle. */
	add_empty(&producer, 6);
	CHECK(!ring_wake_before_sleep(ring, &progress));

	/* One is awake and takes four; one more is needed. */
	pg_atomic_write_u64(&ring->idle_writers.value, 0xE);
	pg_atomic_write_u64(&ring->taken.value, 1);
	CHECK(ring_wake_before_sleep(ring, &progress));
	CHECK_EQUAL(pg_atomic_read_u64(&ring->idle_writers.value), 0xC);
	progress.time = GetCurrentTimestamp() + USECS_PER_HOUR;
	CHECK(ring_wake_before_sleep(ring, &progress));
	CHECK_EQUAL(pg_atomic_read_u64(&ring->idle_writers.value), 0xC);

	/* Nothing has been taken for a while, and the writer that is awake waits. */
	ring->writer_procno[0] = MyProcNumber;
	progress.time = GetCurrentTimestamp() - 5000;
	MyProc->wait_event_info = PG_WAIT_EXTENSION;
	CHECK(!ring_wake_before_sleep(ring, &progress));
	MyProc->wait_event_info = 0;
	CHECK_EQUAL(pg_atomic_read_u64(&ring->idle_writers.value), 0);

	/* Nothing has been taken for long. */
	pg_atomic_write_u64(&ring->idle_writers.value, 0xC);
	progress.time = GetCurrentTimestamp() - USECS_PER_SEC;
	CHECK(!ring_wake_before_sleep(ring, &progress));
	CHECK_EQUAL(pg_atomic_read_u64(&ring->idle_writers.value), 0);
}

/* A sleeper is woken by what it waits for, and not before. */
static void
wake_sleepers(void)
{
	RingProducer producer;
	Ring	   *ring = unit_ring(&producer, SMALL_RING, 2);

	ring->writer_procno[1] = MyProcNumber;
	CHECK(ring_begin(&producer, 0, 0));
	ring_publish(&producer);
	ring_transaction(ring, 1)->writer = 1;
	ResetLatch(MyLatch);
	ring_publish(&producer);
	CHECK(!MyLatch->is_set);
	pg_atomic_write_u32(&ring_transaction(ring, 1)->data_awaited, 1);
	ring_publish(&producer);
	CHECK(MyLatch->is_set);
	CHECK_EQUAL(pg_atomic_read_u32(&ring_transaction(ring, 1)->data_awaited), 0);
	ring_complete(&producer, 1, 0);
	add_empty(&producer, 5);

	pg_atomic_write_u64(&ring->writer_awaits[1], 2);
	ResetLatch(MyLatch);
	ring_commit(ring, 1, 1, 0);
	CHECK(!MyLatch->is_set);
	ring_commit(ring, 2, 3, 0);
	CHECK(MyLatch->is_set);

	/* A stream writer. */
	ring->writer_procno[1] = INVALID_PROC_NUMBER;
	ring->writer_procno[WEFT_MAX_WRITERS] = MyProcNumber;
	pg_atomic_write_u32(&ring->num_stream_writers, 1);
	pg_atomic_write_u64(&ring->writer_awaits[WEFT_MAX_WRITERS], 4);
	ResetLatch(MyLatch);
	ring_commit(ring, 4, 4, 0);
	CHECK(MyLatch->is_set);

	ring->writer_procno[WEFT_MAX_WRITERS] = INVALID_PROC_NUMBER;
	ring->leader_procno = MyProcNumber;
	pg_atomic_write_u64(&ring->leader_awaits, 6);
	ResetLatch(MyLatch);
	ring_commit(ring, 5, 5, 0);
	CHECK(!MyLatch->is_set);
	CHECK_EQUAL(pg_atomic_read_u64(&ring->leader_awaits), 6);
	ring_commit(ring, 6, 6, 0);
	CHECK(MyLatch->is_set);
	CHECK_EQUAL(pg_atomic_read_u64(&ring->leader_awaits), 0);
}

static void
sizes(void)
{
	CHECK_EQUAL(ring_bytes(64), 64 * 1024);
	CHECK_EQUAL(ring_bytes(65), 128 * 1024);
	CHECK_EQUAL(ring_bytes(1024 * 1024), UINT64CONST(1) << 30);
}

static const UnitTest tests[] = {
	{"sizes", sizes},
	{"records", records},
	{"wraparound", wraparound},
	{"wraparound_filled", wraparound_filled},
	{"full_ring", full_ring},
	{"no_tiny_pieces", no_tiny_pieces},
	{"consumed", consumed},
	{"window_full", window_full},
	{"take", take},
	{"take_more", take_more},
	{"alone", alone},
	{"commit", commit},
	{"wake_idle", wake_idle},
	{"wake_before_sleep", wake_before_sleep},
	{"wake_sleepers", wake_sleepers},
	{NULL, NULL}
};

const Unit	ring_unit = {"ring", tests};
