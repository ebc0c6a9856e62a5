/*
 * deleted_counter.h
 *	  Counters of rows that are deleted.
 */
#ifndef WEFT_DELETED_COUNTER_H
#define WEFT_DELETED_COUNTER_H

#include "conflict/conflict_types.h"

extern void deleted_counter_keep(Relation rel, Oid key_index, Bitmapset *counters,
								 TupleTableSlot *row);
extern void deleted_counter_forget(Target *target, TupleTableSlot *row);
extern void deleted_counter_lock(Target *target, TupleTableSlot *key);
extern void deleted_counter_add(Target *target, TupleTableSlot *key, const Remote *remote);
extern void deleted_counter_take(Target *target, TupleTableSlot *key, TupleTableSlot *row,
								 const Remote *remote);

#endif							/* WEFT_DELETED_COUNTER_H */
