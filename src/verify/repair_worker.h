/*
 * repair_worker.h
 *	  The background worker that repairs the differences of a comparison.
 */
#ifndef WEFT_VERIFY_REPAIR_WORKER_H
#define WEFT_VERIFY_REPAIR_WORKER_H

#include "ring/failure.h"
#include "verify/repair_item.h"

/* What the session that called weft.repair() shares with its worker, in dynamic shared memory. */
typedef struct RepairShared
{
	/* Set by the session. */
	Oid			dbid;
	Oid			userid;			/* owner of the subscription */
	Oid			subid;
	int64		comparison;
	int			batch_size;		/* rows that are written in one transaction */
	int			lock_timeout;	/* ms */
	int			max_pause;		/* ms for which apply may stand at a cut */
	bool		nodes;			/* as in RepairJob */
	RepairWinner winner;
	bool		dry_run;

	/* Set by the worker. */
	pg_atomic_uint32 finished;	/* everything has been tried */
	Failure		failure;		/* why not */
} RepairShared;

extern PGDLLEXPORT void repair_worker_main(Datum main_arg);

#endif							/* WEFT_VERIFY_REPAIR_WORKER_H */
