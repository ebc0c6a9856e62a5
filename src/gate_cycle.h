/*
 * gate_cycle.h
 *	  Sessions in the way of a schema change that they wait for.
 */
#ifndef WEFT_GATE_CYCLE_H
#define WEFT_GATE_CYCLE_H

#include "gate_status.h"
#include "storage/lockdefs.h"

extern void gate_cycle_break(const GateStatus *status);
extern void gate_cycle_clear(LOCKMODE mode);
extern bool gate_cycle_release(const GateStatus *status);

#endif							/* WEFT_GATE_CYCLE_H */
