/*
 * key_order.h
 *	  The fast path: whose changes may be applied in another order than they came in.
 */
#ifndef WEFT_KEY_ORDER_H
#define WEFT_KEY_ORDER_H

#include "fast/fast_relation.h"

extern bool key_order_describe(FastRelation *relation, Relation rel);

#endif							/* WEFT_KEY_ORDER_H */
