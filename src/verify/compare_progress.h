/*
 * compare_progress.h
 *	  The comparisons that are running, in shared memory.
 */
#ifndef WEFT_VERIFY_COMPARE_PROGRESS_H
#define WEFT_VERIFY_COMPARE_PROGRESS_H

#include "datatype/timestamp.h"
#include "port/atomics.h"

/* One running comparison.  Processes of the comparison write the atomics. */
typedef struct CompareProgress
{
	int64		comparison;		/* zero while the entry is free */
	Oid			dbid;
	int			pid;			/* of the session that has called the
								 * procedure */
	pg_atomic_uint32 jobs;		/* processes that compare now */
	pg_atomic_uint64 rows;		/* read on the publisher */
	pg_atomic_uint64 rows_estimated;	/* of all tables together; zero if
										 * unknown */
	pg_atomic_uint64 snapshot_since;	/* a TimestampTz; zero without a
										 * snapshot */
} CompareProgress;

extern CompareProgress *compare_progress_claim(int64 comparison);
extern void compare_progress_release(CompareProgress *entry);
extern int	compare_progress_index(const CompareProgress *entry);
extern CompareProgress *compare_progress_get(int index);

#endif							/* WEFT_VERIFY_COMPARE_PROGRESS_H */
