/*
 * copy.c
 *	  The initial copy within the server's table synchronisation worker.
 *
 * The worker does what it always does: it creates the slot, sets the replication
 * origin, checks privileges, copies, and catches up.  But before it sends the
 * publisher the COPY command for the table, and if the local table is empty, its rows
 * are copied here (table.c).  What is then sent is the same command without any row,
 * and the server's own code takes that in.  It ends its transaction on the publisher
 * next, and when that is done, so that nothing is held there any longer, the indexes
 * are built here, before the server commits on this side.
 *
 * What becomes of the worker's slot in the end is seen to, too (slots.c).
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "copy/copy.h"
#include "guc.h"
#include "replication/worker_internal.h"

static WalReceiverFunctionsType *native;
static WalReceiverFunctionsType functions;

/*
 * The server is about to send the command that copies the table.  Copies it here,
 * if that can be done, and returns what the server is to send.
 */
static const char *
before_copy(WalReceiverConn *conn, const char *text)
{
	Relation	rel = table_open(MyLogicalRepWorker->relid, NoLock);
	CopyPublisher publisher = {
		.subid = MySubscription->oid,
		.user = psprintf("subscription \"%s\"", MySubscription->name),
		.appname = MySubscription->name,
		.conninfo = MySubscription->conninfo,
		.must_use_password = MySubscription->passwordrequired && !MySubscription->ownersuperuser
	};
	const char *nothing = copy_table_rows(&publisher, conn, rel, text);

	table_close(rel, NoLock);
	return nothing ? nothing : text;
}

static bool
begins_with(const char *query, const char *word)
{
	return strncmp(query, word, strlen(word)) == 0;
}

/* In place of walrcv_exec. */
static WalRcvExecResult *
copy_exec(WalReceiverConn *conn, const char *query, const int num_types, const Oid *types)
{
	static bool copying = false;
	WalRcvExecResult *result;

	if (MyLogicalRepWorker == NULL || !am_tablesync_worker() ||
		conn != LogRepWorkerWalRcvConn || copying)
		return (native->walrcv_exec) (conn, query, num_types, types);

	if (begins_with(query, "COPY ") && weft_copy_workers_per_table > 0)
	{
		/* An error ends the process. */
		copying = true;
		query = before_copy(conn, query);
		copying = false;
	}
	result = (native->walrcv_exec) (conn, query, num_types, types);

	if (begins_with(query, "DROP_REPLICATION_SLOT "))
		copy_slot_dropped(result);
	if (copy_table_unfinished() && strcmp(query, "COMMIT") == 0 &&
		result->status == WALRCV_OK_COMMAND)
		copy_table_indexes();
	return result;
}

/* In place of walrcv_endstreaming. */
static void
copy_endstreaming(WalReceiverConn *conn, TimeLineID *next_tli)
{
	(native->walrcv_endstreaming) (conn, next_tli);
	if (MyLogicalRepWorker != NULL && am_tablesync_worker())
		copy_slot_unused();
}

/* In place of walrcv_receive. */
static int
copy_receive(WalReceiverConn *conn, char **buffer, pgsocket *wait_fd)
{
	if (MyLogicalRepWorker != NULL && am_leader_apply_worker() &&
		conn == LogRepWorkerWalRcvConn)
		copy_slots_check();
	return (native->walrcv_receive) (conn, buffer, wait_fd);
}

/* In place of walrcv_startstreaming. */
static bool
copy_startstreaming(WalReceiverConn *conn, const WalRcvStreamOptions *options)
{
	if (MyLogicalRepWorker != NULL && am_leader_apply_worker())
		copy_slots_clean(conn);
	return (native->walrcv_startstreaming) (conn, options);
}

/*
 * Puts us between the server and its connections to publishers; called once, while
 * the postmaster loads us, behind seam_install().
 */
void
copy_install(void)
{
	native = WalReceiverFunctions;
	functions = *native;
	functions.walrcv_exec = copy_exec;
	functions.walrcv_receive = copy_receive;
	functions.walrcv_startstreaming = copy_startstreaming;
	functions.walrcv_endstreaming = copy_endstreaming;
	WalReceiverFunctions = &functions;
}
