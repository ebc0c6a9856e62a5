/*
 * gate_shared.h
 *	  The gates of this server, in shared memory.
 */
#ifndef WEFT_GATE_SHARED_H
#define WEFT_GATE_SHARED_H

#include "gate_status.h"
#include "nodes/pg_list.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"

typedef struct Gate
{
	GateStatus	status;

	/* Transactions of writers with rows under a lock of mode ROW SHARE. */
	pg_atomic_uint32 passing;

	/* How many times its worker has ended without having removed it. */
	pg_atomic_uint32 failures;
} Gate;

typedef struct Gates
{
	LWLock	   *lock;			/* protects everything but the atomics */
	pg_atomic_uint32 count;		/* of gates that are not free */
	uint64		next_ticket;
	ConditionVariable changed;
	Gate		entries[GATE_COUNT];
} Gates;

/* Has a gate become active? */
typedef enum GateTurn
{
	GATE_NOT_YET,
	GATE_NOW,
	GATE_BEFORE,				/* it was active already */
} GateTurn;

/* For gate.c, which takes the lock. */
extern Gates *gates;
extern bool gate_none(void);
extern Gate *gate_find(int64 lock);
extern Gate *gate_find_active(void);
extern GateTable *gate_find_table(Gate *gate, Oid relid);
extern void gate_wake(ProcNumber number);
extern void gate_nap(long milliseconds);

extern void gate_request(void);
extern void gate_startup(void);
extern GateTurn gate_open(int64 lock, const char *requester, int request, List *tables, int timeout);
extern void gate_add_own(int64 lock, List *tables);
extern bool gate_wait_closed(int64 lock, int timeout, uint32 *round);
extern bool gate_confirm(int64 lock, uint32 round, const char *local_node);
extern void gate_end(int64 lock);
extern bool gate_is_open(int64 lock);
extern bool gate_any(void);
extern List *gate_list(void);
extern bool gate_attach(int64 lock);
extern void gate_detach(void);
extern bool gate_look(int64 lock, GateStatus *status);
extern void gate_set_tables(int64 lock, GateTableState from, GateTableState to, Oid relid);
extern bool gate_withdraw(int64 lock, bool all);
extern bool gate_finish_withdrawal(int64 lock);
extern void gate_offer(int64 lock);
extern int	gate_passing(int64 lock);
extern void gate_remove(int64 lock);

#endif							/* WEFT_GATE_SHARED_H */
