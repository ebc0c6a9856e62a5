/*
 * seam.h
 *	  Where Weft stands between the server and its connections to publishers.
 */
#ifndef WEFT_SEAM_H
#define WEFT_SEAM_H

#include "replication/walreceiver.h"

/*
 * What a folder does at the seam.  "Leader" is a subscription's apply worker,
 * "tablesync" a table synchronization worker, each with the connection that the server
 * has made for it.  Each step has at most one owner; a step that nobody owns is native.
 */
typedef struct SeamSteps
{
	/* In place of walrcv_create_slot, in every other process. */
	walrcv_create_slot_fn create_slot;

	/*
	 * In a leader, before what comes in place of walrcv_startstreaming; and
	 * that.
	 */
	void		(*leader_before_streaming) (WalReceiverConn *conn);
	walrcv_startstreaming_fn leader_start_streaming;

	/* In a leader, before what comes in place of walrcv_receive; and that. */
	void		(*leader_before_receive) (void);
	walrcv_receive_fn leader_receive;

	/* In a leader, in place of walrcv_send. */
	walrcv_send_fn leader_send;

	/* In a tablesync, before it connects to the publisher. */
	void		(*tablesync_before_connect) (void);

	/* In a tablesync, in place of walrcv_create_slot. */
	walrcv_create_slot_fn tablesync_create_slot;

	/* In a tablesync, before walrcv_startstreaming. */
	void		(*tablesync_before_streaming) (void);

	/* In a tablesync, in place of walrcv_receive. */
	walrcv_receive_fn tablesync_receive;

	/* In a tablesync, in place of walrcv_send. */
	walrcv_send_fn tablesync_send;

	/* In a tablesync, in place of walrcv_exec. */
	walrcv_exec_fn tablesync_exec;

	/* In a tablesync, after walrcv_endstreaming. */
	void		(*tablesync_streaming_ended) (void);
} SeamSteps;

/* The server's own functions; for whoever owns a step, and for commands of Weft's. */
extern WalReceiverFunctionsType *seam_native;

extern void seam_install(void);
extern void seam_register(const SeamSteps *steps);

#endif							/* WEFT_SEAM_H */
