/*
 * store.h
 *	  Stores and removes rows of Weft's own tables, below the level of SQL.
 */
#ifndef WEFT_STORE_H
#define WEFT_STORE_H

#include "access/htup.h"
#include "datatype/timestamp.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

/* May a row be removed? */
typedef bool (*StoreMayRemove) (Relation rel, HeapTuple tuple, void *arg);

extern void store_row(Oid relid, const Datum *values, const bool *nulls);
extern void store_row_decoded(Oid relid, const Datum *values, const bool *nulls);
extern void store_remove(Relation rel, HeapTuple tuple, Snapshot snapshot);
extern int	store_remove_old(Oid relid, Oid index, TimestampTz before, int limit,
							 StoreMayRemove may_remove, void *arg);
extern int	store_remove_low(Oid relid, Oid index, int64 keep, int limit);

#endif							/* WEFT_STORE_H */
