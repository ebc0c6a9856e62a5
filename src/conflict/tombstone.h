/*
 * tombstone.h
 *	  Remembers which rows were deleted, and when.
 */
#ifndef WEFT_TOMBSTONE_H
#define WEFT_TOMBSTONE_H

#include "conflict/conflict_types.h"
#include "utils/uuid.h"

extern bool tombstone_find(Target *target, TupleTableSlot *key, RowVersion *version);
extern void tombstone_write(Target *target, TupleTableSlot *key, const RowVersion *version);
extern void tombstone_check_stored(Target *target, TupleTableSlot *row);
extern bool tombstone_find_hash(Relation rel, pg_uuid_t *hash, bool uncommitted,
								RowVersion *version);
extern void tombstone_write_hash(Relation rel, pg_uuid_t hash, const RowVersion *version);
extern bool tombstone_add_times(int limit);

#endif							/* WEFT_TOMBSTONE_H */
