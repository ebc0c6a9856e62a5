/*
 * copy.c
 *	  The initial copy within the server's table synchronization worker.
 *
 * The worker does what it always does: it creates the slot, sets the replication origin,
 * checks privileges, copies, and catches up.  Three of its steps are extended:
 *
 * - Before it sends the COPY command for the table, and if the local table is empty, Weft
 *	 copies the rows (table.c).  The worker then sends the same command without any row,
 *	 and the server's own code takes the empty result in.
 *
 * - Next it ends its transaction on the publisher, unless the table was rewritten there before
 *	 it was read (source.c).  When that is done, so that the publisher does not hold anything for
 *	 the copy any longer, Weft builds the indexes, before the server commits on this side.
 *
 * - When it catches up, it stops exactly where the leader has said (catch_up.c).
 *
 * - When it has ended streaming, and when it drops its slot, slots.c makes sure that a crash
 *	 leaves neither a table without its slot nor a slot without its table.
 *
 * A table whose rows are to be replaced is copied in the same way, and its old rows are
 * deleted before the worker begins its transaction on the publisher (replace.c).
 *
 * The leader, when it starts streaming and when it receives, drops slots that workers have
 * left behind (slots.c).  Before it starts, it waits for tables that catch up (catch_up.c).
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "copy/catch_up.h"
#include "copy/copy.h"
#include "copy/replace.h"
#include "copy/slots.h"
#include "copy/source.h"
#include "copy/table.h"
#include "guc.h"
#include "publisher_connection.h"
#include "replication/worker_internal.h"
#include "seam/seam.h"

/*
 * The server is about to send the command that copies the table.  Copies the table here if
 * possible, and returns the command that the server should send.
 */
static const char *
before_copy(WalReceiverConn *conn, const char *text)
{
	Relation	rel = table_open(MyLogicalRepWorker->relid, NoLock);
	CopyPublisher publisher = {
		.subid = MySubscription->oid,
		.user = psprintf("subscription \"%s\"", MySubscription->name),
		.appname = MySubscription->name,
		.conninfo = publisher_connection_string(MySubscription),
		.must_use_password = MySubscription->passwordrequired && !MySubscription->ownersuperuser
	};
	const char *nothing = copy_table_rows(&publisher, conn, rel, text);

	table_close(rel, NoLock);
	return nothing ? nothing : text;
}

/* The server is about to end its transaction on the publisher, which has locked the table since it was copied. */
static void
check_copied(WalReceiverConn *conn)
{
	Relation	rel = table_open(MyLogicalRepWorker->relid, NoLock);

	copy_source_check(conn, rel);
	table_close(rel, NoLock);
}

static bool
begins_with(const char *query, const char *word)
{
	return strncmp(query, word, strlen(word)) == 0;
}

/* In place of walrcv_exec, in a table synchronization worker. */
static WalRcvExecResult *
copy_exec(WalReceiverConn *conn, const char *query, const int num_types, const Oid *types)
{
	static bool copying = false;
	static bool copied = false;
	WalRcvExecResult *result;

	if (copying)
		return (seam_native->walrcv_exec) (conn, query, num_types, types);

	if (begins_with(query, "BEGIN "))
		replace_delete_rows(conn);
	if (begins_with(query, "COPY "))
	{
		copied = true;
		if (weft_copy_workers_per_table > 0)
		{
			/* An error ends the process. */
			copying = true;
			query = before_copy(conn, query);
			copying = false;
		}
	}
	if (strcmp(query, "COMMIT") == 0 && copied)
		check_copied(conn);
	result = (seam_native->walrcv_exec) (conn, query, num_types, types);

	if (begins_with(query, "DROP_REPLICATION_SLOT "))
		copy_slot_dropped(result);
	if (strcmp(query, "COMMIT") == 0 && result->status == WALRCV_OK_COMMAND)
	{
		if (copy_table_unfinished())
			copy_table_indexes();
		replace_copied(conn);
	}
	return result;
}

/* A leader is about to start streaming. */
static void
before_streaming(WalReceiverConn *conn)
{
	copy_slots_clean(conn);
	catch_up_wait();
}

/* Registers the steps of the initial copy; called once, while the postmaster loads Weft. */
void
copy_install(void)
{
	const SeamSteps steps = {
		.leader_before_streaming = before_streaming,
		.leader_before_receive = copy_slots_check,
		.tablesync_before_connect = replace_check_request,
		.tablesync_create_slot = replace_create_slot,
		.tablesync_before_streaming = catch_up_begin,
		.tablesync_receive = catch_up_receive,
		.tablesync_send = copy_slot_send,
		.tablesync_exec = copy_exec,
		.tablesync_streaming_ended = copy_slot_unused,
	};

	seam_register(&steps);
}
