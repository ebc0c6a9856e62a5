/*
 * repair_batch.h
 *	  Repairs a few rows of one table at a cut of their own.
 */
#ifndef WEFT_VERIFY_REPAIR_BATCH_H
#define WEFT_VERIFY_REPAIR_BATCH_H

#include "catalog/pg_subscription.h"
#include "nodes/pg_list.h"
#include "replication/walreceiver.h"
#include "verify/repair_item.h"

/* How far a batch has come; says what an error in it is about. */
typedef enum RepairStage
{
	REPAIR_PREPARING,			/* the subscription, the publisher */
	REPAIR_OPENING,				/* the table */
	REPAIR_WRITING,				/* its rows */
} RepairStage;

/* What repairs; fixed while it lasts. */
typedef struct RepairJob
{
	int64		comparison;
	Oid			subid;
	WalReceiverConn *conn;		/* to the publisher */
	int			max_pause;		/* ms for which apply may stand at a cut */
	bool		nodes;			/* two nodes of a group were compared */
	RepairWinner winner;		/* with "nodes": whose row is right */
	bool		dry_run;		/* with "nodes": nothing is written */
	RepairStage stage;			/* of the batch at hand */
} RepairJob;

/* How a batch has ended. */
typedef enum RepairEnd
{
	REPAIR_COMMITTED,			/* each item has an outcome, except those that
								 * did not fit */
	REPAIR_LOST,				/* apply went on: nothing has been written */
	REPAIR_UNSUITABLE,			/* the table cannot be compared any more */
	REPAIR_WITHOUT_ORIGIN,		/* nothing has been written: the node of the
								 * rows has no origin here yet */
} RepairEnd;

typedef struct RepairBatch
{
	Oid			relid;
	int64	   *differences;	/* of weft.difference */
	int			count;

	/* Set if it is committed; allocated in "context". */
	MemoryContext context;
	int			done;			/* items with an outcome, which are the first
								 * ones */
	int			num_blocked;
	int64	   *blocked;		/* differences that a unique value keeps from
								 * being repaired */
	char	   *reason;			/* if it is unsuitable */
	int			node;			/* if that has no origin */
} RepairBatch;

extern RepairEnd repair_batch(RepairJob *job, RepairBatch *batch);
extern void repair_batch_roll_back(RepairJob *job);

#endif							/* WEFT_VERIFY_REPAIR_BATCH_H */
