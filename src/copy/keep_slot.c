/*
 * keep_slot.c
 *	  The slot that keeps a table's changes on the publisher while the table is copied again.
 *
 * It is a copy of the subscription's slot, made when the table's rows stood where they stand
 * until the copy is complete.  The head of replace.c says what it is for.  It has the name that
 * the server gives to the slot of the table's synchronization.  Therefore the server drops it
 * with the subscription, when the table leaves the subscription, and when the table is
 * synchronized, and its own table synchronization worker streams from it.
 *
 * All functions need a transaction, and a connection for logical replication.
 */
#include "postgres.h"

#include "copy/keep_slot.h"
#include "copy/slot_mark.h"
#include "remote_query.h"
#include "replication/slot.h"
#include "replication/worker_internal.h"
#include "utils/builtins.h"

static const char *
slot_name(Oid subid, Oid relid)
{
	char	   *name = palloc(NAMEDATALEN);

	ReplicationSlotNameForTablesync(subid, relid, name, NAMEDATALEN);
	return name;
}

/*
 * Drops a slot of the same name that an earlier synchronization has left behind.  As in
 * slots.c, one that begins after the table was READY, and is not marked, may be that of a clone of this
 * server.
 */
static void
drop_left_over(WalReceiverConn *conn, const char *purpose, const char *name, XLogRecPtr ready,
			   bool marked)
{
	RemoteAnswer answer =
		remote_query(conn, purpose,
					 psprintf("SELECT confirmed_flush_lsn::pg_catalog.text"
							  " FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
							  quote_literal_cstr(name)), WALRCV_OK_TUPLES, 1);

	if (answer.rows == NIL)
		return;
	if (!marked && remote_lsn(((RemoteValue *) linitial(answer.rows))[0]) > ready)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("replication slot \"%s\" already exists on the publisher", name),
				 errhint("If no clone of this server, such as a promoted standby, uses the slot, drop it there with pg_drop_replication_slot.")));
	remote_command(conn, purpose,
				   psprintf("DROP_REPLICATION_SLOT %s WAIT", quote_identifier(name)));
}

/*
 * Creates the slot for a table that is READY since "ready", and whose subscription's
 * processes are stopped.  Returns where it begins: everything before that has been applied.
 */
XLogRecPtr
keep_slot_create(WalReceiverConn *conn, const Subscription *subscription, Oid relid,
				 XLogRecPtr ready)
{
	const char *name = slot_name(subscription->oid, relid);
	char	   *purpose = psprintf("copy the replication slot of subscription \"%s\" on the publisher",
								   subscription->name);
	RemoteValue *row;

	drop_left_over(conn, purpose, name, ready, slot_mark_found(subscription->oid, relid));
	slot_mark_write(subscription->oid, relid);
	row = remote_query_row(conn, purpose,
						   psprintf("SELECT lsn::pg_catalog.text"
									" FROM pg_catalog.pg_copy_logical_replication_slot(%s, %s, false, 'pgoutput')",
									quote_literal_cstr(subscription->slotname),
									quote_literal_cstr(name)), 1);
	if (subscription->failover)
		(void) remote_query(conn, NULL,
							psprintf("ALTER_REPLICATION_SLOT %s (FAILOVER true)",
									 quote_identifier(name)), WALRCV_OK_COMMAND, 0);
	return remote_lsn(row[0]);
}

/* Drops the slot, if it is there and can be dropped. */
void
keep_slot_drop(WalReceiverConn *conn, Oid subid, Oid relid)
{
	RemoteAnswer answer =
		remote_query(conn, NULL,
					 psprintf("DROP_REPLICATION_SLOT %s",
							  quote_identifier(slot_name(subid, relid))),
					 WALRCV_OK_COMMAND, 0);

	if (answer.problem == NULL)
		slot_mark_remove(subid, relid);
}

/* Does the slot still have everything that was committed after a position? */
bool
keep_slot_usable(WalReceiverConn *conn, Oid subid, Oid relid, XLogRecPtr position)
{
	RemoteAnswer answer =
		remote_query(conn, "read the replication slots of the publisher",
					 psprintf("SELECT slot_name::pg_catalog.text FROM pg_catalog.pg_replication_slots"
							  " WHERE slot_name = %s AND confirmed_flush_lsn <= '%X/%X'"
							  " AND restart_lsn IS NOT NULL AND wal_status IS DISTINCT FROM 'lost'",
							  quote_literal_cstr(slot_name(subid, relid)),
							  LSN_FORMAT_ARGS(position)), WALRCV_OK_TUPLES, 1);

	return answer.rows != NIL;
}
