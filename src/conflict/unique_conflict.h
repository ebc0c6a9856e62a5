/*
 * unique_conflict.h
 *	  Local rows with which a row to be stored would share a value that is unique.
 */
#ifndef WEFT_UNIQUE_CONFLICT_H
#define WEFT_UNIQUE_CONFLICT_H

#include "conflict/conflict_types.h"

extern List *unique_conflicts(Target *target, TupleTableSlot *row, TupleTableSlot *own);

#endif							/* WEFT_UNIQUE_CONFLICT_H */
