/*
 * repair_origin.h
 *	  The replication origin, and the time, under which rows are repaired.
 */
#ifndef WEFT_VERIFY_REPAIR_ORIGIN_H
#define WEFT_VERIFY_REPAIR_ORIGIN_H

#include "catalog/pg_subscription.h"
#include "conflict/conflict_types.h"

extern void repair_origin_init(const Subscription *subscription);
extern void repair_origin_use(void);
extern bool repair_origin_use_version(RowVersion *version);
extern void repair_origin_resume(void);
extern void repair_origin_clear(void);
extern void repair_origin_create(int node);

#endif							/* WEFT_VERIFY_REPAIR_ORIGIN_H */
