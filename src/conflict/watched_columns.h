/*
 * watched_columns.h
 *	  Columns that can bring a row into conflict with other rows.
 */
#ifndef WEFT_WATCHED_COLUMNS_H
#define WEFT_WATCHED_COLUMNS_H

#include "nodes/bitmapset.h"
#include "utils/relcache.h"

extern Bitmapset *conflict_watched_columns(Relation rel);

#endif							/* WEFT_WATCHED_COLUMNS_H */
