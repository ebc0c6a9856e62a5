/*
 * local_transaction.c
 *	  The local transaction that an attempt works in: its origin, and how it ends.
 *
 * Its commit record carries the position on the publisher, by the leader's replication
 * origin.  Only a commit may advance that origin.  An abort would advance it, too, if the
 * session's origin and its position were set.  Therefore
 *
 *	 - the writer clears both before it rolls back, and before its process ends.
 *	 - the position is set only when the deferred triggers have fired.  They may roll back
 *	   subtransactions, and the local transaction may still fail after that.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "apply/local_transaction.h"
#include "apply/server_apply.h"
#include "apply/writer.h"
#include "compat.h"
#include "fast/fast.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "storage/ipc.h"
#include "storage/proc.h"

/* What the commit record of the local transaction will carry; invalid unless it is being committed. */
static XLogRecPtr commit_lsn = InvalidXLogRecPtr;
static TimestampTz commit_timestamp;

static void
clear_position(void)
{
	commit_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;
}

static void
clear_origin(void)
{
	replorigin_session_origin = InvalidRepOriginId;
	clear_position();
}

/* The deferred triggers have fired; the commit record, or that of PREPARE, is not written yet. */
static void
transaction_event(XactEvent event, void *arg)
{
	if ((event != XACT_EVENT_PRE_COMMIT && event != XACT_EVENT_PRE_PREPARE) ||
		XLogRecPtrIsInvalid(commit_lsn))
		return;
	replorigin_session_origin_lsn = commit_lsn;
	replorigin_session_origin_timestamp = commit_timestamp;
}

static void
writer_exit(int code, Datum arg)
{
	clear_origin();
}

/* Becomes a user of the leader's replication origin; called once in a writer. */
void
local_transaction_init(void)
{
	replorigin_session_setup(writer.subscription->origin, MyLogicalRepWorker->proc->pid);
	before_shmem_exit(writer_exit, (Datum) 0);
	RegisterXactCallback(transaction_event, NULL);
}

/* What is applied from here on came from the publisher. */
void
local_transaction_set_origin(void)
{
	replorigin_session_origin = writer.subscription->origin;
}

/* Prepares the local transaction, under the name by which the server finds it again. */
static void
prepare(TransactionId xid)
{
	char		gid[GIDSIZE];

	compat_two_phase_gid(MySubscription->oid, xid, gid, sizeof(gid));
	if (!IsTransactionBlock())
	{
		BeginTransactionBlock();
		CommitTransactionCommand();
	}
	if (!PrepareTransactionBlock(gid))
		elog(ERROR, "could not prepare transaction \"%s\"", gid);
	CommitTransactionCommand();
}

/*
 * Commits the local transaction, or prepares it if it is a transaction "prepare_xid" that
 * was prepared on the publisher.  Returns the end of its commit record; what is prepared
 * is flushed.
 */
XLogRecPtr
local_transaction_commit(TransactionId prepare_xid, XLogRecPtr end_lsn,
						 TimestampTz commit_time)
{
	commit_lsn = end_lsn;
	commit_timestamp = commit_time;
	compat_injection_point("weft-writer-commits");
	fast_close();
	if (TransactionIdIsValid(prepare_xid))
		prepare(prepare_xid);
	else
	{
		if (IsTransactionBlock())
			EndTransactionBlock(false);
		CommitTransactionCommand();
	}
	compat_injection_point("weft-writer-committed");
	clear_position();
	in_remote_transaction = false;
	return XactLastCommitEnd;
}

/*
 * Rolls the local transaction back, and sees to it that nothing of it is left in the
 * server's apply code either.  Does no harm if that has been done.
 */
void
local_transaction_roll_back(void)
{
	clear_origin();
	AbortOutOfAnyTransaction();
	in_remote_transaction = false;
	server_apply_repair();
}
