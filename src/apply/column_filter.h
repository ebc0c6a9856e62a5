/*
 * column_filter.h
 *	  Removes columns that were dropped here from rows that still carry them.
 */
#ifndef WEFT_COLUMN_FILTER_H
#define WEFT_COLUMN_FILTER_H

#include "nodes/bitmapset.h"
#include "row_change.h"

extern void column_filter_begin(void);
extern bool column_filter_plan(const char *message, int length, const Bitmapset *dropped);
extern const char *column_filter_relation(LogicalRepRelId relid, const char *message,
										  int *length);
extern List *column_filter_to_check(void);
extern void column_filter_end(LogicalRepRelId relid);
extern bool column_filter_has(LogicalRepRelId relid);
extern RowChange column_filter_read(const char *message, int length);

#endif							/* WEFT_COLUMN_FILTER_H */
