/*
 * progress.h
 *	  The tables that are being copied, in shared memory.
 *
 * While "pid" is not zero, an entry belongs to a process that copies one table after
 * another: a table synchronization worker, or the worker of a node that joins a group.
 * Then the entry stays, because of its last error, until its table is copied again or
 * another table needs its place.
 */
#ifndef WEFT_COPY_PROGRESS_H
#define WEFT_COPY_PROGRESS_H

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/spin.h"

/* May helpers take part in the next copy of a table? */
typedef enum CopyVerdict
{
	COPY_ALLOWED,
	COPY_UNSAFE,				/* no: it failed because of something that
								 * helpers may not do */
	COPY_UNINDEXED,				/* no: its indexes could not be built */
} CopyVerdict;

typedef enum CopyPhase
{
	COPY_DELETING,				/* the old rows, before they are copied again */
	COPY_COPYING,
	COPY_INDEXING,
	COPY_DONE,
	COPY_FAILED,
} CopyPhase;

#define COPY_ERROR_LEN 256

typedef struct CopyProgress
{
	/* Only the entry's owner writes these, under the lock of all entries. */
	Oid			dbid;			/* InvalidOid while the entry is free */
	Oid			subid;			/* InvalidOid if not for a subscription */
	Oid			relid;
	int			pid;			/* zero once the owner has ended */
	int			reserved;		/* helpers that weft.max_copy_workers counts */
	TimestampTz started_at;
	CopyVerdict verdict;
	bool		alone;			/* one process must copy it, in the next
								 * attempt, too */
	char		last_error[COPY_ERROR_LEN];

	/* The rest is read and written without a lock. */
	pg_atomic_uint32 phase;		/* a CopyPhase */
	pg_atomic_uint32 helpers;	/* that are copying now */
	pg_atomic_uint32 helpers_used;	/* that have copied something */
	pg_atomic_uint32 indexes;	/* to be built */
	pg_atomic_uint32 indexes_done;
	pg_atomic_uint64 rows;
	pg_atomic_uint64 bytes;		/* as received from the publisher */
	pg_atomic_uint64 table_bytes;	/* size of the table there */
	pg_atomic_uint64 blocks;	/* of the publisher's table or largest
								 * partition */
	pg_atomic_uint64 blocks_done;
	pg_atomic_uint64 copied_at; /* TimestampTz; zero while rows are copied */
} CopyProgress;

extern void copy_progress_request(void);
extern void copy_progress_startup(void);

extern CopyProgress *copy_progress_claim(Oid subid, Oid relid);
extern int	copy_progress_reserve(CopyProgress *entry, int helpers);
extern void copy_progress_release_helpers(CopyProgress *entry);
extern void copy_progress_failed(CopyProgress *entry, const ErrorData *error);
extern void copy_progress_set_alone(CopyProgress *entry);
extern CopyVerdict copy_progress_verdict(Oid subid, Oid relid);
extern int	copy_progress_index(const CopyProgress *entry);
extern CopyProgress *copy_progress_get(int index);
extern int	copy_progress_read(CopyProgress **entries);
extern double copy_progress_fraction(const CopyProgress *entry);
extern void copy_progress_leave_slot(void);
extern uint32 copy_progress_slots_left(void);

#endif							/* WEFT_COPY_PROGRESS_H */
