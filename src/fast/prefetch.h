/*
 * prefetch.h
 *	  The fast path: fetches into the processor's caches what the next changes need.
 */
#ifndef WEFT_PREFETCH_H
#define WEFT_PREFETCH_H

#include "row_change.h"

extern void prefetch_forget(void);
extern bool prefetch_advance(uint64 position);
extern bool prefetch_add(const RowChange *change, uint64 position);
extern void prefetch_next(void);

#endif							/* WEFT_PREFETCH_H */
