/*
 * foreign_key.h
 *	  Rows that arrive after the row that they refer to has been deleted.
 */
#ifndef WEFT_FOREIGN_KEY_H
#define WEFT_FOREIGN_KEY_H

#include "conflict/conflict_types.h"

extern void foreign_key_check(Target *target, TupleTableSlot *row, TupleTableSlot *replaced);

#endif							/* WEFT_FOREIGN_KEY_H */
