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
	int			limit;			/* of differences or candidates of each table
								 * that are searched */
	char	   *node;			/* the other member of the group: then what
								 * differs at a cut is a candidate; else NULL */
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
	int64		candidates;		/* only if members of a group are compared */
	bool		complete;
	int			cuts;
	XLogRecPtr	first_lsn;
	XLogRecPtr	last_lsn;
	TimestampTz started_at;		/* or zero */
	TimestampTz ended_at;		/* or zero */
} TableResult;

/* One row of weft.difference or weft.comparison_candidate.  Pointers may be NULL. */
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
	int64		row_hash;		/* only of a candidate without a key */
} Difference;

/* What identifies a row of weft.comparison_candidate. */
typedef struct StoredCandidate
{
	int64		number;
	Oid			relid;
	const char *key;			/* jsonb, as text; NULL if keyless */
	const char *row_hash;		/* a number, as text; NULL if there is a key */
	XLogRecPtr	publisher_lsn;
} StoredCandidate;

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
extern void comparison_put_candidate(int64 id, const Difference *candidate);
extern List *comparison_candidates(int64 id);
extern void comparison_forget_candidate(int64 id, int64 number);
extern void comparison_count_looks(int64 id, int looks);
extern void comparison_put_cut(int64 id, XLogRecPtr lsn, double duration);
extern void comparison_finish(int64 id);

#endif							/* WEFT_VERIFY_COMPARISON_H */
