/*
 * fast_insert.h
 *	  The fast path: inserted rows are gathered, and stored together.
 */
#ifndef WEFT_FAST_INSERT_H
#define WEFT_FAST_INSERT_H

#include "fast/fast_relation.h"

extern TupleTableSlot *fast_insert_slot(FastRelation *relation);
extern void fast_insert_store(FastRelation *relation);

#endif							/* WEFT_FAST_INSERT_H */
