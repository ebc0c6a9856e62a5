/*
 * history.h
 *	  weft.conflict_history: what was decided, and against what.
 */
#ifndef WEFT_HISTORY_H
#define WEFT_HISTORY_H

#include "conflict/conflict_types.h"
#include "conflict/resolver.h"
#include "conflict_kind.h"

extern Datum history_key(Target *target, TupleTableSlot *key);
extern void history_record(Target *target, ConflictKind kind, ConflictResolver resolver,
						   bool applied, TupleTableSlot *key, const LocalRow *local,
						   TupleTableSlot *remote_row);

#endif							/* WEFT_HISTORY_H */
