/*
 * gate_status.h
 *	  What is known of a gate (gate.c).
 */
#ifndef WEFT_GATE_STATUS_H
#define WEFT_GATE_STATUS_H

#include "datatype/timestamp.h"
#include "storage/procnumber.h"

#define GATE_COUNT 16
#define GATE_TABLES 1024

typedef enum GateState
{
	GATE_FREE,
	GATE_WAITING,				/* for another gate of the same database */
	GATE_ACTIVE,
	GATE_ENDING,				/* nobody passes any more */
} GateState;

typedef enum GateTableState
{
	TABLE_WANTED,				/* the gate worker waits for its lock */
	TABLE_HELD,					/* it has the lock; writers of members pass */
	TABLE_WITHDRAWN,			/* it has gone back to SHARE UPDATE EXCLUSIVE;
								 * those that have passed pass */
	TABLE_GIVING,				/* it is handing the lock over */
	TABLE_GIVEN,				/* who executes a schema change has it */
} GateTableState;

typedef struct GateTable
{
	Oid			relid;
	GateTableState state;

	/* All members have applied all rows without the schema change. */
	bool		confirmed;

	/* The request that it belongs to; see GateStatus. */
	int			request;

	/* On the requester's node: its transaction had locked the table before. */
	bool		own;
} GateTable;

/* What others may know of a gate. */
typedef struct GateStatus
{
	int64		lock;			/* the same on all members */
	NameData	requester;		/* node */
	Oid			dbid;
	GateState	state;
	bool		confirmed;		/* the gate does not depend on the requester's
								 * connection */
	bool		durable;		/* nor on this server not crashing */
	uint32		round;			/* increases when the gate was open for a
								 * moment */
	uint64		ticket;			/* order of those that wait */
	int			timeout;		/* milliseconds */

	/*
	 * The requester's transaction may lock more tables.  Each time that it
	 * has locked some on all members, the number of its next request
	 * increases.
	 */
	int			request;
	int			worker_pid;		/* zero if it is not running */
	ProcNumber	worker;
	ProcNumber	taker;			/* who wants the locks, or has them */
	int64		taker_lock;		/* whose schema change that is */
	bool		offered;		/* the worker has given up what excludes the
								 * taker */
	bool		taken;			/* the taker has locks on all tables */
	TimestampTz since;
	int			num_tables;
	GateTable	tables[GATE_TABLES];
} GateStatus;

#endif							/* WEFT_GATE_STATUS_H */
