/*
 * stream_set.c
 *	  The streamed transactions that the leader keeps.
 *
 * A transaction is open until the publisher says how it ends.  It has ended while its
 * spool is still needed: until the leader has collected its commit, or, if it was
 * aborted, until its stream writer has rolled back.
 *
 * Writers see NUM_STREAMS transactions at a time, through the entries of
 * SubscriptionShared.  Open transactions may use NUM_OPEN_STREAMS of them; the others are
 * reserved for transactions that end.  If none is available, a transaction that begins
 * gets a private entry, which no writer sees, and is only spooled.  It moves to
 * a shared entry at the beginning of one of its blocks, once one is free, or when it
 * ends.  An ended transaction frees its entry.
 *
 * Another set of writers takes over open transactions from their spools.  Whatever the
 * old stream writers had applied of them is rolled back.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "receive/leader_ring.h"
#include "receive/led_subscription.h"
#include "receive/stream_set.h"
#include "replication/worker_internal.h"
#include "ring/stream_wait.h"
#include "utils/memutils.h"

/* How many shared entries may belong to open transactions. */
#define NUM_OPEN_STREAMS (NUM_STREAMS - 8)

typedef struct StreamEntry
{
	TransactionId xid;			/* hash key */
	Stream	   *stream;
} StreamEntry;

static HTAB *open_streams;		/* of StreamEntry */
static List *ended_streams = NIL;	/* whose spools are still needed */
static Stream *current;			/* whose block is open, or NULL */

/*
 * Open transactions that the server's parallel apply workers apply: those that are
 * native, if the subscription has streaming = parallel.
 */
static int	num_parallel = 0;

static FileSet files;			/* of the spools; each ring has a copy */
static bool have_files = false; /* it has been made */
static uint32 num_spools = 0;	/* so far: the number of the next one */

/* Prepares for the first message; called once in a leader. */
void
stream_set_init(void)
{
	HASHCTL		info;

	info.keysize = sizeof(TransactionId);
	info.entrysize = sizeof(StreamEntry);
	info.hcxt = led.context;
	open_streams = hash_create("weft streams", 8, &info,
							   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/*
 * Is any spool in use: is a transaction open that is not native, or has one ended whose
 * spool is still needed?
 */
bool
stream_set_in_use(void)
{
	HASH_SEQ_STATUS scan;
	StreamEntry *entry;

	hash_seq_init(&scan, open_streams);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		if (!entry->stream->native)
		{
			hash_seq_term(&scan);
			return true;
		}
	}
	return ended_streams != NIL;
}

/* Do the server's parallel apply workers have any transaction in progress? */
bool
stream_set_has_parallel(void)
{
	return num_parallel > 0;
}

/* Returns an open transaction, or NULL. */
Stream *
stream_set_find(TransactionId xid)
{
	StreamEntry *entry = hash_search(open_streams, &xid, HASH_FIND, NULL);

	return entry ? entry->stream : NULL;
}

/* Has the transaction a shared entry? */
bool
stream_set_visible(const Stream *stream)
{
	return stream->shared != &stream->own_entry;
}

static StreamShared *
free_entry(void)
{
	for (int i = 0; i < NUM_STREAMS; i++)
		if (pg_atomic_read_u32(&led.shared->streams[i].state) == STREAM_FREE)
			return &led.shared->streams[i];
	return NULL;
}

/* Returns a shared entry for an open transaction, or NULL. */
static StreamShared *
entry_for_open_stream(void)
{
	HASH_SEQ_STATUS scan;
	StreamEntry *entry;
	int			count = 0;

	hash_seq_init(&scan, open_streams);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (!entry->stream->native && stream_set_visible(entry->stream))
			count++;
	return count < NUM_OPEN_STREAMS ? free_entry() : NULL;
}

/*
 * Gives an entry to a transaction that nobody applies, and whose spool is as the Stream
 * says.
 */
static void
use_entry(Stream *stream, StreamShared *shared, uint64 received_changes)
{
	stream->shared = shared;
	shared->number = stream->number;
	shared->base = stream->base;
	shared->num_void = 0;
	pg_atomic_write_u32(&shared->xid, stream->xid);
	pg_atomic_write_u64(&shared->written, stream->written);
	pg_atomic_write_u32(&shared->data_awaited, 0);
	pg_atomic_write_u32(&shared->writer, 0);
	pg_atomic_write_u64(&shared->received_changes, received_changes);
	pg_atomic_write_u64(&shared->applied_changes, 0);
	pg_atomic_write_u64(&shared->seq, 0);
	pg_write_barrier();
	pg_atomic_write_u32(&shared->state, STREAM_SPOOLED);
}

/* Moves a transaction from its private entry to a shared one, if there is one. */
static bool
show(Stream *stream, StreamShared *shared)
{
	if (shared == NULL)
		return false;
	use_entry(stream, shared, pg_atomic_read_u64(&stream->own_entry.received_changes));
	return true;
}

/* Gives an open transaction a shared entry, if it has none and there is one for it. */
void
stream_set_show_open(Stream *stream)
{
	if (!stream_set_visible(stream))
		(void) show(stream, entry_for_open_stream());
}

/* The same for a transaction that ends; false if there is no entry yet. */
bool
stream_set_show_ended(Stream *stream)
{
	return show(stream, free_entry());
}

/* Returns the transaction that has ended first of those whose entries are in use. */
Stream *
stream_set_oldest_ended(void)
{
	return linitial(ended_streams);
}

/* Gives a new transaction its spool and its entry. */
static void
begin_spool(Stream *stream)
{
	StreamShared *shared = entry_for_open_stream();

	if (!have_files)
	{
		StartTransactionCommand();
		FileSetInit(&files);
		CommitTransactionCommand();
		MemoryContextSwitchTo(led.message_context);
		leader_ring.producer.ring->stream_files = files;
		have_files = true;
	}
	stream->number = num_spools++;
	stream_spool_create(stream);
	use_entry(stream, shared ? shared : &stream->own_entry, 0);
}

/* Adds a transaction that begins. */
Stream *
stream_set_add(TransactionId xid, bool native)
{
	MemoryContext context = AllocSetContextCreate(led.context, "weft stream",
												  ALLOCSET_DEFAULT_SIZES);
	StreamEntry *entry;
	Stream	   *stream = MemoryContextAllocZero(context, sizeof(Stream));
	HASHCTL		info;

	stream->context = context;
	stream->xid = stream->latest_xid = xid;
	stream->native = native;
	if (!native)
		begin_spool(stream);
	entry = hash_search(open_streams, &xid, HASH_ENTER, NULL);
	entry->stream = stream;
	if (native)
	{
		/*
		 * The server starts no parallel apply worker while an LSN is to be
		 * skipped.
		 */
		stream->can_be_skipped = !XLogRecPtrIsInvalid(MySubscription->skiplsn);
		if (MyLogicalRepWorker->parallel_apply)
			num_parallel++;
		return stream;
	}

	info.keysize = sizeof(LogicalRepRelId);
	info.entrysize = sizeof(StreamedRelation);
	info.hcxt = context;
	stream->relations = hash_create("weft streamed relations", 16, &info,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	return stream;
}

/*
 * A transaction is not open any more.  It is forgotten if it is native; otherwise
 * stream_set_collect() removes it when its spool is not needed any more.
 */
void
stream_set_remove(Stream *stream)
{
	hash_search(open_streams, &stream->xid, HASH_REMOVE, NULL);
	if (stream->native)
	{
		if (num_parallel > 0)
			num_parallel--;
		MemoryContextDelete(stream->context);
	}
	else
	{
		MemoryContext old = MemoryContextSwitchTo(led.context);

		ended_streams = lappend(ended_streams, stream);
		MemoryContextSwitchTo(old);
	}
}

/* If a stream writer applies the transaction, tells it to roll back. */
void
stream_set_discard(Stream *stream)
{
	uint32		state = STREAM_APPLYING;

	stream->shared->waiter_procno = MyProcNumber;
	if (pg_atomic_compare_exchange_u32(&stream->shared->state, &state, STREAM_DISCARDED))
		ring_wake_stream_writer(leader_ring.producer.ring, stream->shared);
}

/* Tells all stream writers to roll back open transactions. */
void
stream_set_discard_all(void)
{
	HASH_SEQ_STATUS scan;
	StreamEntry *entry;

	hash_seq_init(&scan, open_streams);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (!entry->stream->native)
			stream_set_discard(entry->stream);
}

/*
 * There is a new ring with new writers.  Nothing is in flight, and nobody applies any of
 * the open transactions.
 */
void
stream_set_renew(void)
{
	HASH_SEQ_STATUS scan;
	StreamEntry *entry;
	ListCell   *cell;

	leader_ring.producer.ring->stream_files = files;

	/*
	 * The stream writers that were to roll aborted transactions back are
	 * gone.
	 */
	foreach(cell, ended_streams)
	{
		Stream	   *stream = lfirst(cell);

		Assert(stream->seq == 0);
		spool_delete(&files, stream->number);
		MemoryContextDelete(stream->context);
	}
	list_free(ended_streams);
	ended_streams = NIL;

	hash_seq_init(&scan, open_streams);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		Stream	   *stream = entry->stream;

		if (stream->native)
			continue;
		stream->base = stream->written;
		use_entry(stream, stream->shared,
				  pg_atomic_read_u64(&stream->shared->received_changes));
	}
}

/* Is the spool of a transaction that has ended not needed any more? */
static bool
is_over(Stream *stream)
{
	uint32		state = pg_atomic_read_u32(&stream->shared->state);

	if (stream->seq > 0)
		return stream->seq <= leader_ring.collected;
	return state == STREAM_SPOOLED || state == STREAM_FAILED;
}

/* Removes the ended transactions whose spools are not needed any more. */
void
stream_set_collect(void)
{
	ListCell   *cell;

	foreach(cell, ended_streams)
	{
		Stream	   *stream = lfirst(cell);

		if (!is_over(stream))
			continue;
		/* Whoever no longer sees the transaction finds no file, either. */
		spool_delete(&files, stream->number);
		pg_atomic_write_u32(&stream->shared->state, STREAM_FREE);
		MemoryContextDelete(stream->context);
		ended_streams = foreach_delete_current(ended_streams, cell);
	}
}

/* Removes all files: the leader ends, or no transaction is open. */
void
stream_set_remove_files(void)
{
	if (have_files)
		FileSetDeleteAll(&files);
	have_files = false;
}

/* A block of an open transaction begins. */
void
stream_set_enter_block(Stream *stream)
{
	current = stream;
}

/* Returns the transaction whose block is open. */
Stream *
stream_set_block(void)
{
	return current;
}

/* The block ends. */
void
stream_set_leave_block(void)
{
	current = NULL;
}

/* Is a block open whose changes go to a spool? */
bool
stream_set_in_block(void)
{
	return current != NULL && !current->native;
}

/* The leader is going to pause: lets writers read everything that has arrived. */
void
stream_set_flush(void)
{
	if (stream_set_in_block())
		stream_spool_flush(current);
}
