/*
 * session.h
 *	  The transaction that a writer applies, for the detection of conflicts.
 */
#ifndef WEFT_SESSION_H
#define WEFT_SESSION_H

#include "conflict/conflict_types.h"
#include "conflict_kind.h"
#include "shmem.h"

/* The transaction that is being applied. */
typedef struct ConflictSession
{
	SubscriptionShared *shared;
	bool		(*wait_oldest) (void);	/* false: somebody needs our locks */
	RowVersion	version;
	TransactionId remote_xid;
	XLogRecPtr	lsn;
	bool		final;			/* conflicts may be decided */
	bool		applying;		/* a change, and not rolled back since */
	uint32		met[NUM_CONFLICT_KINDS];	/* in this attempt */
} ConflictSession;

extern ConflictSession conflict_session;

extern void conflict_init(SubscriptionShared *shared, bool (*wait_oldest) (void));
extern void conflict_attempt(void);
extern void conflict_begin(TimestampTz commit_time, TransactionId xid, XLogRecPtr lsn);
extern void conflict_committed(void);
extern bool conflict_may_retry(int sqlerrcode);

#endif							/* WEFT_SESSION_H */
