/*
 * unique_index.h
 *	  Unique indexes of a table, except its key's, and the values that rows have in them.
 */
#ifndef WEFT_UNIQUE_INDEX_H
#define WEFT_UNIQUE_INDEX_H

#include "nodes/bitmapset.h"
#include "nodes/execnodes.h"
#include "utils/relcache.h"
#include "utils/uuid.h"

extern bool unique_index_is_checked(Relation index, Oid key_index);
extern bool unique_index_hash(Relation rel, Relation index, IndexInfo *info, EState *estate,
							  TupleTableSlot *row, pg_uuid_t *result);
extern Bitmapset *conflict_unique_columns(Relation rel);

#endif							/* WEFT_UNIQUE_INDEX_H */
