/*
 * compare_cut.h
 *	  Compares tables at cuts, one after the other.
 */
#ifndef WEFT_VERIFY_COMPARE_CUT_H
#define WEFT_VERIFY_COMPARE_CUT_H

#include "verify/compare_progress.h"
#include "verify/compare_table.h"

/* A comparison that this session runs. */
typedef struct CompareState
{
	Comparison	comparison;
	Subscription *subscription;
	List	   *tables;			/* of CompareTable */
	CompareProgress *progress;
	CompareRate rate;
	bool		one_by_one;		/* one table at a cut, because of an error
								 * with some table */
	MemoryContext memory;		/* lives as long as the comparison */

	/*
	 * Connections to the publisher: with the snapshot of a cut, and without
	 * one.
	 */
	WalReceiverConn *conn;
	WalReceiverConn *control;
} CompareState;

extern void compare_cuts_run(CompareState *state);

#endif							/* WEFT_VERIFY_COMPARE_CUT_H */
