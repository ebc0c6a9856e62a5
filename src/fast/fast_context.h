/*
 * fast_context.h
 *	  What the fast path needs to know of the writer that it works for.
 *
 * fast/ includes nothing of apply/, conflict/ or ring/.  The writer passes this struct to
 * fast_init(), with functions of those folders that are called once for a table, or
 * only where conflicts are detected.
 */
#ifndef WEFT_FAST_CONTEXT_H
#define WEFT_FAST_CONTEXT_H

#include "executor/tuptable.h"
#include "nodes/bitmapset.h"
#include "shmem.h"
#include "utils/relcache.h"
#include "wire.h"

typedef struct FastContext
{
	SubscriptionShared *subscription;	/* its row counters */
	bool		detect_conflicts;

	/*
	 * Reads the newest RELATION message of a relation; false if there is
	 * none.
	 */
	bool		(*find_remote) (LogicalRepRelId relid, WireRelation *remote);

	/* Is the transaction the oldest, and is nothing of it deferred? */
	bool		(*everything_before_is_there) (void);

	/* Called only if detect_conflicts. */
	bool		(*has_delta_columns) (Oid relid);
	Bitmapset  *(*watched_columns) (Relation rel);
	bool		(*origin_differs) (TupleTableSlot *row);
	bool		(*was_deleted) (Relation rel, TupleTableSlot *row, bool uncommitted);
	void		(*remember_delete) (Relation rel, TupleTableSlot *row);
} FastContext;

/*
 * One for each writer process, set once.  A global because functions for a single column
 * ask it, and invalidation callbacks have no other way to it.
 */
extern FastContext fast_context;

#endif							/* WEFT_FAST_CONTEXT_H */
