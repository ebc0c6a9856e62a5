/*
 * repair_item.h
 *	  Differences that are repaired: how they are read from weft.difference, and what becomes
 *	  of them there.
 */
#ifndef WEFT_VERIFY_REPAIR_ITEM_H
#define WEFT_VERIFY_REPAIR_ITEM_H

#include "access/xlogdefs.h"
#include "conflict/conflict_types.h"
#include "nodes/pg_list.h"
#include "utils/uuid.h"
#include "verify/row_table.h"

typedef enum RepairOutcome
{
	REPAIR_PENDING,				/* nothing has been decided yet */
	REPAIR_DONE,				/* the row has been written */
	REPAIR_VANISHED,			/* the row does not differ any more */
	REPAIR_BLOCKED,				/* a unique value is still held by another row */
	REPAIR_FAILED,				/* for another reason */
	REPAIR_KEPT,				/* this node has the row that wins, or none is
								 * known to */
	REPAIR_PLANNED,				/* a dry run: nothing has been written */
} RepairOutcome;

/* Which of two nodes has the right row. */
typedef enum RepairWinner
{
	WINNER_NEWER,				/* the one that wrote or deleted it later */
	WINNER_THERE,
	WINNER_HERE,
} RepairWinner;

/* One row of weft.difference. */
typedef struct RepairItem
{
	int64		difference;

	/*
	 * The key, or, in a table without one, the whole row; other columns are
	 * null.  NULL as a whole if it is not known.
	 */
	RowValues	identity;

	RowValues	publisher;		/* the row there, at the cut; NULL if there is
								 * none */
	int64		publisher_count;	/* how many; more than one only without a
									 * key */
	RepairOutcome outcome;
	char	   *reason;			/* if it has failed, is blocked, kept or
								 * planned */

	/* The rest is about nodes of a group (member_repair.c). */

	RowVersion	version;		/* of the row there, or of its delete; unknown
								 * unless read */
	bool		winner_there;	/* decided: the row there wins */

	/*
	 * The row that was found here when it was compared; NULL if there was
	 * none.
	 */
	RowValues	recorded;
	bool		recorded_whole; /* no value of it was cut */
	TimestampTz recorded_time;	/* when it had been written; 0 if unknown */
} RepairItem;

/* The differences of one table, in the order in which they are repaired. */
typedef struct RepairTable
{
	Oid			relid;
	int			count;
	int64	   *differences;
} RepairTable;

/* What was compared. */
typedef struct RepairSource
{
	Oid			subid;
	char	   *subname;
	Oid			owner;
	char	   *node;			/* the other node; NULL if the subscription
								 * was compared */
	char	   *local_node;		/* this node */
} RepairSource;

/* How many differences there are of each kind, at the end. */
typedef struct RepairSummary
{
	int64		repaired;
	int64		vanished;
	int64		kept;
	int64		failed;
	int64		pending;
} RepairSummary;

extern RepairSource repair_items_source(int64 comparison);
extern List *repair_items_tables(int64 comparison);
extern List *repair_items_read(int64 comparison, RowTable *table,
							   const int64 *differences, int count);
extern void repair_items_read_recorded(int64 comparison, RowTable *table, List *items);
extern bool repair_items_deleted_since(int64 comparison, Oid relid, const pg_uuid_t *key);
extern void repair_items_store(int64 comparison, List *items, XLogRecPtr lsn);
extern void repair_items_fail(int64 comparison, const int64 *differences, int count,
							  const char *reason);
extern RepairSummary repair_items_summary(int64 comparison);

#endif							/* WEFT_VERIFY_REPAIR_ITEM_H */
