/*
 * unique_conflict.h
 *	  Finds the local rows that share a unique value with a row to be stored.
 */
#ifndef WEFT_UNIQUE_CONFLICT_H
#define WEFT_UNIQUE_CONFLICT_H

#include "conflict/conflict_types.h"

extern List *unique_conflicts(Target *target, TupleTableSlot *row, TupleTableSlot *own);

#endif							/* WEFT_UNIQUE_CONFLICT_H */
