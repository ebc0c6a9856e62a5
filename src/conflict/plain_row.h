/*
 * plain_row.h
 *	  Rows that the fast path inserts and deletes where conflicts are detected.
 */
#ifndef WEFT_PLAIN_ROW_H
#define WEFT_PLAIN_ROW_H

#include "executor/tuptable.h"
#include "utils/relcache.h"

extern bool conflict_was_deleted(Relation rel, TupleTableSlot *row, bool uncommitted);
extern void conflict_remember_delete(Relation rel, TupleTableSlot *row);

#endif							/* WEFT_PLAIN_ROW_H */
