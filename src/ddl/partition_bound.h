/*
 * partition_bound.h
 *	  Bounds of partitions that are not the same on every server.
 */
#ifndef WEFT_PARTITION_BOUND_H
#define WEFT_PARTITION_BOUND_H

#include "nodes/parsenodes.h"

extern bool partition_bound_varies(PartitionBoundSpec *bound, Oid parent, const char *source);

#endif							/* WEFT_PARTITION_BOUND_H */
