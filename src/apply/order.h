/*
 * order.h
 *	  In what order a writer applies the changes that it has taken.
 */
#ifndef WEFT_ORDER_H
#define WEFT_ORDER_H

#include "ring/ring.h"
#include "row_change.h"

typedef enum OrderResult
{
	ORDER_APPLY,				/* apply the change now */
	ORDER_DEFERRED,				/* it is kept, and applied later */
	ORDER_TOO_EARLY,			/* an earlier transaction needs this writer's
								 * locks: roll back */
} OrderResult;

extern void order_begin(uint64 first, uint64 last);
extern bool order_pending(void);
extern bool order_settle(void);
extern OrderResult order_change(const RingCursor *cursor, const RingRecordHeader *header,
								const RowChange *change);

#endif							/* WEFT_ORDER_H */
