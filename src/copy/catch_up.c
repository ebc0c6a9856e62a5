/*
 * catch_up.c
 *	  Tables that catch up with the leader.
 *
 * When a table has been copied, its table synchronization worker W waits (SYNCWAIT) until the server's
 * apply loop in the leader tells it up to which position P it is to apply the table's changes
 * (CATCHUP).  The loop then waits until W has done so (SYNCDONE), because it does not apply changes of the table
 * before that, and W applies none after P.
 *
 * If the leader ends while it waits, W goes on towards P.  The loop of the next leader waits only
 * for workers that it has told P itself.  If W were slower, that leader would pass P, and leave out the changes
 * of the table that nobody applies any more.  Therefore a leader that is about to receive changes waits
 * first until no worker is in CATCHUP, nor in SYNCDONE: W says that in shared memory before the catalog
 * has it, and ends soon afterwards.  W needs nothing of the leader for that; if W fails, the next worker
 * of the table begins at SYNCWAIT again, or before.
 *
 * W goes as far as P, and no further.  Natively, it notices that it has reached P only when a transaction
 * has been committed, when a keepalive says so, or when nothing more has arrived.  If P lies where no transaction
 * of the publication ends, W applies the next one as well, and the leader leaves that out.  But that one may change the
 * schema: then the leader waits in front of it until no table is being copied (receive/ddl_rows.c), and W,
 * which cannot execute schema changes, would fail at its rows forever.  Or it may change another table, which W locks
 * before it leaves the change out: then W would wait for a session that has locked that table, and all other tables
 * for W.  Therefore, when the first transaction that is committed at P or behind arrives, W keeps it back: its loop
 * first gets a keepalive with P, then nothing, upon which it ends.
 *
 * Natively, W gives up waiting in SYNCWAIT when there is no leader, and applies changes without knowing P.  It could
 * meet a schema change then, fail, and disable the subscription ("disable_on_error"), while the next leader is about
 * to start.  Therefore it waits for that one before it asks for changes.
 */
#include "postgres.h"

#include "catalog/pg_subscription_rel.h"
#include "compat.h"
#include "copy/catch_up.h"
#include "message_builder.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "seam/seam.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/inval.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"
#include "wire.h"

/* How often to look, in milliseconds, although W wakes the leader when it ends. */
#define INTERVAL 100

/* The state of a table synchronization worker, and the position that belongs to it. */
static char
state_of(LogicalRepWorker *worker, XLogRecPtr *lsn)
{
	char		state;

	SpinLockAcquire(&worker->relmutex);
	state = worker->relstate;
	*lsn = worker->relstate_lsn;
	SpinLockRelease(&worker->relmutex);
	return state;
}

static bool
is_catching_up(LogicalRepWorker *worker)
{
	XLogRecPtr	lsn;
	char		state;

	if (!compat_is_tablesync(worker))
		return false;
	state = state_of(worker, &lsn);
	return state == SUBREL_STATE_CATCHUP || state == SUBREL_STATE_SYNCDONE;
}

static bool
any_catches_up(void)
{
	bool		result = false;

	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	foreach_ptr(LogicalRepWorker, worker, compat_workers_find(MySubscription->oid))
		result |= is_catching_up(worker);
	LWLockRelease(LogicalRepWorkerLock);
	return result;
}

static void
wait_a_moment(void)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, INTERVAL,
					 WAIT_EVENT_LOGICAL_SYNC_STATE_CHANGE);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* Called in a leader before it receives changes: waits until nothing catches up with an earlier one. */
void
catch_up_wait(void)
{
	while (any_catches_up())
		wait_a_moment();
}

/*
 * Called in a table synchronization worker before it asks for changes: waits until a leader has said up to where.
 * Ends the process if the subscription is disabled meanwhile.
 */
void
catch_up_begin(void)
{
	XLogRecPtr	lsn;

	while (state_of(MyLogicalRepWorker, &lsn) == SUBREL_STATE_SYNCWAIT)
	{
		wait_a_moment();
		AcceptInvalidationMessages();
		maybe_reread_subscription();
	}
}

/*
 * Where is the transaction committed that a message begins, or ends if it is streamed?  Invalid for any
 * other message.
 */
static XLogRecPtr
commit_position(const char *message, int length)
{
	const char *payload = message + DATA_HEADER_LENGTH;
	WireBegin	begin;
	WireCommit	commit;

	if (length <= DATA_HEADER_LENGTH || message[0] != 'w')
		return InvalidXLogRecPtr;
	length -= DATA_HEADER_LENGTH;
	switch (payload[0])
	{
		case LOGICAL_REP_MSG_BEGIN:
			return wire_read_begin(payload, length, &begin) == NULL ? begin.final_lsn :
				InvalidXLogRecPtr;
		case LOGICAL_REP_MSG_STREAM_COMMIT:
			/* behind the transaction ID */
			return length > 4 && wire_read_commit(payload + 4, length - 4, &commit) == NULL ?
				commit.commit_lsn : InvalidXLogRecPtr;
		default:
			return InvalidXLogRecPtr;
	}
}

/* In place of walrcv_receive, in a table synchronization worker. */
int
catch_up_receive(WalReceiverConn *conn, char **buffer, pgsocket *wait_fd)
{
	static bool at_end = false;
	static char keepalive[MESSAGE_KEEPALIVE_LENGTH];
	XLogRecPtr	end;
	XLogRecPtr	committed;
	int			length;

	/* The loop ends the process now, so it does not wait. */
	if (at_end)
		return 0;
	length = (seam_native->walrcv_receive) (conn, buffer, wait_fd);
	if (length <= 0)
		return length;
	committed = commit_position(*buffer, length);
	if (XLogRecPtrIsInvalid(committed) ||
		state_of(MyLogicalRepWorker, &end) != SUBREL_STATE_CATCHUP || committed < end)
		return length;
	at_end = true;
	*buffer = keepalive;
	return message_keepalive(keepalive, end, GetCurrentTimestamp());
}
