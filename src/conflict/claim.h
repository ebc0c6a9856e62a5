/*
 * claim.h
 *	  Unique values that rows hold or have held.
 */
#ifndef WEFT_CLAIM_H
#define WEFT_CLAIM_H

#include "conflict/conflict_types.h"

extern void claim_release(Target *target, TupleTableSlot *local, TupleTableSlot *row);
extern void claim_release_tuple(Relation rel, Oid key_index, TupleTableSlot *old,
								TupleTableSlot *new);
extern void claim_write(Target *target, TupleTableSlot *row, TupleTableSlot *local);
extern bool claim_find(Target *target, TupleTableSlot *row, TupleTableSlot *local,
					   bool uncommitted, LocalRow *result);
extern void claim_check_stored(Target *target, TupleTableSlot *row, TupleTableSlot *local);

extern bool claim_is_newer(Relation rel, Oid key_index, TupleTableSlot *row,
						   TupleTableSlot *old, const RowVersion *version);

#endif							/* WEFT_CLAIM_H */
