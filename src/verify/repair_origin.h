/*
 * repair_origin.h
 *	  The replication origin under which rows are repaired: the subscription's own.
 */
#ifndef WEFT_VERIFY_REPAIR_ORIGIN_H
#define WEFT_VERIFY_REPAIR_ORIGIN_H

#include "catalog/pg_subscription.h"

extern void repair_origin_init(const Subscription *subscription);
extern void repair_origin_use(void);
extern void repair_origin_clear(void);

#endif							/* WEFT_VERIFY_REPAIR_ORIGIN_H */
