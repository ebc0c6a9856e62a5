/*
 * concurrent_order.h
 *	  Which schema changes must not overtake which others.
 */
#ifndef WEFT_CONCURRENT_ORDER_H
#define WEFT_CONCURRENT_ORDER_H

#include "ddl/concurrent_row.h"

extern bool concurrent_depends(const DdlMessage *later, const DdlMessage *earlier);
extern List *concurrent_before(const DdlMessage *later, List *rows);
extern ConcurrentRow *concurrent_dropped(const DdlMessage *later);
extern char *concurrent_given_up(const DdlMessage *later);

#endif							/* WEFT_CONCURRENT_ORDER_H */
