/*
 * decision.h
 *	  Decides conflicts, once all earlier transactions are committed.
 */
#ifndef WEFT_DECISION_H
#define WEFT_DECISION_H

#include "conflict/conflict_types.h"
#include "conflict/resolver.h"
#include "conflict_kind.h"

extern bool decision_wait_turn(void);
extern bool decision_make(Target *target, ConflictKind kind, TupleTableSlot *key,
						  const RowVersion *local, ConflictResolver *resolver);
extern void decision_warn_incomplete(Target *target);

#endif							/* WEFT_DECISION_H */
