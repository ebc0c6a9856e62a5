/*
 * leaf_map.c
 *	  The fast path: finds a row's place without descending the index.
 *
 * A writer with a backlog spent more time descending btrees than on anything else.  A
 * map makes the descent unnecessary: it has the prefix (key_prefix.c) of the lowest key of
 * each leaf page, read from the level above.  The map tells which leaf page would have
 * a key, and two neighbouring entries tell roughly where on that page it is.  If many
 * pages begin with the same prefix, then the map would mislead, and there is none.
 *
 * The map is a guess.  Other processes split and empty pages without its notice, and nobody
 * relies on the result: it is a list of places where the row may be.  The caller
 * compares the key there, and falls back to the index.  Therefore this file has to ensure
 * only that it takes no other page for a leaf page, and does not read beyond a page's end.
 *
 * A page that was split has given its higher keys to its right neighbour, so the search
 * continues there.  The map is read again once the misses have cost about as much as
 * reading it does.  The first time, it is read much earlier: all rows are misses then, nothing
 * can be prefetched, and a writer that starts has most likely a backlog.
 *
 * The map belongs to the index's storage, as remembered places do (lookup.c).
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "fast/cache_line.h"
#include "fast/leaf_map.h"
#include "fast/recent_buffer.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

/*
 * The map is read after MIN_MISSES misses, plus one for each PAGES_PER_MISS of the index; the
 * first time, for each FIRST_PAGES_PER_MISS.
 */
#define MIN_MISSES 64
#define PAGES_PER_MISS 16
#define FIRST_PAGES_PER_MISS 128

/*
 * An index with more than MAX_PAGES gets no map, nor does one with which all maps of this
 * writer would have more than MAX_PAGES_IN_ALL.  Each page takes 24 bytes.
 */
#define MAX_PAGES (256 * 1024)
#define MAX_PAGES_IN_ALL (1024 * 1024)

/* Room in a new map, in pages. */
#define FIRST_ROOM 1024

/* Fewer leaf pages than this are in the processor's caches anyway. */
#define MIN_AHEAD 64

/* If more than one in MAX_ALIKE pages begins like the one before, the map is of no use. */
#define MAX_ALIKE 8

/* A search on a page tries this many positions near the guess before it bisects. */
#define GUESSES 3

typedef struct Leaf
{
	BlockNumber block;
	Buffer		buffer;			/* that it was last in, or InvalidBuffer */
} Leaf;

/* The leaf pages, in the order of their keys. */
struct LeafMap
{
	MemoryContext context;
	KeyPrefixForm form;
	Size		entry_size;		/* of a key whose columns have its parts'
								 * lengths */
	bool		useless;		/* as was seen when it was read */
	int			misses;			/* rows not found by the map since it was read */
	int			num;
	int			room;
	KeyPrefix  *low;			/* no page has a lower key */
	Leaf	   *leaf;
};

/* Room in all maps of this writer, in pages; a global since it is a limit for all. */
static int	room_in_all = 0;

/*
 * Returns an empty map of an index's leaf pages, in the current memory context, or NULL
 * if its keys have no prefixes.
 */
LeafMap *
leaf_map_describe(Relation index)
{
	LeafMap    *map;
	KeyPrefixForm form;

	if (!key_prefix_describe(index, &form))
		return NULL;
	map = palloc0(sizeof(LeafMap));
	map->context = CurrentMemoryContext;
	map->form = form;
	map->entry_size = MAXALIGN(sizeof(IndexTupleData) + form.length);
	return map;
}

/* Forgets a map whose memory context is going to be reset. */
void
leaf_map_forget(LeafMap *map)
{
	room_in_all -= map->room;
}

/* Returns the form of the prefixes by which the map is searched. */
const KeyPrefixForm *
leaf_map_form(const LeafMap *map)
{
	return &map->form;
}

/* Returns the prefix of the key of a page's entry. */
static KeyPrefix
key_at(const LeafMap *map, Relation index, Page page, OffsetNumber offset)
{
	return key_prefix_of_entry(&map->form, index,
							   (IndexTuple) PageGetItem(page, PageGetItemId(page, offset)));
}

static void
make_room(LeafMap *map)
{
	if (map->room == 0)
	{
		map->low = MemoryContextAlloc(map->context, FIRST_ROOM * sizeof(KeyPrefix));
		map->leaf = MemoryContextAlloc(map->context, FIRST_ROOM * sizeof(Leaf));
		map->room = FIRST_ROOM;
		room_in_all += FIRST_ROOM;
	}
	else if (map->num == map->room)
	{
		map->low = repalloc(map->low, 2 * map->room * sizeof(KeyPrefix));
		map->leaf = repalloc(map->leaf, 2 * map->room * sizeof(Leaf));
		room_in_all += map->room;
		map->room *= 2;
	}
}

/*
 * Adds the leaf pages that a page of the level above names; "low" is the lowest key that
 * this page can have.
 */
static void
add_leaves(LeafMap *map, Relation index, Page page, KeyPrefix low)
{
	OffsetNumber first = P_FIRSTDATAKEY(BTPageGetOpaque(page));
	OffsetNumber last = PageGetMaxOffsetNumber(page);

	for (OffsetNumber offset = first; offset <= last; offset++)
	{
		IndexTuple	entry = (IndexTuple) PageGetItem(page, PageGetItemId(page, offset));

		make_room(map);
		/* The first entry has no key of its own. */
		map->low[map->num] = offset == first ? low : key_at(map, index, page, offset);
		map->leaf[map->num] = (Leaf)
		{
			BTreeTupleGetDownLink(entry), InvalidBuffer
		};
		map->num++;
	}
}

/* Do many pages begin with the same prefix, so that one cannot tell which has a key? */
static bool
many_alike(const LeafMap *map)
{
	int			alike = 0;

	for (int i = 1; i < map->num; i++)
		alike += key_prefix_equal(map->low[i - 1], map->low[i]);
	return alike > map->num / MAX_ALIKE;
}

/* Reads the map, from left to right. */
static void
read_leaves(LeafMap *map, Relation index)
{
	Buffer		buffer;
	BlockNumber pages = RelationGetNumberOfBlocks(index);
	KeyPrefix	low = {0, 0};

	map->misses = map->num = 0;
	if (pages > MAX_PAGES || room_in_all - map->room + pages > MAX_PAGES_IN_ALL ||
		_bt_getrootheight(index) < 1)
		return;

	buffer = _bt_get_endpoint(index, 1, false);
	for (;;)
	{
		Page		page = BufferGetPage(buffer);
		BTPageOpaque opaque = BTPageGetOpaque(page);
		BlockNumber next = opaque->btpo_next;

		if (!P_IGNORE(opaque))
		{
			if (opaque->btpo_level != 1 || map->num > MAX_PAGES)
				break;
			add_leaves(map, index, page, low);
			if (!P_RIGHTMOST(opaque))
				low = key_at(map, index, page, P_HIKEY);
		}
		if (P_RIGHTMOST(opaque))
			break;
		_bt_relbuf(index, buffer);
		CHECK_FOR_INTERRUPTS();
		buffer = _bt_getbuf(index, next, BT_READ);
	}
	_bt_relbuf(index, buffer);
	if (many_alike(map))
	{
		elog(DEBUG1, "too many leaf pages of index \"%s\" begin with the same %d bytes",
			 RelationGetRelationName(index), map->form.length);
		map->useless = true;
		map->num = 0;
		return;
	}
	elog(DEBUG1, "the lowest keys of %d leaf pages of index \"%s\" are known",
		 map->num, RelationGetRelationName(index));
}

/* Counts a row that the map did not find, and reads the map if it is time to. */
static void
missed(LeafMap *map, Relation index)
{
	int			pages_per_miss = map->num == 0 ? FIRST_PAGES_PER_MISS : PAGES_PER_MISS;

	if (map->useless)
		return;
	map->misses++;
	if (map->misses % MIN_MISSES == 0 &&
		map->misses >= MIN_MISSES + RelationGetNumberOfBlocks(index) / pages_per_miss)
		read_leaves(map, index);
}

/* Returns the page that has a key by the map: the last one with a lowest key up to it. */
static int
leaf_of(const LeafMap *map, KeyPrefix key)
{
	int			first = 0;
	int			count = map->num;

	while (count > 1)
	{
		int			half = count / 2;

		first += key_prefix_less(key, map->low[first + half]) ? 0 : half;
		count -= half;
	}
	return first;
}

/* Returns the buffer of a leaf page, locked for reading. */
static Buffer
lock_leaf(Leaf *leaf, Relation index)
{
	Buffer		buffer = recent_buffer_read(index, leaf->block, &leaf->buffer);

	_bt_lockbuf(index, buffer, BT_READ);
	_bt_checkpage(index, buffer);
	return buffer;
}

/*
 * Returns which of a leaf page's "count" entries, from 0, has a key if keys are spread
 * evenly.
 */
static int
guess_position(const LeafMap *map, int leaf, KeyPrefix key, int count)
{
	const KeyPrefix *low = &map->low[leaf];

	if (leaf == 0 || leaf + 1 == map->num)
		return count / 2;
	/* Pages that moved while the map was read may be in another order. */
	if (key_prefix_less(key, low[0]) || !key_prefix_less(key, low[1]))
		return count;
	return key_prefix_distance(low[0], key) / key_prefix_distance(low[0], low[1]) * count;
}

/* Returns the first offset of first .. last with the key or a higher one, or last + 1. */
static OffsetNumber
lower_bound(const LeafMap *map, Relation index, Page page, KeyPrefix key,
			int first, int last, int guess)
{
	int			end = last + 1;

	for (int i = 0; first < end; i++)
	{
		int			middle = i < GUESSES ? Min(Max(guess, first), end - 1) : (first + end) / 2;

		if (key_prefix_less(key_at(map, index, page, middle), key))
		{
			first = middle + 1;
			guess = middle + (1 << i);
		}
		else
		{
			end = middle;
			guess = middle - (1 << i);
		}
	}
	return first;
}

/* Reads the places in a page's entries with a key's prefix, from an offset on. */
static int
read_places(const LeafMap *map, Relation index, Page page, KeyPrefix key,
			OffsetNumber offset, OffsetNumber last, ItemPointerData *places)
{
	int			num = 0;

	for (; offset <= last && num < LEAF_MAP_MAX_PLACES; offset++)
	{
		ItemId		id = PageGetItemId(page, offset);
		IndexTuple	entry = (IndexTuple) PageGetItem(page, id);
		bool		several = BTreeTupleIsPosting(entry);
		int			count = several ? BTreeTupleGetNPosting(entry) : 1;

		if (!key_prefix_equal(key_at(map, index, page, offset), key))
			break;
		for (int i = 0; i < count && num < LEAF_MAP_MAX_PLACES && !ItemIdIsDead(id); i++)
			places[num++] = several ? *BTreeTupleGetPostingN(entry, i) : entry->t_tid;
	}
	return num;
}

/* Is the index so large that its leaf pages are worth prefetching? */
bool
leaf_map_is_worth_prefetch(const LeafMap *map)
{
	return map->num >= MIN_AHEAD;
}

static int
entries_of_new_leaf(const LeafMap *map)
{
	return BLCKSZ * BTREE_DEFAULT_FILLFACTOR / 100 / (map->entry_size + sizeof(ItemIdData));
}

/*
 * Prefetches the memory for reading the leaf page that has a key: the page's head and
 * end, and the line pointer and entry of the key where a new index has them.
 */
void
leaf_map_prefetch(LeafMap *map, Relation index, KeyPrefix key)
{
	int			leaf;
	int			position;
	Buffer	   *buffer;
	char	   *end;

	if (map->num == 0)
		return;
	leaf = leaf_of(map, key);
	buffer = &map->leaf[leaf].buffer;
	if (!BufferIsValid(*buffer))
		*buffer = PrefetchBuffer(index, MAIN_FORKNUM, map->leaf[leaf].block).recent_buffer;
	if (!BufferIsValid(*buffer))
		return;

	position = guess_position(map, leaf, key, entries_of_new_leaf(map));
	end = (char *) BufferGetPage(*buffer) + BLCKSZ - sizeof(BTPageOpaqueData);
	recent_buffer_prefetch(*buffer, P_FIRSTKEY + position);
	cache_line_prefetch(end);
	cache_line_prefetch(end - (position + 1) * map->entry_size);
}

/*
 * Looks for places of rows with a key of this prefix.  Returns how many
 * it has found, at most LEAF_MAP_MAX_PLACES.  If it returns 0, there may be rows all the
 * same.
 */
int
leaf_map_places(LeafMap *map, Relation index, KeyPrefix key, ItemPointerData *places)
{
	int			num = 0;
	int			leaf;
	Buffer		buffer;

	if (map->num == 0)
	{
		missed(map, index);
		return 0;
	}
	leaf = leaf_of(map, key);
	buffer = lock_leaf(&map->leaf[leaf], index);
	for (int step = 0;; step++)
	{
		Page		page = BufferGetPage(buffer);
		BTPageOpaque opaque = BTPageGetOpaque(page);
		OffsetNumber first = P_FIRSTDATAKEY(opaque);
		OffsetNumber last = PageGetMaxOffsetNumber(page);
		OffsetNumber offset;

		if (!P_ISLEAF(opaque) || P_IGNORE(opaque))
			break;
		offset = lower_bound(map, index, page, key, first, last,
							 first + guess_position(map, leaf, key, last - first + 1));
		num = read_places(map, index, page, key, offset, last, places);
		if (offset <= last || P_RIGHTMOST(opaque) || step > 0)
			break;
		buffer = _bt_relandgetbuf(index, buffer, opaque->btpo_next, BT_READ);
	}
	_bt_relbuf(index, buffer);
	if (num == 0)
		missed(map, index);
	else
		pgstat_count_index_scan(index);
	return num;
}
