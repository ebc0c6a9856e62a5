/*
 * delta.h
 *	  Columns that are counters (weft.set_delta_columns).
 */
#ifndef WEFT_DELTA_H
#define WEFT_DELTA_H

#include "conflict/conflict_types.h"

extern bool delta_to_numeric(Oid type, Datum value, Datum *result);
extern NullableDatum *delta_differences(Target *target, const Remote *remote);
extern void delta_set(Target *target, TupleTableSlot *row, int column, Datum value,
					  Datum difference);
extern void delta_merge(Target *target, TupleTableSlot *row, TupleTableSlot *local,
						const Remote *remote);

#endif							/* WEFT_DELTA_H */
