/*
 * row_count.h
 *	  The fast path: counting rows, for weft.stat_relation.
 */
#ifndef WEFT_ROW_COUNT_H
#define WEFT_ROW_COUNT_H

#include "fast/fast_relation.h"

extern void row_count_begin(void);
extern void row_count_touch(FastRelation *relation);
extern void row_count_undo(void);
extern bool row_count_report(bool force);

#endif							/* WEFT_ROW_COUNT_H */
