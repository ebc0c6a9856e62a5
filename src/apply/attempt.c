/*
 * attempt.c
 *	  How far the attempt at hand has come: what an error in it means.
 *
 * A writer applies a transaction T1, or a group of them, in attempts.  An attempt passes
 * through these stages, and never back:
 *
 *	SPECULATIVE
 *		Transactions before T1 are not committed.  Whatever goes wrong - an error, a
 *		conflict, a missing row, somebody who needs T1's locks - may have gone wrong only
 *		because it is too early.  The writer rolls back, waits until T1 is the oldest
 *		transaction, and applies it again from its beginning.
 *	FINAL
 *		T1 is alone in its group, and all transactions before it are committed.  An error
 *		is T1's own and goes to the leader.  An error of the fast path is not: T1 is
 *		applied again, on the general path, which reports what is wrong in the
 *		server's words.
 *	GENERAL
 *		An earlier attempt has failed, and T1 is the oldest transaction.  The writer takes
 *		the general path only, so every error is T1's own.
 *	COMMITTED_TO
 *		The same, and T1 cannot be applied from its beginning again.  Any error ends the
 *		subscription's apply worker.
 *
 * An attempt begins in one of the first three stages.  It becomes final on the way if its
 * writer waits for its turn (stream_writer.c), and committed to for two reasons
 * (commit_group.c).  No other combination of these properties exists: a writer retries only what
 * is the oldest, so the general path alone is never speculative; and what cannot be
 * applied again has to take the path whose errors can be reported.
 *
 * An attempt that is committed to because of a schema change keeps everything that it would need to
 * begin again, until something else commits to it.  It does so only if the schema change needs
 * another one first (schema_wait.c).
 *
 * There are two exceptions, in which the oldest transaction is applied once more, unless it
 * is committed to:
 *	 - A deadlock: the server may choose the oldest transaction to end one, though a
 *	   later transaction is in its way.  It lets the others go on first (step_back.c).
 *	 - A unique value, where conflicts are detected: a session may have stored it just after
 *	   the writer looked for it (conflict_may_retry).
 *
 * The stage decides how long a transaction waits for locks, too.  While it waits, it
 * keeps its own:
 *	 - While it is speculative, it gives up after SPECULATIVE_LOCK_TIMEOUT.
 *	 - While it can be applied again, it looks for a deadlock early.  To be chosen to
 *	   end one costs it little, while all others wait.
 *	 - Once it is committed to, it looks for a deadlock late, so that others are chosen.
 */
#include "postgres.h"

#include "apply/attempt.h"
#include "storage/proc.h"

/*
 * How long a speculative transaction waits for a lock, in milliseconds.  The lock may be
 * a user's, held for hours, and an earlier transaction may need one of the writer's
 * locks meanwhile.
 */
#define SPECULATIVE_LOCK_TIMEOUT 1000

/*
 * How long a transaction that can be applied again waits for a lock before it looks for a
 * deadlock, in milliseconds.
 */
#define DEADLOCK_CHECK_AFTER 100

/*
 * How many times longer than configured a transaction that is committed to waits before it
 * looks for a deadlock, which the server would choose it to end.
 */
#define COMMITTED_DEADLOCK_PATIENCE 10

typedef struct Attempt
{
	AttemptStage stage;
	bool		for_good;		/* if it is committed to: it must not begin
								 * again, whatever happens */
	AttemptSubject subject;

	/* The settings that the limits above take the place of, in milliseconds. */
	int			lock_timeout;
	int			deadlock_timeout;
} Attempt;

/* A global, since a writer makes one attempt at a time, and error callbacks ask for it. */
static Attempt attempt;

/* An attempt begins; attempt_end() must follow. */
void
attempt_begin(AttemptStage initial)
{
	Assert(initial < ATTEMPT_COMMITTED_TO);
	attempt.stage = initial;
	attempt.for_good = false;
	attempt.lock_timeout = LockTimeout;
	attempt.deadlock_timeout = DeadlockTimeout;
	DeadlockTimeout = Min(DeadlockTimeout, DEADLOCK_CHECK_AFTER);
	if (attempt.stage == ATTEMPT_SPECULATIVE &&
		(LockTimeout == 0 || LockTimeout > SPECULATIVE_LOCK_TIMEOUT))
		LockTimeout = SPECULATIVE_LOCK_TIMEOUT;
}

/* The transaction has become the oldest.  From here on an error is its own. */
void
attempt_become_final(void)
{
	attempt.stage = Max(attempt.stage, ATTEMPT_FINAL);
	LockTimeout = attempt.lock_timeout;
}

/*
 * The oldest transaction will not be applied from its beginning again; unless it must wait for the
 * schema, if not "for_good".
 */
void
attempt_commit_to(bool for_good)
{
	attempt_become_final();
	attempt.for_good |= for_good;
	DeadlockTimeout = Min(attempt.deadlock_timeout, INT_MAX / COMMITTED_DEADLOCK_PATIENCE) *
		COMMITTED_DEADLOCK_PATIENCE;
	attempt.stage = ATTEMPT_COMMITTED_TO;
}

/* The attempt is over, however it has ended. */
void
attempt_end(void)
{
	DeadlockTimeout = attempt.deadlock_timeout;
	LockTimeout = attempt.lock_timeout;
}

/* Can the transaction be applied from its beginning again, if it is the oldest? */
bool
attempt_may_begin_again(void)
{
	return attempt.stage != ATTEMPT_COMMITTED_TO || !attempt.for_good;
}

AttemptStage
attempt_stage(void)
{
	return attempt.stage;
}

void
attempt_set_subject(TransactionId xid, XLogRecPtr final_lsn)
{
	attempt.subject.xid = xid;
	attempt.subject.final_lsn = final_lsn;
}

const AttemptSubject *
attempt_subject(void)
{
	return &attempt.subject;
}
