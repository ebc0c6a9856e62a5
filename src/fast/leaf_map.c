/*
 * leaf_map.c
 *	  The fast path: finds a row's place without going down the index.
 *
 * Of the time of a writer that is behind, more went into going down a btree than
 * into anything else.  Where the key is one integer, it need not: a list of the
 * lowest key of each leaf page, read from the level above, tells which leaf page
 * would have it, and two neighbours of that list, about where on the page.
 *
 * The list is a guess.  Pages are split and emptied behind its back, and nothing
 * that is read here is relied on: what comes out is places where the row may be, and
 * who looks there compares the key, and asks the index where that fails.  So all
 * that this file must not do is to take another page for a leaf page, or to read
 * beyond its end.
 *
 * A page that was split has given its higher keys to its right neighbour, so that
 * is looked at, too.  The list is read anew after so many guesses in vain that it
 * pays; the first time that is when so many rows were looked for.
 *
 * What is kept belongs to the index's storage, as other places do (lookup.c).
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "fast/fast.h"
#include "catalog/pg_opfamily_d.h"
#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

/* The list is read after so many misses, and one more for so many pages of the index. */
#define MIN_MISSES 64
#define PAGES_PER_MISS 16

/*
 * No list for an index with more pages, nor for one with which there would be more in
 * all lists of this writer; each page takes 16 bytes.
 */
#define MAX_PAGES (256 * 1024)
#define MAX_PAGES_IN_ALL (1024 * 1024)

/* Room for so many pages at first. */
#define FIRST_ROOM 1024

/* With fewer leaf pages, they are in the processor's caches anyway. */
#define MIN_AHEAD 64

/* An entry with one integer, and how many of them a page has when it is new. */
#define SIZE_OF_ENTRY MAXALIGN(sizeof(IndexTupleData) + sizeof(int64))
#define ENTRIES_OF_NEW_LEAF \
	((int) (BLCKSZ * BTREE_DEFAULT_FILLFACTOR / 100 / (SIZE_OF_ENTRY + sizeof(ItemIdData))))

/* So often the right position on a page is looked for near the guess. */
#define GUESSES 3

typedef struct Leaf
{
	BlockNumber block;
	Buffer		buffer;			/* that it was in, or InvalidBuffer */
} Leaf;

/* The leaf pages, in the order of their keys. */
struct FastLeaves
{
	MemoryContext context;
	int			key_length;		/* in bytes */
	int			misses;			/* rows not found by the list since it was
								 * read */
	int			num;
	int			room;
	int64	   *low;			/* no page has a lower key */
	Leaf	   *leaf;
};

static int	room_in_all = 0;

/*
 * Returns what is to be known of the leaf pages of an index, in the current memory
 * context, or NULL if the keys are not fit for that.
 */
FastLeaves *
fast_describe_leaves(Relation index)
{
	FastLeaves *leaves;
	Oid			type = index->rd_opcintype[0];

	if (IndexRelationGetNumberOfKeyAttributes(index) != 1 ||
		index->rd_opfamily[0] != INTEGER_BTREE_FAM_OID || index->rd_indoption[0] != 0 ||
		(type != INT2OID && type != INT4OID && type != INT8OID))
		return NULL;
	leaves = palloc0(sizeof(FastLeaves));
	leaves->context = CurrentMemoryContext;
	leaves->key_length = TupleDescAttr(RelationGetDescr(index), 0)->attlen;
	return leaves;
}

/* Its memory context is going to be reset. */
void
fast_forget_leaves(FastLeaves *leaves)
{
	room_in_all -= leaves->room;
}

/* Returns a key as the number that it is. */
int64
fast_leaf_key(const FastLeaves *leaves, Datum value)
{
	return fast_integer(value, leaves->key_length);
}

/* The key of an entry of a page.  It is never NULL, being a row's identity. */
static int64
key_at(const FastLeaves *leaves, Relation index, Page page, OffsetNumber offset)
{
	IndexTuple	entry = (IndexTuple) PageGetItem(page, PageGetItemId(page, offset));
	bool		isnull;

	return fast_leaf_key(leaves, index_getattr(entry, 1, RelationGetDescr(index), &isnull));
}

static void
make_room(FastLeaves *leaves)
{
	if (leaves->room == 0)
	{
		leaves->low = MemoryContextAlloc(leaves->context, FIRST_ROOM * sizeof(int64));
		leaves->leaf = MemoryContextAlloc(leaves->context, FIRST_ROOM * sizeof(Leaf));
		leaves->room = FIRST_ROOM;
		room_in_all += FIRST_ROOM;
	}
	else if (leaves->num == leaves->room)
	{
		leaves->low = repalloc(leaves->low, 2 * leaves->room * sizeof(int64));
		leaves->leaf = repalloc(leaves->leaf, 2 * leaves->room * sizeof(Leaf));
		room_in_all += leaves->room;
		leaves->room *= 2;
	}
}

/*
 * Adds the leaf pages that a page of the level above them names; "low" is the lowest
 * key that it can have.
 */
static void
add_leaves(FastLeaves *leaves, Relation index, Page page, int64 low)
{
	OffsetNumber first = P_FIRSTDATAKEY(BTPageGetOpaque(page));
	OffsetNumber last = PageGetMaxOffsetNumber(page);

	for (OffsetNumber offset = first; offset <= last; offset++)
	{
		IndexTuple	entry = (IndexTuple) PageGetItem(page, PageGetItemId(page, offset));

		make_room(leaves);
		/* The first entry has no key of its own. */
		leaves->low[leaves->num] = offset == first ? low : key_at(leaves, index, page, offset);
		leaves->leaf[leaves->num] = (Leaf)
		{
			BTreeTupleGetDownLink(entry), InvalidBuffer
		};
		leaves->num++;
	}
}

/* Reads the list, from left to right. */
static void
read_leaves(FastLeaves *leaves, Relation index)
{
	Buffer		buffer;
	BlockNumber pages = RelationGetNumberOfBlocks(index);
	int64		low = PG_INT64_MIN;

	leaves->misses = leaves->num = 0;
	if (pages > MAX_PAGES || room_in_all - leaves->room + pages > MAX_PAGES_IN_ALL ||
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
			if (opaque->btpo_level != 1 || leaves->num > MAX_PAGES)
				break;
			add_leaves(leaves, index, page, low);
			if (!P_RIGHTMOST(opaque))
				low = key_at(leaves, index, page, P_HIKEY);
		}
		if (P_RIGHTMOST(opaque))
			break;
		_bt_relbuf(index, buffer);
		CHECK_FOR_INTERRUPTS();
		buffer = _bt_getbuf(index, next, BT_READ);
	}
	_bt_relbuf(index, buffer);
	elog(DEBUG1, "the lowest keys of %d leaf pages of index \"%s\" are known",
		 leaves->num, RelationGetRelationName(index));
}

/* A row was not found by the list.  Reads that, or reads it anew, if it is time to. */
static void
missed(FastLeaves *leaves, Relation index)
{
	leaves->misses++;
	if (leaves->misses % MIN_MISSES == 0 &&
		leaves->misses >= MIN_MISSES + RelationGetNumberOfBlocks(index) / PAGES_PER_MISS)
		read_leaves(leaves, index);
}

/* Returns which page has a key, if any has: the last one that begins before it. */
static int
leaf_of(const FastLeaves *leaves, int64 key)
{
	int			first = 0;
	int			count = leaves->num;

	while (count > 1)
	{
		int			half = count / 2;

		first += leaves->low[first + half] <= key ? half : 0;
		count -= half;
	}
	return first;
}

/* Returns the buffer with a leaf page, locked for reading. */
static Buffer
lock_leaf(Leaf *leaf, Relation index)
{
	Buffer		buffer = fast_read_buffer(index, leaf->block, &leaf->buffer);

	_bt_lockbuf(index, buffer, BT_READ);
	_bt_checkpage(index, buffer);
	return buffer;
}

/*
 * Returns which of a leaf page's "count" entries, counted from zero, has a key if
 * keys are spread evenly.
 */
static int
guess_position(const FastLeaves *leaves, int leaf, int64 key, int count)
{
	double		low = leaves->low[leaf];
	double		high;

	if (leaf == 0 || leaf + 1 == leaves->num)
		return count / 2;
	high = leaves->low[leaf + 1];
	return key < high ? (key - low) / (high - low) * count : count;
}

/* Returns the first offset of first .. last with the key or a higher one, or last + 1. */
static OffsetNumber
lower_bound(const FastLeaves *leaves, Relation index, Page page, int64 key,
			int first, int last, int guess)
{
	int			end = last + 1;

	for (int i = 0; first < end; i++)
	{
		int			middle = i < GUESSES ? Min(Max(guess, first), end - 1) : (first + end) / 2;

		if (key_at(leaves, index, page, middle) < key)
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

/* Reads the places of a page's entries with a key, from an offset on. */
static int
read_places(const FastLeaves *leaves, Relation index, Page page, int64 key,
			OffsetNumber offset, OffsetNumber last, ItemPointerData *places)
{
	int			num = 0;

	for (; offset <= last && num < FAST_MAX_PLACES; offset++)
	{
		ItemId		id = PageGetItemId(page, offset);
		IndexTuple	entry = (IndexTuple) PageGetItem(page, id);
		bool		several = BTreeTupleIsPosting(entry);
		int			count = several ? BTreeTupleGetNPosting(entry) : 1;

		if (key_at(leaves, index, page, offset) != key)
			break;
		for (int i = 0; i < count && num < FAST_MAX_PLACES && !ItemIdIsDead(id); i++)
			places[num++] = several ? *BTreeTupleGetPostingN(entry, i) : entry->t_tid;
	}
	return num;
}

/* Is it worth while to look ahead for the leaf pages of such a table? */
bool
fast_leaves_worth(const FastLeaves *leaves)
{
	return leaves->num >= MIN_AHEAD;
}

/*
 * Asks for the memory that it takes to read the leaf page that has a key: the page's
 * head and end, and the line pointer and entry of the key as a new index has them.
 */
void
fast_ask_for_leaf(FastLeaves *leaves, Relation index, int64 key)
{
	int			leaf;
	int			position;
	Buffer	   *buffer;
	char	   *end;

	if (leaves->num == 0)
		return;
	leaf = leaf_of(leaves, key);
	buffer = &leaves->leaf[leaf].buffer;
	if (!BufferIsValid(*buffer))
		*buffer = PrefetchBuffer(index, MAIN_FORKNUM, leaves->leaf[leaf].block).recent_buffer;
	if (!BufferIsValid(*buffer))
		return;

	position = guess_position(leaves, leaf, key, ENTRIES_OF_NEW_LEAF);
	end = (char *) BufferGetPage(*buffer) + BLCKSZ - sizeof(BTPageOpaqueData);
	fast_ask_for_page(*buffer, P_FIRSTKEY + position);
	fast_ask_for(end);
	fast_ask_for(end - (position + 1) * SIZE_OF_ENTRY);
}

/*
 * Looks for places of rows with a key, the index's first column.  Returns how many
 * there may be, at most FAST_MAX_PLACES; 0 says nothing.
 */
int
fast_places_by_leaf(FastLeaves *leaves, Relation index, int64 key, ItemPointerData *places)
{
	int			num = 0;
	int			leaf;
	Buffer		buffer;

	if (leaves->num == 0)
	{
		missed(leaves, index);
		return 0;
	}
	leaf = leaf_of(leaves, key);
	buffer = lock_leaf(&leaves->leaf[leaf], index);
	for (int step = 0;; step++)
	{
		Page		page = BufferGetPage(buffer);
		BTPageOpaque opaque = BTPageGetOpaque(page);
		OffsetNumber first = P_FIRSTDATAKEY(opaque);
		OffsetNumber last = PageGetMaxOffsetNumber(page);
		OffsetNumber offset;

		if (!P_ISLEAF(opaque) || P_IGNORE(opaque))
			break;
		offset = lower_bound(leaves, index, page, key, first, last,
							 first + guess_position(leaves, leaf, key, last - first + 1));
		num = read_places(leaves, index, page, key, offset, last, places);
		if (offset <= last || P_RIGHTMOST(opaque) || step > 0)
			break;
		buffer = _bt_relandgetbuf(index, buffer, opaque->btpo_next, BT_READ);
	}
	_bt_relbuf(index, buffer);
	if (num == 0)
		missed(leaves, index);
	else
		pgstat_count_index_scan(index);
	return num;
}
