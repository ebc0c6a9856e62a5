/*
 * prefetch.c
 *	  The fast path: fetches into the processor's caches what the next changes need.
 *
 * Changed rows are scattered, so finding one mostly means waiting for memory: for the
 * index's page, for the row's page, and for the descriptor of each one's buffer.  The next
 * changes are in the ring already.  Therefore the writer shows a few of them to this
 * module before it applies a change (apply/look_ahead.c), and for each of them the
 * module prefetches one thing at a time, in the order in which they become known:
 *	 1. the leaf page that has the key, by leaf_map.c;
 *	 2. the row's page, whose place the leaf page tells, and its line pointer;
 *	 3. the row that this points to, or the whole page if it is going to be pruned.
 * When the change's turn comes, the row's place is known (lookup.c), and what it needs is
 * in the caches.  If a page is not in shared buffers, the operating system reads it ahead.
 *
 * Only changes of large tables are of interest.  The result is a guess, as all
 * places are, and becomes wrong if a row moves meanwhile.  Pages are read without a pin or
 * lock where that only serves to guess what to prefetch: a wrong guess brings a wrong line
 * of memory into the cache, and nothing else.
 *
 * An error here is one of the fast path (fast_row.c).
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fast/cache_line.h"
#include "fast/fast_relation.h"
#include "fast/fast_session.h"
#include "fast/lookup.h"
#include "fast/prefetch.h"
#include "fast/recent_buffer.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

/* How many changes are looked ahead: one for each step, so that each is taken in time. */
#define DEPTH 3

typedef struct Upcoming
{
	uint64		position;		/* of its record's end in the ring */
	FastRelation *relation;
	uint32		key_hash;
	KeyPrefix	key;
	int			steps;			/* how many were taken */
	OffsetNumber offset;		/* of the row, once that is known */
	Buffer		buffer;			/* that then has its page, or InvalidBuffer */
} Upcoming;

/* The next changes, in their order; a global like the transaction that they belong to. */
static Upcoming upcoming[DEPTH];
static int	num_upcoming = 0;

/* Reads the leaf page, and prefetches the row's page. */
static void
prefetch_page(Upcoming *next)
{
	FastRelation *relation = next->relation;
	ItemPointerData tids[LEAF_MAP_MAX_PLACES];

	if (leaf_map_places(relation->leaf_map, relation->key_index, next->key, tids) == 0)
		return;
	next->offset = ItemPointerGetOffsetNumber(&tids[0]);
	next->buffer = PrefetchBuffer(relation->rel, MAIN_FORKNUM,
								  ItemPointerGetBlockNumber(&tids[0])).recent_buffer;
	lookup_remember_place(relation, next->key_hash, tids[0], next->buffer);
	if (BufferIsValid(next->buffer))
		recent_buffer_prefetch(next->buffer, next->offset);
}

static void
prefetch_row(const Upcoming *next)
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
	for (int i = begin; i < end; i += CACHE_LINE)
		cache_line_prefetch((char *) page + i);
}

/* Takes the next step for a change whose table is open, unless all allowed ones were taken. */
static void
take_step(Upcoming *next, int allowed)
{
	FastRelation *relation = next->relation;

	if (next->steps >= allowed || relation->rel == NULL ||
		relation->key_index == NULL || relation->leaf_map == NULL)
		return;
	fast_session_enter(relation->remote_relid);
	switch (++next->steps)
	{
		case 1:
			leaf_map_prefetch(relation->leaf_map, relation->key_index, next->key);
			break;
		case 2:
			prefetch_page(next);
			break;
		case 3:
			prefetch_row(next);
			break;
	}
	fast_session_leave();
}

/* Returns which column of the local key a local column is, or -1. */
static int
key_of_column(const FastRelation *relation, int local)
{
	for (int i = 0; i < relation->num_keys; i++)
		if (relation->key_columns[i] == local)
			return i;
	return -1;
}

/* Reads the prefix of a key, and its hash, from a tuple; returns false if it has none. */
static bool
read_key(const FastRelation *relation, WireCursor cursor, KeyPrefix *key, uint32 *key_hash)
{
	int			count = wire_uint16(&cursor);
	int			found = 0;
	WireColumn	keys[INDEX_MAX_KEYS];

	if (count != relation->num_columns)
		return false;
	*key_hash = relation->remote_relid;
	for (int i = 0; i < count && found < relation->num_keys; i++)
	{
		WireColumn	sent;
		int			number;

		if (!wire_column(&cursor, &sent))
			return false;
		number = key_of_column(relation, relation->columns[i].local);
		if (number < 0)
			continue;
		*key_hash = fast_column_hash(*key_hash, &sent);
		keys[number] = sent;
		found++;
	}
	return found == relation->num_keys &&
		key_prefix_of_sent(leaf_map_form(relation->leaf_map), keys, key);
}

/*
 * Describes a change of a row whose place the leaf map can tell.  Returns false if the
 * change is none, or needs no prefetching.
 */
static bool
describe(const RowChange *change, Upcoming *next)
{
	FastRelation *relation = fast_relation_find(change->relid);

	if (!relation->valid || relation->reason || relation->leaf_map == NULL ||
		!leaf_map_is_worth_prefetch(relation->leaf_map) ||
		!read_key(relation, row_change_tuples(change), &next->key, &next->key_hash) ||
		lookup_place_known(relation, next->key_hash))
		return false;
	next->relation = relation;
	next->steps = 0;
	next->buffer = InvalidBuffer;
	return true;
}

/* Forgets the changes that come next: the writer's place in the ring has changed. */
void
prefetch_forget(void)
{
	num_upcoming = 0;
}

/*
 * Forgets the changes whose records end up to a position, which the writer has read.
 * Returns whether prefetch_add() has room.
 */
bool
prefetch_advance(uint64 position)
{
	int			passed = 0;

	while (passed < num_upcoming && upcoming[passed].position <= position)
		passed++;
	if (passed > 0)
	{
		num_upcoming -= passed;
		memmove(upcoming, upcoming + passed, num_upcoming * sizeof(Upcoming));
	}
	return num_upcoming < DEPTH;
}

/*
 * Adds an UPDATE or DELETE that the writer will apply, whose record ends at a position,
 * if prefetching helps it.  Returns whether there is room for another one.
 */
bool
prefetch_add(const RowChange *change, uint64 position)
{
	if (describe(change, &upcoming[num_upcoming]))
		upcoming[num_upcoming++].position = position;
	return num_upcoming < DEPTH;
}

/* Takes the next step for each of the changes that come next. */
void
prefetch_next(void)
{
	for (int i = 0; i < num_upcoming; i++)
		take_step(&upcoming[i], DEPTH - i);
}
