/*
 * prefetch.c
 *	  The fast path: has ready in the processor's caches what the next changes need.
 *
 * Rows are changed here and there, so to find one is, above all, to wait for memory:
 * for the index's page, for the row's, each with the descriptor of its buffer.
 * What comes next is in the ring already.  So while a change is applied, its
 * writer looks a few ahead, and asks for one thing of each that it has not asked
 * for before, in the order in which they become known:
 *	 1. the leaf page that has the key by the list in leaf_map.c;
 *	 2. the row's page, whose place the leaf page tells, and its line pointer;
 *	 3. the row that this points to, or all of the page if it is going to be pruned.
 * When its turn comes, its place is known (lookup.c), and what it needs is near.
 * A page that is not in shared memory is read ahead by the operating system.
 *
 * Only changes that their writer has taken are looked at, so they stay in the ring,
 * and only those of tables that are large enough.  What is found out is a guess, as
 * all places are, and no longer true if a row moves meanwhile.  Pages are looked
 * into without pin or lock where it is only to guess what to ask for: what comes of a
 * wrong guess is a wrong line of memory in the cache.
 *
 * An error here is one of the fast path (fast_row.c).
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fast/fast.h"
#include "apply/writer.h"
#include "replication/logicalproto.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

/* So many changes are looked ahead, one for each thing to ask for. */
#define DEPTH 3

/* No further at a time than so many records, whatever they are. */
#define MAX_RECORDS 64

typedef struct Upcoming
{
	uint64		position;		/* of its record's end in the ring */
	FastRelation *relation;
	uint32		key_hash;
	int64		key;
	int			asked_for;		/* so many things */
	OffsetNumber offset;		/* of the row, once that is known */
	Buffer		buffer;			/* that then has its page, or InvalidBuffer */
} Upcoming;

static RingCursor ahead;
static bool in_pieces;			/* the record at "ahead" goes on with a
								 * message */
static Upcoming upcoming[DEPTH];	/* in the order in which they come */
static int	num_upcoming = 0;

/* Reads the leaf page, and asks for the row's page. */
static void
ask_for_page(Upcoming *next)
{
	FastRelation *relation = next->relation;
	ItemPointerData tids[FAST_MAX_PLACES];

	if (fast_places_by_leaf(relation->leaves, relation->key_index, next->key, tids) == 0)
		return;
	next->offset = ItemPointerGetOffsetNumber(&tids[0]);
	next->buffer = PrefetchBuffer(relation->rel, MAIN_FORKNUM,
								  ItemPointerGetBlockNumber(&tids[0])).recent_buffer;
	fast_remember_place(relation, next->key_hash, tids[0], next->buffer);
	if (BufferIsValid(next->buffer))
		fast_ask_for_page(next->buffer, next->offset);
}

static void
ask_for_row(const Upcoming *next)
{
	Page		page;
	ItemId		id;
	int			begin;
	int			end;

	if (!BufferIsValid(next->buffer))
		return;
	page = BufferGetPage(next->buffer);
	if (PageGetExactFreeSpace(page) < next->relation->row_length)
	{
		begin = ((PageHeader) page)->pd_lower;
		end = BLCKSZ;
	}
	else
	{
		id = PageGetItemId(page, next->offset);
		if (ItemIdIsRedirected(id) && ItemIdGetRedirect(id) <= MaxHeapTuplesPerPage)
			id = PageGetItemId(page, ItemIdGetRedirect(id));
		begin = ItemIdGetOffset(id);
		end = Min(begin + next->relation->row_length, BLCKSZ);
	}
	for (int i = begin; i < end; i += FAST_CACHE_LINE)
		fast_ask_for((char *) page + i);
}

/* Asks for one more thing that a change needs, if it may; its table must be open. */
static void
ask(Upcoming *next, int allowed)
{
	FastRelation *relation = next->relation;

	if (next->asked_for >= allowed || relation->rel == NULL ||
		relation->key_index == NULL || relation->leaves == NULL)
		return;
	fast_enter(relation->remote_relid);
	switch (++next->asked_for)
	{
		case 1:
			fast_ask_for_leaf(relation->leaves, relation->key_index, next->key);
			break;
		case 2:
			ask_for_page(next);
			break;
		case 3:
			ask_for_row(next);
			break;
	}
	fast_leave();
}

/* Reads a key of one integer, and its hash, from a tuple. */
static bool
read_key(const FastRelation *relation, WireCursor cursor, int64 *key, uint32 *key_hash)
{
	int			count = wire_uint16(&cursor);

	if (count != relation->num_columns)
		return false;
	for (int i = 0; i < count; i++)
	{
		const FastColumn *column = &relation->columns[i];
		WireColumn	sent;

		if (!wire_column(&cursor, &sent))
			return false;
		if (column->local == relation->key_columns[0])
		{
			*key_hash = fast_hash_key(relation->remote_relid, &sent);
			return fast_read_integer(column, &sent, key);
		}
	}
	return false;
}

/*
 * Is the message a change of a row whose place is to be found by the leaf pages?
 * Describes it then.
 */
static bool
describe(const char *message, int length, Upcoming *next)
{
	WireChange	change;
	FastRelation *relation;

	if ((message[0] != LOGICAL_REP_MSG_UPDATE && message[0] != LOGICAL_REP_MSG_DELETE) ||
		wire_read_change(message, length, false, &change) != NULL)
		return false;
	relation = fast_find_relation(change.relid);
	if (!relation->valid || relation->reason || relation->leaves == NULL ||
		!fast_leaves_worth(relation->leaves) ||
		!read_key(relation, change.tuples, &next->key, &next->key_hash) ||
		fast_place_known(relation, next->key_hash))
		return false;
	next->relation = relation;
	next->asked_for = 0;
	next->buffer = InvalidBuffer;
	return true;
}

/* Reads the next record that is there; false if there is none. */
static bool
read_ahead(const RingRecordHeader **header, const char **payload)
{
	RingReadResult result;

	while ((result = ring_read(&ahead, header, payload)) == RING_READ_END &&
		   ahead.seq < writer.end)
	{
		ring_rewind(&ahead, writer.ring, ahead.seq + 1);
		in_pieces = false;
	}
	return result == RING_READ_RECORD;
}

/* Fills the list of the changes that come next. */
static void
look_for_changes(void)
{
	const RingRecordHeader *header;
	const char *payload;

	for (int i = 0; i < MAX_RECORDS && num_upcoming < DEPTH && read_ahead(&header, &payload); i++)
	{
		bool		whole = !in_pieces && !(header->flags & RING_MORE);

		if (header->kind != RING_MESSAGE)
			continue;
		in_pieces = (header->flags & RING_MORE) != 0;
		if (whole && describe(payload, header->length, &upcoming[num_upcoming]))
			upcoming[num_upcoming++].position = ahead.position;
	}
}

/* Called before the writer reads each record. */
void
fast_look_ahead(void)
{
	int			passed = 0;

	if (writer.careful || writer.committed_to)
		return;
	if (ahead.ring != writer.ring || ahead.seq < writer.seq || ahead.seq > writer.end ||
		ahead.position < writer.cursor.position)
	{
		ahead = writer.cursor;
		in_pieces = writer.message.len > 0;
		num_upcoming = 0;
	}
	while (passed < num_upcoming && upcoming[passed].position <= writer.cursor.position)
		passed++;
	if (passed > 0)
	{
		num_upcoming -= passed;
		memmove(upcoming, upcoming + passed, num_upcoming * sizeof(Upcoming));
	}
	if (num_upcoming < DEPTH)
		look_for_changes();
	for (int i = 0; i < num_upcoming; i++)
		ask(&upcoming[i], DEPTH - i);
}
