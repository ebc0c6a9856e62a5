/*
 * seam.c
 *	  Where Weft stands between the server and its connections to publishers.
 *
 * The server talks to a publisher through the functions in the table that
 * WalReceiverFunctions points to.  libpqwalreceiver sets that pointer when it
 * is loaded, and it is loaded once in a process: the postmaster loads it in
 * seam_install() and puts Weft's table in its place, and every process inherits both.
 *
 * Weft's table is the only one.  Its functions tell processes apart, and run the steps
 * that folders have registered for them:
 *
 *	 function		process		step						owner
 *	 create_slot	tablesync	tablesync_create_slot		copy/replace.c
 *					all others	create_slot					receive/connection.c
 *	 connect		tablesync	tablesync_before_connect	copy/replace.c
 *	 startstreaming leader		leader_before_streaming,	copy/copy.c
 *								leader_start_streaming		receive/leader.c
 *					tablesync	tablesync_before_streaming	copy/catch_up.c
 *	 receive		leader		leader_before_receive,		copy/slots.c
 *								leader_receive				receive/leader.c
 *					tablesync	tablesync_receive			copy/catch_up.c
 *	 send			leader		leader_send					receive/feedback.c
 *					tablesync	tablesync_send				copy/slots.c
 *	 exec			tablesync	tablesync_exec				copy/copy.c
 *	 endstreaming	tablesync	tablesync_streaming_ended	copy/slots.c
 *
 * A step has one owner, and the order of two steps of one function stands in that
 * function below.  Therefore the order in which folders register does not matter.  Where
 * a step comes in place of a native function, its owner calls that function itself, if it
 * wants to, as seam_native->...; such a call does not come back here.
 *
 * All other processes and connections, parallel apply workers, physical replication and
 * the connections that Weft opens itself among them, get the native functions.
 */
#include "postgres.h"

#include "fmgr.h"
#include "replication/worker_internal.h"
#include "seam/seam.h"

/* Set once in the postmaster: a process inherits both with the server's own pointer. */
WalReceiverFunctionsType *seam_native = NULL;
static WalReceiverFunctionsType functions;

static SeamSteps registered;

static bool
am_leader(WalReceiverConn *conn)
{
	return MyLogicalRepWorker != NULL && am_leader_apply_worker() &&
		conn == LogRepWorkerWalRcvConn;
}

static bool
am_tablesync(WalReceiverConn *conn)
{
	return MyLogicalRepWorker != NULL && am_tablesync_worker() &&
		conn == LogRepWorkerWalRcvConn;
}

/* A table synchronization worker makes its connection with this call. */
static WalReceiverConn *
seam_connect(const char *conninfo, bool replication, bool logical, bool must_use_password,
			 const char *appname, char **err)
{
	if (registered.tablesync_before_connect && MyLogicalRepWorker != NULL &&
		am_tablesync_worker() && LogRepWorkerWalRcvConn == NULL)
		registered.tablesync_before_connect();
	return (seam_native->walrcv_connect) (conninfo, replication, logical, must_use_password,
										  appname, err);
}

static char *
seam_create_slot(WalReceiverConn *conn, const char *slotname, bool temporary, bool two_phase,
				 bool failover, CRSSnapshotAction snapshot_action, XLogRecPtr *lsn)
{
	walrcv_create_slot_fn create_slot = seam_native->walrcv_create_slot;

	if (am_tablesync(conn))
	{
		if (registered.tablesync_create_slot)
			create_slot = registered.tablesync_create_slot;
	}
	else if (registered.create_slot)
		create_slot = registered.create_slot;
	return create_slot(conn, slotname, temporary, two_phase, failover, snapshot_action, lsn);
}

static bool
seam_startstreaming(WalReceiverConn *conn, const WalRcvStreamOptions *options)
{
	if (am_leader(conn))
	{
		if (registered.leader_before_streaming)
			registered.leader_before_streaming(conn);
		if (registered.leader_start_streaming)
			return registered.leader_start_streaming(conn, options);
	}
	else if (registered.tablesync_before_streaming && am_tablesync(conn))
		registered.tablesync_before_streaming();
	return (seam_native->walrcv_startstreaming) (conn, options);
}

static int
seam_receive(WalReceiverConn *conn, char **buffer, pgsocket *wait_fd)
{
	if (am_leader(conn))
	{
		if (registered.leader_before_receive)
			registered.leader_before_receive();
		if (registered.leader_receive)
			return registered.leader_receive(conn, buffer, wait_fd);
	}
	else if (registered.tablesync_receive && am_tablesync(conn))
		return registered.tablesync_receive(conn, buffer, wait_fd);
	return (seam_native->walrcv_receive) (conn, buffer, wait_fd);
}

static void
seam_send(WalReceiverConn *conn, const char *buffer, int nbytes)
{
	if (registered.leader_send && am_leader(conn))
		registered.leader_send(conn, buffer, nbytes);
	else if (registered.tablesync_send && am_tablesync(conn))
		registered.tablesync_send(conn, buffer, nbytes);
	else
		(seam_native->walrcv_send) (conn, buffer, nbytes);
}

static WalRcvExecResult *
seam_exec(WalReceiverConn *conn, const char *query, const int num_types, const Oid *types)
{
	if (registered.tablesync_exec && am_tablesync(conn))
		return registered.tablesync_exec(conn, query, num_types, types);
	return (seam_native->walrcv_exec) (conn, query, num_types, types);
}

static void
seam_endstreaming(WalReceiverConn *conn, TimeLineID *next_tli)
{
	(seam_native->walrcv_endstreaming) (conn, next_tli);
	if (registered.tablesync_streaming_ended && am_tablesync(conn))
		registered.tablesync_streaming_ended();
}

/* Puts Weft's table in place; called once, while the postmaster loads Weft. */
void
seam_install(void)
{
	load_file("libpqwalreceiver", false);
	seam_native = WalReceiverFunctions;
	functions = *seam_native;
	functions.walrcv_connect = seam_connect;
	functions.walrcv_create_slot = seam_create_slot;
	functions.walrcv_startstreaming = seam_startstreaming;
	functions.walrcv_receive = seam_receive;
	functions.walrcv_send = seam_send;
	functions.walrcv_exec = seam_exec;
	functions.walrcv_endstreaming = seam_endstreaming;
	WalReceiverFunctions = &functions;
}

/* Takes over the steps that are set; each may have one owner. */
#define TAKE_STEP(step) \
	do { \
		if (steps->step) \
		{ \
			if (registered.step) \
				elog(ERROR, "step \"%s\" at the seam has two owners", #step); \
			registered.step = steps->step; \
		} \
	} while (0)

/* Called while the postmaster loads Weft, after seam_install(), in any order. */
void
seam_register(const SeamSteps *steps)
{
	Assert(seam_native != NULL);
	TAKE_STEP(create_slot);
	TAKE_STEP(leader_before_streaming);
	TAKE_STEP(leader_start_streaming);
	TAKE_STEP(leader_before_receive);
	TAKE_STEP(leader_receive);
	TAKE_STEP(leader_send);
	TAKE_STEP(tablesync_before_connect);
	TAKE_STEP(tablesync_create_slot);
	TAKE_STEP(tablesync_before_streaming);
	TAKE_STEP(tablesync_receive);
	TAKE_STEP(tablesync_send);
	TAKE_STEP(tablesync_exec);
	TAKE_STEP(tablesync_streaming_ended);
}
