/*
 * put_row.h
 *	  Stores a row that the publisher has, against the rows that are in its way.
 */
#ifndef WEFT_PUT_ROW_H
#define WEFT_PUT_ROW_H

#include "conflict/conflict_types.h"
#include "conflict_kind.h"

extern void put_row(Target *target, TupleTableSlot *row, TupleTableSlot *own, bool was_missing,
					ConflictKind kind);
extern void put_row_lose_values(Target *target, TupleTableSlot *row, TupleTableSlot *local,
								ConflictKind kind);

#endif							/* WEFT_PUT_ROW_H */
