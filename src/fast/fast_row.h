/*
 * fast_row.h
 *	  The fast path: inserting, updating and deleting a row of an open table.
 */
#ifndef WEFT_FAST_ROW_H
#define WEFT_FAST_ROW_H

#include "fast/fast_relation.h"
#include "row_change.h"

extern bool fast_row_apply(FastRelation *relation, const RowChange *change, bool final);

#endif							/* WEFT_FAST_ROW_H */
