/*
 * slots.c
 *	  Slots of table synchronization workers on the publisher.
 *
 * W is the table synchronization worker, L the leader of the subscription.
 *
 * When a table is synchronized, the server's W records that (SYNCDONE), drops its slot on
 * the publisher, and commits.  If W dies between the last two steps, for instance because
 * the server crashes, the slot is gone, and the next worker requests it again, forever.
 * Therefore W commits the record, and flushes it, before it drops the slot: directly after
 * it has ended streaming from the slot, which is the step before.
 *
 * If W dies between that commit and the drop, the slot remains, and natively nobody would
 * ever look for it.  L does: when it starts, as it does after a crash; and when a worker
 * that has ended in between has said so in shared memory.  In that case L uses a connection
 * of its own, because that of its stream takes no commands.  L looks again after
 * RETRY_INTERVAL if the publisher has not noticed yet that W is gone, or is unreachable.
 *
 * L recognizes such slots by their names, which contain the OIDs of the subscription and of
 * the table, and this server's system identifier, as the server makes them.  L drops the
 * slots of tables that need none any more.  But a clone C of this server, such as a promoted
 * standby, makes slots of the same names.  Two slots cannot have the same name, so C made
 * its slot after W's was dropped, which was after the table was synchronized.  C's slot
 * therefore begins after the position of that, and W's slot has never been confirmed any
 * further than that position.  L leaves a slot alone that begins after it.  (The position is
 * that of READY, if the table has reached that state.  A clone that makes its slot between
 * the two would lose it.)  But L drops the slots that weft.resync_table() has left behind for READY
 * tables, wherever they begin: they are marked (slot_mark.c).  L logs slots that it leaves alone and
 * that nobody uses, because they keep the publisher's WAL.
 *
 * W may be about to drop the slot that L drops.  W then finds that the slot is gone, and
 * treats this as success.
 *
 * A promoted standby of this server that does not have SYNCDONE yet needs W's slot, and what W has
 * applied since its copy.  Therefore W's reports are withheld like L's (confirmation.c), and with
 * weft.confirm_after_standby_slots, W gives the standbys a moment before it drops the slot.  If they do
 * not have SYNCDONE then, W ends without dropping it, so that other tables can be synchronized,
 * and L drops it once they have.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_subscription_rel.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "confirmation.h"
#include "copy/progress.h"
#include "copy/slot_mark.h"
#include "copy/slots.h"
#include "local_wal.h"
#include "message_builder.h"
#include "publisher_connection.h"
#include "remote_query.h"
#include "replication/worker_internal.h"
#include "seam/seam.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* After how long the leader looks again if a slot could not be dropped, in milliseconds. */
#define RETRY_INTERVAL 10000

/* How long a worker waits for standbys before it leaves its slot to the leader, in milliseconds. */
#define STANDBY_TIME 1000

/* Standby status update: 'r', and positions that are written, flushed and applied. */
#define STATUS_FLUSH_OFFSET (1 + 8)
#define STATUS_MIN_LENGTH (1 + 8 + 8 + 8)

/*
 * In a table synchronization worker: its slot is not needed and not yet dropped.  Static
 * because a callback at the end of the process needs it.
 */
static bool slot_unused = false;

/* In a leader: copy_progress_slots_left() at its last look, and when to look again. */
static uint32 slots_left_seen = 0;
static TimestampTz look_again_at = 0;	/* or zero */

/* A slot that is not dropped before standbys have the local WAL up to a position. */
typedef struct KeptSlot
{
	char		name[NAMEDATALEN];
	XLogRecPtr	local;
} KeptSlot;

static List *kept_slots = NIL;	/* of the leader */

/*
 * Flushes the end of the copy before the publisher is told anything.  The slot may advance then, beyond the position of
 * a request to copy the table again.  If a crash brought the request back, it could not be cancelled (replace.c).
 */
static void
flush_copy(void)
{
	static bool flushed = false;

	if (!flushed)
		XLogFlush(local_wal_end());
	flushed = true;
}

/* In place of walrcv_send, in a table synchronization worker. */
void
copy_slot_send(WalReceiverConn *conn, const char *buffer, int length)
{
	char	   *copy;
	uint64		flushed;

	if (length < STATUS_MIN_LENGTH || buffer[0] != 'r')
	{
		(seam_native->walrcv_send) (conn, buffer, length);
		return;
	}
	flush_copy();
	copy = palloc(length);
	memcpy(copy, buffer, length);
	memcpy(&flushed, buffer + STATUS_FLUSH_OFFSET, sizeof(flushed));
	(void) message_put_uint64(copy + STATUS_FLUSH_OFFSET, confirmation_claim(pg_ntoh64(flushed)));
	(seam_native->walrcv_send) (conn, copy, length);
	pfree(copy);
}

/* A table synchronization worker ends. */
static void
tell_leader(int code, Datum arg)
{
	if (slot_unused)
		copy_progress_leave_slot();
}

/* A table synchronization worker has ended streaming. */
void
copy_slot_unused(void)
{
	char	   *table;
	char		name[NAMEDATALEN] = "";

	if (MyLogicalRepWorker->relstate != SUBREL_STATE_SYNCDONE || !IsTransactionState())
		return;
	before_shmem_exit(tell_leader, (Datum) 0);
	slot_unused = true;
	ForceSyncCommit();
	table = standby_slots_named() ? get_rel_name(MyLogicalRepWorker->relid) : NULL;
	if (table != NULL)
		strlcpy(name, table, sizeof(name));
	CommitTransactionCommand();
	if (!confirmation_wait(GetFlushRecPtr(NULL), STANDBY_TIME))
	{
		ereport(LOG,
				(errmsg("table synchronization worker for subscription \"%s\", table \"%s\" leaves its replication slot on the publisher to the apply worker",
						MySubscription->name, name),
				 errdetail("A standby of this server does not have the table's state yet.")));
		proc_exit(0);
	}
	StartTransactionCommand();
	compat_injection_point("weft-copy-drop-slot");
}

/* A table synchronization worker has received the answer to the drop of its slot. */
void
copy_slot_dropped(WalRcvExecResult *result)
{
	if (MyLogicalRepWorker->relstate == SUBREL_STATE_SYNCDONE &&
		result->status == WALRCV_ERROR && result->sqlstate == ERRCODE_UNDEFINED_OBJECT)
		result->status = WALRCV_OK_COMMAND;
	if (result->status == WALRCV_OK_COMMAND)
		slot_unused = false;
}

/*
 * Is this the slot of a synchronized table, and not that of a clone of this server?  Logs a slot that
 * is not left over, and that nobody uses.
 */
static bool
is_left_over(Oid relid, const char *slot, const char *confirmed, bool active)
{
	XLogRecPtr	synchronized;
	char		state = GetSubscriptionRelState(MySubscription->oid, relid, &synchronized);

	if ((state != SUBREL_STATE_SYNCDONE && state != SUBREL_STATE_READY) || confirmed == NULL)
		return false;
	if (remote_lsn(confirmed) <= synchronized)
		return true;
	if (state == SUBREL_STATE_READY && slot_mark_found(MySubscription->oid, relid))
		return true;
	if (!active)
		ereport(LOG,
				(errmsg("replication slot \"%s\" on the publisher is not used by subscription \"%s\"",
						slot, MySubscription->name),
				 errdetail("It keeps the publisher's WAL from being removed."),
				 errhint("If no clone of this server, such as a promoted standby, uses the slot, drop it there with pg_drop_replication_slot.")));
	return false;
}

/* Do the standbys know that a slot is left over?  If not, they do later. */
static bool
known_to_standbys(const char *name)
{
	MemoryContext old;
	KeptSlot   *slot;

	if (!standby_slots_named())
		return true;
	foreach_ptr(KeptSlot, kept, kept_slots)
	{
		if (strcmp(kept->name, name) == 0)
			return confirmation_wait(kept->local, 0);
	}
	old = MemoryContextSwitchTo(TopMemoryContext);
	slot = palloc(sizeof(KeptSlot));
	strlcpy(slot->name, name, sizeof(slot->name));
	slot->local = GetFlushRecPtr(NULL);
	kept_slots = lappend(kept_slots, slot);
	MemoryContextSwitchTo(old);
	return confirmation_wait(slot->local, 0);
}

/* Forgets slots that are not there any more: others may get their names. */
static void
forget_others(List *slots)
{
	foreach_ptr(KeptSlot, kept, kept_slots)
	{
		bool		found = false;
		ListCell   *cell;

		foreach(cell, slots)
			found = found || strcmp(kept->name, ((char **) lfirst(cell))[0]) == 0;
		if (!found)
		{
			kept_slots = foreach_delete_current(kept_slots, kept);
			pfree(kept);
		}
	}
}

/* Returns whether it is gone. */
static bool
drop(WalReceiverConn *conn, Oid relid, const char *slot)
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
	if (gone)
		slot_mark_remove(MySubscription->oid, relid);
	return gone;
}

/*
 * Finds all slots there whose names are those of this subscription's workers: rows of name,
 * confirmed position, and whether the slot is active.  Returns false if the query fails.
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

/*
 * Removes marks that are not needed any more.  Returns false if a slot of a mark may still be
 * created, or could not be dropped.
 */
static bool
clean_marks(bool slots_dropped)
{
	bool		complete = true;

	foreach_oid(relid, slot_mark_tables(MySubscription->oid))
	{
		XLogRecPtr	position;

		if (GetSubscriptionRelState(MySubscription->oid, relid, &position) == SUBREL_STATE_READY &&
			(!slots_dropped || slot_mark_recent(MySubscription->oid, relid)))
			complete = false;
		else
			slot_mark_remove(MySubscription->oid, relid);
	}
	return complete;
}

/* Drops slots that were left behind.  Returns false if the leader should look again. */
static bool
clean(WalReceiverConn *conn)
{
	List	   *slots = NIL;
	ListCell   *cell;
	bool		complete;

	StartTransactionCommand();
	complete = find_slots(conn, &slots);
	if (complete)
		forget_others(slots);
	foreach(cell, slots)
	{
		char	  **row = lfirst(cell);
		bool		active = strcmp(row[2], "true") == 0;
		Oid			subid;
		Oid			relid;

		if (sscanf(row[0], "pg_%u_sync_%u_", &subid, &relid) == 2 &&
			is_left_over(relid, row[0], row[1], active) &&
			(active || !known_to_standbys(row[0]) || !drop(conn, relid, row[0])))
			complete = false;
	}
	complete = clean_marks(complete) && complete;
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
 * A leader is about to receive a message.  Unless it is applying something, it looks for
 * slots if a worker of any subscription may have left one behind since its last look.
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
	conn = walrcv_connect(publisher_connection_string(MySubscription), true, true,
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
