/*
 * slots.c
 *	  Slots of table synchronisation workers on the publisher.
 *
 * When a table is synchronized, the server's worker writes that down (SYNCDONE), drops its
 * slot on the publisher, and commits.  If it dies between the last two, be it that the
 * server crashes, the slot is gone, and the next worker asks for it again, for ever.
 * So what is written down is committed, and on disk, before the slot is dropped:
 * right after the worker has ended streaming from it, which it does just before.
 *
 * If it dies between these, the slot stays, and natively nobody would ever look for it.
 * Here the leader does: when it starts, which it does after a crash; and when a worker
 * has ended in between and says so in shared memory, with a connection of its own, since
 * that of its stream takes no commands.  It looks again a while later if the publisher has not
 * noticed yet that the worker is gone, or cannot be reached.
 *
 * The leader knows such slots by their names, which have the subscription's and the
 * table's OIDs and this server's identifier, as the server makes them, and drops those
 * of tables that do not need one any more.  But a clone of this server, a promoted
 * standby for instance, makes slots of the same names.  There cannot be two of one
 * name: so a slot that another server has made is younger than our worker's, which was
 * dropped after the table was synchronized, and begins behind the position at which it was;
 * ours has never been confirmed any further than that.  A slot that begins behind it
 * is left alone.  (The position is that of READY, if the table has got so far.  A clone
 * that makes its slot in the moment between the two would lose it.)
 *
 * The worker may be about to drop one of them itself, and finds it gone; to it, that
 * is as good.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_subscription_rel.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "copy/progress.h"
#include "copy/slots.h"
#include "remote_query.h"
#include "replication/worker_internal.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

/* So long after a slot could not be dropped, the leader looks again; in milliseconds. */
#define RETRY_INTERVAL 10000

/* In a table synchronisation worker: its slot is not needed and not yet dropped. */
static bool slot_unused = false;

/* In a leader: what copy_progress_slots_left() was when it last looked. */
static uint32 slots_left_seen = 0;
static TimestampTz look_again_at = 0;	/* or zero */

/* A table synchronisation worker ends. */
static void
tell_leader(int code, Datum arg)
{
	if (slot_unused)
		copy_progress_leave_slot();
}

/* A table synchronisation worker has ended streaming. */
void
copy_slot_unused(void)
{
	if (MyLogicalRepWorker->relstate != SUBREL_STATE_SYNCDONE || !IsTransactionState())
		return;
	before_shmem_exit(tell_leader, (Datum) 0);
	slot_unused = true;
	ForceSyncCommit();
	CommitTransactionCommand();
	StartTransactionCommand();
	compat_injection_point("weft-copy-drop-slot");
}

/* A table synchronisation worker has asked to drop its slot, and got an answer. */
void
copy_slot_dropped(WalRcvExecResult *result)
{
	if (MyLogicalRepWorker->relstate == SUBREL_STATE_SYNCDONE &&
		result->status == WALRCV_ERROR && result->sqlstate == ERRCODE_UNDEFINED_OBJECT)
		result->status = WALRCV_OK_COMMAND;
	if (result->status == WALRCV_OK_COMMAND)
		slot_unused = false;
}

/* Is it the slot of a table that is synchronized, and not that of a clone of this server? */
static bool
is_left_over(const char *slot, const char *confirmed)
{
	Oid			subid;
	Oid			relid;
	XLogRecPtr	in_step;
	char		state;

	if (sscanf(slot, "pg_%u_sync_%u_", &subid, &relid) != 2 || subid != MySubscription->oid)
		return false;
	state = GetSubscriptionRelState(subid, relid, &in_step);
	return (state == SUBREL_STATE_SYNCDONE || state == SUBREL_STATE_READY) &&
		confirmed != NULL &&
		DatumGetLSN(DirectFunctionCall1(pg_lsn_in, CStringGetDatum(confirmed))) <= in_step;
}

/* Returns whether it is gone. */
static bool
drop(WalReceiverConn *conn, const char *slot)
{
	RemoteAnswer answer = remote_query(conn, NULL,
									   psprintf("DROP_REPLICATION_SLOT %s", quote_identifier(slot)),
									   WALRCV_OK_COMMAND, 0);
	bool		gone = answer.problem == NULL || answer.sqlstate == ERRCODE_UNDEFINED_OBJECT;

	if (answer.problem == NULL)
		ereport(LOG,
				(errmsg("dropped replication slot \"%s\" on publisher, left behind by a table synchronization of subscription \"%s\"",
						slot, MySubscription->name)));
	else if (!gone)
		ereport(LOG,
				(errmsg("could not drop replication slot \"%s\" on publisher, left behind by a table synchronization of subscription \"%s\": %s",
						slot, MySubscription->name, answer.problem)));
	return gone;
}

/*
 * Finds all slots there whose names say that they are of our workers: rows of name,
 * confirmed position, and whether it is active.  Returns false if that cannot be found out.
 */
static bool
find_slots(WalReceiverConn *conn, List **slots)
{
	RemoteAnswer answer =
		remote_query(conn, NULL,
					 psprintf("SELECT slot_name::pg_catalog.text, confirmed_flush_lsn::pg_catalog.text,"
							 " active::pg_catalog.text FROM pg_catalog.pg_replication_slots"
							 " WHERE slot_type = 'logical' AND plugin = 'pgoutput' AND NOT temporary"
							 " AND database = pg_catalog.current_database()"
							 " AND slot_name ~ '^pg_%u_sync_[0-9]+_" UINT64_FORMAT "$'",
							 MySubscription->oid, GetSystemIdentifier()),
					 WALRCV_OK_TUPLES, 3);

	*slots = answer.rows;
	if (answer.problem != NULL)
		ereport(LOG,
				(errmsg("could not look for replication slots that table synchronizations of subscription \"%s\" may have left behind on the publisher: %s",
						MySubscription->name, answer.problem)));
	return answer.problem == NULL;
}

/* Drops what is left over.  Returns false if it is worth while to look again. */
static bool
clean(WalReceiverConn *conn)
{
	List	   *slots = NIL;
	ListCell   *cell;
	bool		complete;

	StartTransactionCommand();
	complete = find_slots(conn, &slots);
	foreach(cell, slots)
	{
		char	  **row = lfirst(cell);

		if (is_left_over(row[0], row[1]) &&
			(strcmp(row[2], "true") == 0 || !drop(conn, row[0])))
			complete = false;
	}
	CommitTransactionCommand();
	return complete;
}

/* Notes whether the leader has to look again. */
static void
note_result(bool complete)
{
	look_again_at = complete ? 0 :
		TimestampTzPlusMilliseconds(GetCurrentTimestamp(), RETRY_INTERVAL);
}

/* A leader is about to start streaming. */
void
copy_slots_clean(WalReceiverConn *conn)
{
	slots_left_seen = copy_progress_slots_left();
	note_result(clean(conn));
}

/*
 * A leader is about to receive a message.  Looks for slots that a worker of any
 * subscription may have left since it last did, unless it is applying something.
 */
void
copy_slots_check(void)
{
	uint32		slots_left = copy_progress_slots_left();
	MemoryContext old = CurrentMemoryContext;
	WalReceiverConn *conn;
	char	   *error = NULL;

	if (slots_left == slots_left_seen &&
		(look_again_at == 0 || GetCurrentTimestamp() < look_again_at))
		return;
	if (IsTransactionState() || in_remote_transaction)
		return;

	slots_left_seen = slots_left;
	conn = walrcv_connect(MySubscription->conninfo, true, true,
						  MySubscription->passwordrequired && !MySubscription->ownersuperuser,
						  MySubscription->name, &error);
	if (conn == NULL)
	{
		ereport(LOG,
				(errmsg("could not look for replication slots that table synchronizations of subscription \"%s\" may have left behind on the publisher: %s",
						MySubscription->name, error)));
		note_result(false);
	}
	else
	{
		note_result(clean(conn));
		walrcv_disconnect(conn);
	}
	MemoryContextSwitchTo(old);
}
