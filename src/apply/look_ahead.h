/*
 * look_ahead.h
 *	  Showing the changes that come next to the fast path.
 */
#ifndef WEFT_LOOK_AHEAD_H
#define WEFT_LOOK_AHEAD_H

#include "ring/ring.h"

extern void look_ahead(const RingCursor *cursor, uint64 end, bool in_pieces);

#endif							/* WEFT_LOOK_AHEAD_H */
