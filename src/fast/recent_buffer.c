/*
 * recent_buffer.c
 *	  The fast path: pinning pages without looking up their buffers.
 *
 * Looking up the buffer of a page takes several dependent reads of memory.  A page that
 * was read before is most likely still in the same buffer, and the server can then pin it
 * there.
 *
 * Such a pin does not raise the usage count by which the server decides what to evict.
 * Therefore only pages that have been used several times lately are pinned this way;
 * others are read as usual.
 */
#include "postgres.h"

#include "compat.h"
#include "fast/cache_line.h"
#include "fast/recent_buffer.h"
#include "pgstat.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

/* A page counts as used if its buffer's usage count is at least this. */
#define MIN_USAGE 2

static bool
is_used(Buffer buffer)
{
	return compat_buffer_usage(GetBufferDescriptor(buffer - 1)) >= MIN_USAGE;
}

/*
 * Reads a block, and pins its buffer.  *recent is the buffer that it was last seen in,
 * or InvalidBuffer; it is set to the buffer that it is in.
 */
Buffer
recent_buffer_read(Relation rel, BlockNumber block, Buffer *recent)
{
	if (BufferIsValid(*recent) && is_used(*recent) &&
		ReadRecentBuffer(rel->rd_locator, MAIN_FORKNUM, block, *recent))
	{
		pgstat_count_buffer_read(rel);
		pgstat_count_buffer_hit(rel);
	}
	else
		*recent = ReadBuffer(rel, block);
	return *recent;
}

/* Prefetches the memory for pinning and locking a buffer, and finding an item on its page. */
void
recent_buffer_prefetch(Buffer buffer, OffsetNumber offset)
{
	Page		page = BufferGetPage(buffer);

	cache_line_prefetch(GetBufferDescriptor(buffer - 1));
	cache_line_prefetch(page);
	cache_line_prefetch(PageGetItemId(page, offset));
}
