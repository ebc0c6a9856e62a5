/*
 * leaf_map.h
 *	  The fast path: finds a row's place without descending the index.
 */
#ifndef WEFT_LEAF_MAP_H
#define WEFT_LEAF_MAP_H

#include "fast/key_prefix.h"
#include "storage/itemptr.h"
#include "utils/relcache.h"

/* At most this many places of rows with one key are tried without the index. */
#define LEAF_MAP_MAX_PLACES 4

typedef struct LeafMap LeafMap;

extern LeafMap *leaf_map_describe(Relation index);
extern void leaf_map_forget(LeafMap *map);
extern const KeyPrefixForm *leaf_map_form(const LeafMap *map);
extern int	leaf_map_places(LeafMap *map, Relation index, KeyPrefix key, ItemPointerData *places);
extern bool leaf_map_is_worth_prefetch(const LeafMap *map);
extern void leaf_map_prefetch(LeafMap *map, Relation index, KeyPrefix key);

#endif							/* WEFT_LEAF_MAP_H */
