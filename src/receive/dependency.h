/*
 * dependency.h
 *	  Which earlier transaction has touched the same row.
 */
#ifndef WEFT_DEPENDENCY_H
#define WEFT_DEPENDENCY_H

#include "receive/relations.h"
#include "wire.h"

extern void dependency_reset(void);
extern uint64 dependency_of_change(LeaderRelation *relation, WireChange *change,
								   uint64 seq, const char **problem);

#endif							/* WEFT_DEPENDENCY_H */
