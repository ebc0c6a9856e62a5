/*
 * dependency.h
 *	  Which earlier transaction has touched the same row.
 */
#ifndef WEFT_DEPENDENCY_H
#define WEFT_DEPENDENCY_H

#include "receive/relations.h"
#include "wire.h"

typedef struct Dependency
{
	uint64		seq;			/* the newest transaction that a change
								 * depends on, or 0 */
	uint16		flags;			/* RING_ROW_AGAIN, RING_SEVERAL, RING_IN_PLACE */
} Dependency;

extern void dependency_reset(void);
extern Dependency dependency_of_change(LeaderRelation *relation, WireChange *change,
									   uint64 seq, const char **problem);

#endif							/* WEFT_DEPENDENCY_H */
