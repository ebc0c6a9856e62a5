/*
 * member_repair.h
 *	  Repairs rows that differ between two members of a group.
 */
#ifndef WEFT_VERIFY_MEMBER_REPAIR_H
#define WEFT_VERIFY_MEMBER_REPAIR_H

#include "replication/walreceiver.h"
#include "verify/repair_item.h"

typedef struct MemberRepair
{
	WalReceiverConn *conn;		/* to the other member, in the snapshot of the
								 * cut */
	int64		comparison;
	RowTable   *table;
	RepairWinner winner;
	bool		dry_run;
	int			max_wait;		/* ms that this node's clock may be behind a
								 * row's time */
	MemoryContext context;		/* of the reasons of items */
} MemberRepair;

extern bool member_repair_all(const MemberRepair *repair, List *items, int *node);

#endif							/* WEFT_VERIFY_MEMBER_REPAIR_H */
