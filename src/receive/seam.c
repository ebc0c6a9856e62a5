/*
 * seam.c
 *	  Where Weft is put between the server and the publisher.
 *
 * The server talks to a publisher through the functions in the table that
 * WalReceiverFunctions points to.  libpqwalreceiver sets that pointer when it
 * is loaded, and it is loaded once in a process: the postmaster loads it here,
 * puts a table of ours in its place, and every process inherits both.
 *
 * Only a leader, that is the server's apply worker, is treated differently:
 * what it receives goes through leader_receive().  And slots are created by
 * connection_create_slot(), with our output plugin where that is possible.
 */
#include "postgres.h"

#include "fmgr.h"
#include "receive/connection.h"
#include "receive/feedback.h"
#include "receive/leader.h"
#include "receive/seam.h"
#include "replication/worker_internal.h"

WalReceiverFunctionsType *seam_native = NULL;

static WalReceiverFunctionsType functions;

static bool
am_leader(WalReceiverConn *conn)
{
	return MyLogicalRepWorker != NULL && am_leader_apply_worker() &&
		conn == LogRepWorkerWalRcvConn;
}

static int
seam_receive(WalReceiverConn *conn, char **buffer, pgsocket *wait_fd)
{
	if (am_leader(conn))
		return leader_receive(conn, buffer, wait_fd);
	return (seam_native->walrcv_receive) (conn, buffer, wait_fd);
}

static bool
seam_startstreaming(WalReceiverConn *conn, const WalRcvStreamOptions *options)
{
	if (am_leader(conn))
		return connection_start_streaming(conn, options);
	return (seam_native->walrcv_startstreaming) (conn, options);
}

static void
seam_send(WalReceiverConn *conn, const char *buffer, int nbytes)
{
	if (am_leader(conn))
		feedback_forward(conn, buffer, nbytes);
	else
		(seam_native->walrcv_send) (conn, buffer, nbytes);
}

/* Puts us in between; called once, while the postmaster loads us. */
void
seam_install(void)
{
	load_file("libpqwalreceiver", false);
	seam_native = WalReceiverFunctions;
	functions = *seam_native;
	functions.walrcv_create_slot = connection_create_slot;
	functions.walrcv_startstreaming = seam_startstreaming;
	functions.walrcv_receive = seam_receive;
	functions.walrcv_send = seam_send;
	WalReceiverFunctions = &functions;
}
