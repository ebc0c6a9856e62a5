/*
 * concurrent_index.h
 *	  Which index is there already when CREATE INDEX CONCURRENTLY is executed.
 */
#ifndef WEFT_CONCURRENT_INDEX_H
#define WEFT_CONCURRENT_INDEX_H

#include "nodes/nodes.h"

extern Oid	concurrent_index_table(Node *statement);
extern bool concurrent_index_must_be_plain(Node *statement);
extern Oid	concurrent_index_leftover(Node *statement, Oid made);
extern void concurrent_index_drop(Oid index);
extern bool concurrent_index_exists(Node *statement);

#endif							/* WEFT_CONCURRENT_INDEX_H */
