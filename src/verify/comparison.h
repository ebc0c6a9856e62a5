/*
 * comparison.h
 *	  What is stored of a comparison: the tables weft.comparison, weft.comparison_table and
 *	  weft.difference.
 */
#ifndef WEFT_VERIFY_COMPARISON_H
#define WEFT_VERIFY_COMPARISON_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "nodes/pg_list.h"

/* A comparison, as its caller wants it.  Fixed once it is registered. */
typedef struct Comparison
{
	int64		id;
	Oid			subid;
	char	   *subname;
	Oid			owner;			/* of the subscription */
	List	   *requested;		/* OIDs of tables; NIL means all */
	int			jobs;
	int64		max_rows_per_second;	/* zero means no limit */
	int			max_differences;	/* of each table */
} Comparison;

/* What is found out about a table, as it is stored after each cut. */
typedef struct TableResult
{
	const char *name;			/* quoted */
	Oid			relid;			/* or InvalidOid */
	const char *status;			/* as in weft.comparison_table */
	const char *reason;			/* or NULL */
	int64		publisher_rows;
	int64		local_rows;
	int64		differences;
	bool		complete;
	int			cuts;
	XLogRecPtr	first_lsn;
	XLogRecPtr	last_lsn;
	TimestampTz started_at;		/* or zero */
	TimestampTz ended_at;		/* or zero */
} TableResult;

/* One row of weft.difference.  Pointers may be NULL. */
typedef struct Difference
{
	Oid			relid;
	const char *kind;
	int64		row_count;
	const char *key;			/* jsonb, as text */
	const char *publisher_row;	/* jsonb, as text */
	const char *local_row;
	const char *local_origin;
	TimestampTz local_commit_time;	/* zero if unknown */
	XLogRecPtr	publisher_lsn;
} Difference;

/*
 * All of these need an SPI connection and a transaction, and run their statements as the owner
 * of the extension.
 */
extern void comparison_register(Comparison *comparison);
extern void comparison_load(int64 id, Comparison *comparison);
extern void comparison_reset(int64 id);
extern List *comparison_done_tables(int64 id);
extern void comparison_put_table(int64 id, const TableResult *result);
extern void comparison_forget_differences(int64 id, Oid relid);
extern void comparison_put_difference(int64 id, const Difference *difference);
extern void comparison_put_cut(int64 id, XLogRecPtr lsn, double duration);
extern void comparison_finish(int64 id);

#endif							/* WEFT_VERIFY_COMPARISON_H */
