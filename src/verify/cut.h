/*
 * cut.h
 *	  A cut: a moment at which a snapshot of the publisher and the state here contain exactly
 *	  the same transactions of a subscription.
 *
 * To compare:
 *
 *	 transaction with ISOLATION LEVEL REPEATABLE READ that has no snapshot yet
 *	 cut = cut_begin(subscription, &options);
 *	 PushActiveSnapshot(GetTransactionSnapshot());
 *	 if (!cut_release(cut)) -> the snapshot is not at the cut: roll back, begin anew
 *	 publisher_import(connection, subscription, cut_snapshot(cut)), as often as you like
 *	 cut_end(cut)		(or the end of the transaction)
 *
 * To write at the cut:
 *
 *	 cut = cut_begin(subscription, &options);		options.stand long enough
 *	 publisher_import(...), read there, write here
 *	 SET CONSTRAINTS ALL IMMEDIATE, so that nothing of the caller's is left to run
 *	 if (!cut_pin(cut)) -> apply has gone on: roll back, begin anew
 *	 commit			(which ends the cut, after the commit)
 *
 * Once cut_pin() has returned true, the leader does not go on before the transaction has
 * ended.  Nothing but the commit may come between.  Should the leader be terminated then, the next one may
 * go on before the commit; nothing is overwritten all the same, because every row
 * written here is locked until then.
 *
 * Only tables whose state is READY (r) are at the cut.  A TRUNCATE or a rewrite on the publisher after
 * the cut hides older rows from its snapshot: lock tables there with options.publisher_commands
 * ("LOCK TABLE ONLY a IN ACCESS SHARE MODE"), and here BEFORE cut_begin(), at the price that
 * the leader cannot stand, and cut_begin() fails, if it has a TRUNCATE to apply.
 *
 * An error, the end of the transaction, or the end of the process release a cut and close its
 * connections.  Its time-outs do so if the requester hangs.  A subtransaction does not.
 */
#ifndef WEFT_VERIFY_CUT_H
#define WEFT_VERIFY_CUT_H

#include "access/xlogdefs.h"
#include "catalog/pg_subscription.h"

typedef struct CutOptions
{
	int			timeout;		/* ms until cut_begin() fails; 0: 60 s */

	/*
	 * ms that the leader stands at most, from the moment when it stands, in
	 * which the caller must call cut_release() or cut_pin(); 0: 1 s.
	 */
	int			stand;

	/*
	 * Run on the publisher before each attempt, in the transaction that
	 * exports the snapshot, which is READ COMMITTED and READ ONLY; or NULL.
	 * Must not return rows.  Apply is not held meanwhile.
	 */
	const char *publisher_commands;
} CutOptions;

typedef struct Cut Cut;

/*
 * Returns when the leader stands at a cut.  Takes no transaction snapshot; may throw.  The
 * caller owns the subscription.  There can be one cut per process at a time.
 * Fails if the subscription is disabled, if the publisher is a standby or older
 * than 15, or after the time-out.
 */
extern Cut *cut_begin(const Subscription *subscription, const CutOptions *options);

/*
 * Lets the leader go on.  Returns true if it stood until now, so that
 * whatever was read here since cut_begin() is what the cut has.  The publisher's snapshot
 * remains until cut_end().
 */
extern bool cut_release(Cut *cut);

/* Does the leader still stand?  It may have gone on when this returns. */
extern bool cut_stands(const Cut *cut);

/*
 * Keeps the leader from going on until the transaction has ended; returns false if it has
 * gone on already.  See above.
 */
extern bool cut_pin(Cut *cut);

/* Releases the cut, and ends the publisher's snapshot. */
extern void cut_end(Cut *cut);

/* A position in the publisher's WAL behind everything that the cut contains. */
extern XLogRecPtr cut_lsn(const Cut *cut);

/* Name of the publisher's exported snapshot, to be imported by other sessions there. */
extern const char *cut_snapshot(const Cut *cut);

/* How many snapshots of the publisher were tried until this cut. */
extern int	cut_attempts(const Cut *cut);

#endif							/* WEFT_VERIFY_CUT_H */
