/*
 * gate_cycle.h
 *	  Sessions in the way of a schema change that they wait for.
 */
#ifndef WEFT_GATE_CYCLE_H
#define WEFT_GATE_CYCLE_H

#include "gate_status.h"
#include "storage/lockdefs.h"

/* Who waits for a gate worker, apart from sessions. */
typedef enum GateWaiter
{
	WAITER_NONE,
	WAITER_ANY,					/* a writer, whose rows may come after the
								 * schema change */
	WAITER_BEFORE,				/* a writer whose rows come, or may come,
								 * before it */
} GateWaiter;

extern void gate_cycle_break(const GateStatus *status);
extern void gate_cycle_clear(LOCKMODE mode);
extern GateWaiter gate_cycle_release(const GateStatus *status);

#endif							/* WEFT_GATE_CYCLE_H */
