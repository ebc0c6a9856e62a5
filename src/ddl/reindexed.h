/*
 * reindexed.h
 *	  REINDEX that makes invalid indexes valid.
 */
#ifndef WEFT_REINDEXED_H
#define WEFT_REINDEXED_H

#include "nodes/parsenodes.h"

extern List *reindexed_before(const ReindexStmt *statement);
extern List *reindexed_after(List *before);
extern IndexStmt *reindexed_create(Oid index, const ReindexStmt *statement);

#endif							/* WEFT_REINDEXED_H */
