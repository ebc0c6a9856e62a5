/*
 * slots.c
 *	  Slots of table synchronisation workers on the publisher.
 *
 * When a table is in step, the server's worker writes that down (SYNCDONE), drops its
 * slot on the publisher, and commits.  If it dies between the last two, be it that the
 * server crashes, the slot is gone, and the next worker asks for it again, for ever.
 * So what is written down is committed, and on disk, before the slot is dropped:
 * right after the worker has ended streaming from it, which it does just before.
 *
 * If it dies between these, the slot stays, and nobody knows of it any more, natively.
 * Here the leader looks for such slots each time it starts, which it does after a
 * crash.  It knows them by their names, which have the subscription's and the table's
 * OIDs and this server's identifier, as the server makes them; and drops those of tables
 * that do not need one any more.  The worker may be about to drop one of them itself,
 * and finds it gone; to it, that is as good.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_subscription_rel.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "copy/copy.h"
#include "query_result.h"
#include "replication/worker_internal.h"
#include "utils/builtins.h"
#include "utils/injection_point.h"

/* A table synchronisation worker has ended streaming. */
void
copy_slot_unused(void)
{
	if (MyLogicalRepWorker->relstate != SUBREL_STATE_SYNCDONE || !IsTransactionState())
		return;
	ForceSyncCommit();
	CommitTransactionCommand();
	compat_injection_point("weft-copy-drop-slot");
	StartTransactionCommand();
}

/* A table synchronisation worker has asked to drop its slot, and got an answer. */
void
copy_slot_dropped(WalRcvExecResult *result)
{
	if (MyLogicalRepWorker->relstate == SUBREL_STATE_SYNCDONE &&
		result->status == WALRCV_ERROR && result->sqlstate == ERRCODE_UNDEFINED_OBJECT)
		result->status = WALRCV_OK_COMMAND;
}

/* Is it the slot of a table that is in step? */
static bool
is_left_over(const char *slot)
{
	Oid			subid;
	Oid			relid;
	XLogRecPtr	lsn;
	char		state;

	if (sscanf(slot, "pg_%u_sync_%u_", &subid, &relid) != 2 || subid != MySubscription->oid)
		return false;
	state = GetSubscriptionRelState(subid, relid, &lsn);
	return state == SUBREL_STATE_SYNCDONE || state == SUBREL_STATE_READY;
}

static void
drop(WalReceiverConn *conn, const char *slot)
{
	WalRcvExecResult *result =
		walrcv_exec(conn, psprintf("DROP_REPLICATION_SLOT %s", quote_identifier(slot)), 0, NULL);

	if (result->status == WALRCV_OK_COMMAND)
		ereport(LOG,
				(errmsg("dropped replication slot \"%s\" on publisher, which a table synchronization of subscription \"%s\" had left",
						slot, MySubscription->name)));
	else
		ereport(LOG,
				(errmsg("could not drop replication slot \"%s\" on publisher, which a table synchronization of subscription \"%s\" had left: %s",
						slot, MySubscription->name,
						result->err ? result->err : "unexpected answer")));
	walrcv_clear_result(result);
}

/* Returns all slots there whose names say that they are of our workers: rows of one name. */
static List *
find_slots(WalReceiverConn *conn)
{
	Oid			types[1] = {TEXTOID};
	List	   *slots = NIL;
	WalRcvExecResult *result =
		walrcv_exec(conn,
					psprintf("SELECT slot_name::pg_catalog.text FROM pg_catalog.pg_replication_slots"
							 " WHERE NOT active AND slot_name ~ '^pg_%u_sync_[0-9]+_" UINT64_FORMAT "$'",
							 MySubscription->oid, GetSystemIdentifier()),
					1, types);

	if (result->status == WALRCV_OK_TUPLES)
		slots = query_result_rows(result, 1);
	else
		ereport(LOG,
				(errmsg("could not look for slots that table synchronizations of subscription \"%s\" may have left on the publisher: %s",
						MySubscription->name, result->err ? result->err : "unexpected answer")));
	walrcv_clear_result(result);
	return slots;
}

/* A leader is about to start streaming. */
void
copy_slots_clean(WalReceiverConn *conn)
{
	ListCell   *cell;

	StartTransactionCommand();
	foreach(cell, find_slots(conn))
	{
		char	  **row = lfirst(cell);

		if (is_left_over(row[0]))
			drop(conn, row[0]);
	}
	CommitTransactionCommand();
}
