/*
 * order.h
 *	  In what order a writer applies the changes that it has taken.
 */
#ifndef WEFT_ORDER_H
#define WEFT_ORDER_H

#include "ring/ring.h"

typedef enum OrderResult
{
	ORDER_APPLY,				/* apply the change now */
	ORDER_DEFERRED,				/* it is kept, and applied later on */
	ORDER_TOO_EARLY,			/* somebody needs our locks: roll back */
} OrderResult;

extern void order_begin(void);
extern bool order_pending(void);
extern bool order_settle(void);
extern OrderResult order_change(const RingRecordHeader *header, const char *payload,
								bool whole);

#endif							/* WEFT_ORDER_H */
