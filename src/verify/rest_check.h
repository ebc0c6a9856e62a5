/*
 * rest_check.h
 *	  Compares both sides of a subscription while nobody writes to its tables.
 */
#ifndef WEFT_VERIFY_REST_CHECK_H
#define WEFT_VERIFY_REST_CHECK_H

#include "verify/published_table.h"

/* A moment before a comparison, for rest_check_recent(). */
typedef struct RestCheckMark
{
	/*
	 * By CompareSide: every transaction with an older id had ended at that
	 * moment.  64 bits, with the epoch.
	 */
	uint64		oldest_xid[2];
	uint64		definitions;	/* hash of the definitions of all tables */
} RestCheckMark;

/* What a check has done. */
typedef struct RestCheckResult
{
	int			tables;
	int64		rows;			/* that were compared one by one, or all of
								 * them */
} RestCheckResult;

/*
 * All need a transaction with an SPI connection, "conn" of publisher_connect(), and fail with
 * a message for the user.  They read the tables here as the subscription's owner.
 *
 * rest_check_mark: to be called before the first cut of the comparison.
 *
 * rest_check_recent: fails unless both sides are equal, provided that the comparison has
 * found all tables of the subscription equal, each row at some cut since the mark.
 *
 * rest_check_all: fails unless all rows are equal.  The publications' row filters are not
 * applied: this is for the way back, which has none.
 */
extern void rest_check_mark(Subscription *subscription, WalReceiverConn *conn,
							RestCheckMark *mark);
extern void rest_check_recent(Subscription *subscription, WalReceiverConn *conn,
							  const RestCheckMark *mark, RestCheckResult *result);
extern void rest_check_all(Subscription *subscription, WalReceiverConn *conn,
						   RestCheckResult *result);

#endif							/* WEFT_VERIFY_REST_CHECK_H */
