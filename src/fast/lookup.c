/*
 * lookup.c
 *	  The fast path: finds rows by the index of the replica identity.
 *
 * Descending an index costs more than looking at a row.  A row that is changed
 * often is found faster by its place: where the index said it was the last time.  For
 * other rows, prefetch.c has often recorded what a leaf page of the index says; if not,
 * the leaf page is asked first (leaf_map.c).  The chain of row versions that
 * begins at a remembered place may have ended, or the place may belong to another row by
 * now.  Therefore the key is compared, and a row that is not found there is looked for
 * by the index.  With the dirty snapshot, no older version of a row can be taken for it.
 *
 * Places belong to the table's storage.  If the storage is replaced or truncated, then the
 * writer learns of it before, or just after, it opens the table, and forgets the
 * places.  In the moment between, a place may be behind the end of the file; the error
 * that follows is one of the fast path, and the transaction is applied again
 * without it.
 *
 * A statement that changes many rows usually does so in the order in which they
 * are stored, here as on the publisher.  Therefore, if several rows have been found one
 * behind the other, then the next row is first looked for behind the last one, with the
 * same check of its key.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "compat.h"
#include "fast/lookup.h"
#include "fast/recent_buffer.h"

/* How many places are remembered, those of all tables together; a power of two. */
#define NUM_PLACES 4096

typedef struct Place
{
	LogicalRepRelId relid;
	uint32		key_hash;
	ItemPointerData tid;		/* invalid: nothing is known */
	Buffer		buffer;			/* that its page was last in, or InvalidBuffer */
} Place;

/* After this many rows one behind the other, the next one is looked for there. */
#define SOME_IN_A_ROW 3

/* A global since tables share it: it fits into the processor's caches only once. */
static Place places[NUM_PLACES];

/* Forgets where the rows of a relation are. */
void
lookup_forget_places(FastRelation *relation)
{
	for (int i = 0; i < NUM_PLACES; i++)
		if (places[i].relid == relation->remote_relid)
			ItemPointerSetInvalid(&places[i].tid);
}

static Place *
place_of(uint32 key_hash)
{
	return &places[key_hash & (NUM_PLACES - 1)];
}

/* Is a place known where the row is, or was? */
bool
lookup_place_known(FastRelation *relation, uint32 key_hash)
{
	const Place *place = place_of(key_hash);

	return ItemPointerIsValid(&place->tid) && place->relid == relation->remote_relid &&
		place->key_hash == key_hash;
}

/* Records where a row is likely to be. */
void
lookup_remember_place(FastRelation *relation, uint32 key_hash, ItemPointerData tid, Buffer buffer)
{
	*place_of(key_hash) = (Place)
	{
		relation->remote_relid, key_hash, tid, buffer
	};
}

/* Gets ready to look for rows of an open table, whose index may have been dropped. */
static void
begin_search(FastRelation *relation)
{
	InitDirtySnapshot(relation->dirty);
	for (int i = 0; i < relation->info->ri_NumIndices; i++)
	{
		Relation	index = relation->info->ri_IndexRelationDescs[i];

		if (RelationGetRelid(index) == relation->index)
			relation->key_index = index;
	}
}

/* Does a row have the key that is looked for? */
bool
lookup_has_key(FastRelation *relation, TupleTableSlot *row)
{
	for (int i = 0; i < relation->num_keys; i++)
	{
		ScanKey		key = &relation->keys[i];
		bool		isnull;
		Datum		value = slot_getattr(row, relation->key_columns[i] + 1, &isnull);

		if (isnull || !DatumGetBool(FunctionCall2Coll(&key->sk_func, key->sk_collation,
													  value, key->sk_argument)))
			return false;
	}
	return true;
}

/*
 * Looks for the visible version of a row whose chain of versions begins at a place.
 * Returns false if none is visible; *all_dead then tells whether none is visible to
 * anybody.
 *
 * The page is pruned only if the row's next version would not fit into it, since pruning
 * costs more than everything else here.
 */
static bool
find_version(FastRelation *relation, ItemPointerData first, Buffer *recent, bool *all_dead)
{
	Relation	rel = relation->rel;
	BufferHeapTupleTableSlot *slot = (BufferHeapTupleTableSlot *) relation->found;
	HeapTuple	tuple = &slot->base.tupdata;
	Buffer		buffer = recent_buffer_read(rel, ItemPointerGetBlockNumber(&first), recent);
	bool		pruned = false;

	for (;;)
	{
		ItemPointerData tid = first;
		bool		found;
		bool		fits;

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		found = heap_hot_search_buffer(&tid, rel, buffer, &relation->dirty, tuple,
									   all_dead, true);
		fits = found &&
			PageGetHeapFreeSpace(BufferGetPage(buffer)) >= MAXALIGN(tuple->t_len);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		if (!found)
		{
			ReleaseBuffer(buffer);
			return false;
		}
		if (fits || pruned)
			break;
		compat_prune_page(rel, buffer);
		pruned = true;
	}
	relation->row_length = MAXALIGN(tuple->t_len);
	ExecStorePinnedBufferHeapTuple(tuple, relation->found, buffer);
	return true;
}

/*
 * Looks for the row at a place where it may be.  If it is not there, *all_dead tells
 * whether no version of the row at that place is visible to anybody.
 */
static bool
find_at_place(FastRelation *relation, ItemPointerData tid, Buffer *recent, bool *all_dead)
{
	if (!find_version(relation, tid, recent, all_dead))
		return false;
	if (lookup_has_key(relation, relation->found))
		return true;
	ExecClearTuple(relation->found);
	*all_dead = false;
	return false;
}

/* Looks for the row behind the last one: next to it, or first on the next block. */
static bool
find_behind_last(FastRelation *relation)
{
	BlockNumber block = ItemPointerGetBlockNumberNoCheck(&relation->last);
	OffsetNumber offset = ItemPointerGetOffsetNumberNoCheck(&relation->last);
	ItemPointerData tid;
	Buffer		buffer = InvalidBuffer;
	bool		all_dead;
	bool		found;

	if (relation->in_a_row < SOME_IN_A_ROW)
		return false;
	ItemPointerSet(&tid, block, OffsetNumberNext(offset));
	found = find_at_place(relation, tid, &buffer, &all_dead);
	if (!found && block + 1 < RelationGetNumberOfBlocks(relation->rel))
	{
		ItemPointerSet(&tid, block + 1, FirstOffsetNumber);
		found = find_at_place(relation, tid, &buffer, &all_dead);
	}
	if (found)
		relation->last = tid;
	else
		relation->in_a_row = 0;
	return found;
}

/* Records where the index has found a row. */
static void
remember_last(FastRelation *relation, ItemPointerData tid)
{
	BlockNumber block = ItemPointerGetBlockNumberNoCheck(&relation->last);
	OffsetNumber offset = ItemPointerGetOffsetNumberNoCheck(&relation->last);
	bool		behind;

	if (ItemPointerGetBlockNumber(&tid) == block)
		behind = ItemPointerGetOffsetNumber(&tid) == offset + 1;
	else
		behind = ItemPointerGetBlockNumber(&tid) == block + 1 &&
			ItemPointerGetOffsetNumber(&tid) == FirstOffsetNumber;
	relation->in_a_row = behind ? relation->in_a_row + 1 : 0;
	relation->last = tid;
}

/*
 * Looks for the row where its leaf page, by the map, says that it is.  An entry of a dead
 * row is left to the index's own code, which marks it as dead.
 */
static bool
find_by_leaf(FastRelation *relation)
{
	ItemPointerData tids[LEAF_MAP_MAX_PLACES];
	int			num = 0;
	Buffer		buffer = InvalidBuffer;
	bool		all_dead = false;

	if (relation->leaf_map)
		num = leaf_map_places(relation->leaf_map, relation->key_index,
							  key_prefix_of_keys(leaf_map_form(relation->leaf_map),
												 relation->keys),
							  tids);
	for (int i = 0; i < num && !all_dead; i++)
	{
		if (find_at_place(relation, tids[i], &buffer, &all_dead))
		{
			lookup_remember_place(relation, relation->key_hash, tids[i], buffer);
			return true;
		}
	}
	return false;
}

static bool
find_by_index(FastRelation *relation)
{
	IndexScanDesc scan;
	ItemPointer tid;

	if (relation->scan == NULL)
		relation->scan = compat_index_beginscan(relation->rel, relation->key_index,
												&relation->dirty, relation->num_keys);
	scan = relation->scan;
	index_rescan(scan, relation->keys, relation->num_keys, NULL, 0);
	while ((tid = index_getnext_tid(scan, ForwardScanDirection)) != NULL)
	{
		ItemPointerData place = *tid;
		Buffer		buffer = InvalidBuffer;

		if (find_version(relation, place, &buffer, &scan->kill_prior_tuple))
		{
			lookup_remember_place(relation, relation->key_hash, place, buffer);
			return true;
		}
	}
	return false;
}

/*
 * Looks for the row with the key in the relation's scan keys, whose hash is
 * key_hash.  Returns false if there is none.  Otherwise it is in the slot "found", and
 * the dirty snapshot tells which open transactions are modifying it.
 */
bool
lookup_row(FastRelation *relation)
{
	Place	   *place = place_of(relation->key_hash);
	MemoryContext old;
	bool		all_dead;
	bool		result;

	if (relation->key_index == NULL)
		begin_search(relation);
	if (relation->key_index == NULL)
		return false;

	if (lookup_place_known(relation, relation->key_hash) &&
		find_at_place(relation, place->tid, &place->buffer, &all_dead))
		return true;
	if (find_behind_last(relation))
		return true;

	/* The index's code keeps what it allocates here. */
	old = MemoryContextSwitchTo(relation->estate->es_query_cxt);
	result = find_by_leaf(relation) || find_by_index(relation);
	MemoryContextSwitchTo(old);
	if (result)
		remember_last(relation, place->tid);
	return result;
}
