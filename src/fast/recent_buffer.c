/*
 * recent_buffer.c
 *	  The fast path: pins pages without looking for their buffers.
 *
 * To find out in which buffer a page is takes some reads of memory one after the
 * other.  A page that was read before is most likely still where it was, and the
 * server can pin it there if so.
 *
 * That does not count as use of the page, by which the server decides what to keep
 * in memory.  So only pages that have been used some times lately are pinned that
 * way: others are read as usual.
 */
#include "postgres.h"

#include "fast/fast.h"
#include "pgstat.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

/* A page counts as being used if its buffer's usage count is as high. */
#define MIN_USAGE 2

static bool
is_used(Buffer buffer)
{
	uint32		state = pg_atomic_read_u32(&GetBufferDescriptor(buffer - 1)->state);

	return BUF_STATE_GET_USAGECOUNT(state) >= MIN_USAGE;
}

/*
 * Reads a block, and pins its buffer.  *recent is the buffer in which it was last,
 * or InvalidBuffer; it is set to where it is.
 */
Buffer
fast_read_buffer(Relation rel, BlockNumber block, Buffer *recent)
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

/*
 * Asks for the memory that it takes to pin and lock a buffer, and to find an item on
 * its page.
 */
void
fast_ask_for_page(Buffer buffer, OffsetNumber offset)
{
	Page		page = BufferGetPage(buffer);

	fast_ask_for(GetBufferDescriptor(buffer - 1));
	fast_ask_for(page);
	fast_ask_for(PageGetItemId(page, offset));
}
