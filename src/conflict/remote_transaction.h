/*
 * remote_transaction.h
 *	  The remote transaction that a writer is applying, as conflict/ sees it.
 */
#ifndef WEFT_REMOTE_TRANSACTION_H
#define WEFT_REMOTE_TRANSACTION_H

#include "conflict/conflict_types.h"
#include "conflict_kind.h"
#include "shmem.h"

typedef struct RemoteTransaction
{
	SubscriptionShared *shared;

	/* Returns false if another process needs the writer's locks meanwhile. */
	bool		(*wait_oldest) (void);

	RowVersion	version;		/* that its changes have */
	TransactionId xid;			/* on the publisher */
	XLogRecPtr	lsn;			/* of its end, on the publisher */
	bool		final;			/* it is the oldest: conflicts may be decided */
	bool		applying;		/* a change has begun and not ended; stays set
								 * if it fails */
	uint32		met[NUM_CONFLICT_KINDS];	/* conflicts, in this attempt */

	/* Retries after unique violations: how many, of which transaction. */
	int			retries;
	XLogRecPtr	retried_lsn;
} RemoteTransaction;

/*
 * A global, because a writer applies one transaction at a time, and almost every module
 * of conflict/ compares versions with that transaction's.
 */
extern RemoteTransaction remote_transaction;

extern void conflict_init(SubscriptionShared *shared, bool (*wait_oldest) (void));
extern void conflict_attempt(void);
extern void conflict_begin(TimestampTz commit_time, TransactionId xid, XLogRecPtr lsn);
extern void conflict_import(const RowVersion *version);
extern void conflict_resume(TimestampTz commit_time, TransactionId xid, XLogRecPtr lsn);
extern void conflict_committed(void);
extern bool conflict_may_retry(int sqlerrcode);

#endif							/* WEFT_REMOTE_TRANSACTION_H */
