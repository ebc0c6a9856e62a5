/*
 * recent_buffer.h
 *	  The fast path: pinning pages without looking up their buffers.
 */
#ifndef WEFT_RECENT_BUFFER_H
#define WEFT_RECENT_BUFFER_H

#include "storage/block.h"
#include "storage/buf.h"
#include "storage/off.h"
#include "utils/relcache.h"

extern Buffer recent_buffer_read(Relation rel, BlockNumber block, Buffer *recent);
extern void recent_buffer_prefetch(Buffer buffer, OffsetNumber offset);

#endif							/* WEFT_RECENT_BUFFER_H */
