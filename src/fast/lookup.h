/*
 * lookup.h
 *	  The fast path: finds rows by the index of the replica identity.
 */
#ifndef WEFT_LOOKUP_H
#define WEFT_LOOKUP_H

#include "fast/fast_relation.h"
#include "storage/buf.h"
#include "storage/itemptr.h"

extern bool lookup_row(FastRelation *relation);
extern bool lookup_has_key(FastRelation *relation, TupleTableSlot *row);
extern void lookup_forget_places(FastRelation *relation);
extern bool lookup_place_known(FastRelation *relation, uint32 key_hash);
extern void lookup_remember_place(FastRelation *relation, uint32 key_hash, ItemPointerData tid,
								  Buffer buffer);

#endif							/* WEFT_LOOKUP_H */
