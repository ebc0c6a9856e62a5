/*
 * local_row.h
 *	  Finds, stores and deletes local rows.
 */
#ifndef WEFT_LOCAL_ROW_H
#define WEFT_LOCAL_ROW_H

#include "conflict/conflict_types.h"

extern TupleTableSlot *local_row_find(Target *target, TupleTableSlot *search);
extern void local_row_insert(Target *target, TupleTableSlot *row);
extern void local_row_update(Target *target, TupleTableSlot *local, TupleTableSlot *row);
extern void local_row_remove(Target *target, TupleTableSlot *local, const RowVersion *version);
extern void local_row_remove_missing(Target *target, TupleTableSlot *key);
extern void local_row_remove_all(Target *target, List *rows, TupleTableSlot *own);

#endif							/* WEFT_LOCAL_ROW_H */
