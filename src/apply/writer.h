/*
 * writer.h
 *	  A writer: the background worker that applies transactions.
 *
 * Shared by the files of apply/ only.
 */
#ifndef WEFT_WRITER_H
#define WEFT_WRITER_H

#include "compat.h"
#include "lib/stringinfo.h"
#include "replication/logicalproto.h"
#include "ring/broadcast.h"
#include "ring/ring.h"
#include "ring/wait.h"
#include "row_change.h"
#include "shmem.h"
#include "wire.h"

/* How an attempt to apply one or more transactions has ended. */
typedef enum AttemptResult
{
	ATTEMPT_COMMITTED,
	ATTEMPT_MISSPECULATED,
} AttemptResult;

typedef struct Writer
{
	int			number;
	SubscriptionShared *subscription;
	WriterShared *shared;
	Ring	   *ring;
	RingWaiter	waiter;
	RingCursor	cursor;
	BroadcastReader broadcast;
	StringInfoData message;		/* one that came in pieces, so far */

	/*
	 * The transaction at hand, and those that share its commit: from "first"
	 * on they have been applied, and it may go on up to "last".  Up to "end"
	 * they have been taken.
	 */
	uint64		first;
	uint64		seq;
	uint64		last;
	uint64		end;
	TransactionId remote_xid;
	XLogRecPtr	final_lsn;		/* on the publisher */

	/*
	 * In a stream writer: what it applies before its turn, or NULL.  "first"
	 * is higher than any seq then.
	 */
	StreamShared *stream;

	bool		detect_conflicts;	/* each transaction has a commit of its
									 * own */
	bool		careful;		/* take the general path only */
	bool		final;			/* was the oldest: an error is its own */
	bool		committed_to;	/* cannot be applied from its beginning again */
} Writer;

extern Writer writer;

/* writer.c */
pg_noreturn extern PGDLLEXPORT void writer_main(Datum main_arg);

/* transaction.c */
extern void transaction_init(void);
extern void transaction_apply(uint64 first, int count);
extern AttemptResult transaction_apply_early(AttemptResult (*attempt) (void));
extern void transaction_become_final(void);
extern XLogRecPtr transaction_commit_local(StreamShared *stream, XLogRecPtr end_lsn,
										   TimestampTz commit_time);
extern bool transaction_is_oldest(void);
extern bool transaction_wait_oldest(void);
extern bool transaction_wait_dependency(uint64 seq);

/* change.c */
extern void change_init(void);
extern void change_apply(const RowChange *change);
extern void change_relation(const char *message, int length);
extern bool change_find_relation(LogicalRepRelId relid, WireRelation *relation);
extern void change_own_relation(const char *message, int length);
extern void change_forget_own_relations(void);
extern bool change_in_progress(void);
extern void change_rest(void);
extern void change_repair(void);
extern void change_forget_conflicts(void);
extern void change_keep_conflicts(void);

/* yield.c */
extern bool yield_needed(void *arg);

#endif							/* WEFT_WRITER_H */
