/*
 * difference.h
 *	  Finds the rows that differ in parts of a table whose sums differ.
 */
#ifndef WEFT_VERIFY_DIFFERENCE_H
#define WEFT_VERIFY_DIFFERENCE_H

#include "access/xlogdefs.h"
#include "replication/walreceiver.h"
#include "verify/comparison.h"
#include "verify/row_hash.h"

/* Where and how far to search. */
typedef struct DifferenceSearch
{
	int64		comparison;
	Oid			relid;			/* the table here */
	const RowHash *hash;
	const char *conditions[2];	/* by CompareSide, of the parts; or NULL */
	WalReceiverConn *conn;		/* in a transaction with the publisher's
								 * snapshot */
	XLogRecPtr	lsn;			/* of the cut */
	int			limit;			/* of differences to be stored */
	bool		candidates;		/* store them as candidates */

	/* Out: */
	int			found;
	bool		limited;		/* more differences exist */
	int			sqlstate;		/* of an error that concerns the table; else
								 * zero */
	char	   *message;
} DifferenceSearch;

/* Tells which version of a row this is, in a query of published_table_rows(). */
#define DIFFERENCE_VERSION "pg_catalog.concat(t.xmin, ' ', t.ctid, ' ', t.tableoid)"

extern void difference_find_writer(const char *version, Difference *difference);
extern bool difference_search(DifferenceSearch *search);

#endif							/* WEFT_VERIFY_DIFFERENCE_H */
