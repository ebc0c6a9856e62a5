/*
 * indexes.h
 *	  Indexes of a table that is filled.
 */
#ifndef WEFT_COPY_INDEXES_H
#define WEFT_COPY_INDEXES_H

#include "copy/progress.h"
#include "nodes/pg_list.h"
#include "utils/rel.h"

extern List *copy_indexes_suspend(Relation rel);
extern void copy_indexes_build(Relation rel, List *indexes, CopyProgress *progress);

#endif							/* WEFT_COPY_INDEXES_H */
