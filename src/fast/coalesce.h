/*
 * coalesce.h
 *	  The fast path: updates that a later one of the same row supersedes.
 */
#ifndef WEFT_COALESCE_H
#define WEFT_COALESCE_H

#include "fast/fast_relation.h"
#include "row_change.h"

extern bool coalesce_describe(FastRelation *relation, Relation rel);
extern bool coalesce_is_possible(const RowChange *change, uint32 *row);
extern bool coalesce_updates(const RowChange *later, const RowChange *earlier);

#endif							/* WEFT_COALESCE_H */
