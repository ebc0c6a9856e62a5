/*
 * row_key.h
 *	  Hashes of the keys of rows.
 */
#ifndef WEFT_ROW_KEY_H
#define WEFT_ROW_KEY_H

#include "conflict/conflict_types.h"
#include "utils/uuid.h"

extern void row_key_add(uint64 *hash, Oid type, Oid collation, Datum value, bool isnull);
extern pg_uuid_t row_key_hash(Relation rel, Oid key_index, TupleTableSlot *row);
extern bool row_key_same(Target *target, TupleTableSlot *a, TupleTableSlot *b);

#endif							/* WEFT_ROW_KEY_H */
