/*
 * catch_up.h
 *	  Tables that catch up with the leader.
 */
#ifndef WEFT_COPY_CATCH_UP_H
#define WEFT_COPY_CATCH_UP_H

#include "replication/walreceiver.h"

extern void catch_up_wait(void);
extern void catch_up_begin(void);
extern int	catch_up_receive(WalReceiverConn *conn, char **buffer, pgsocket *wait_fd);

#endif							/* WEFT_COPY_CATCH_UP_H */
