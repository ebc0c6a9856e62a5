/*
 * slots.h
 *	  Slots of table synchronization workers on the publisher.
 */
#ifndef WEFT_COPY_SLOTS_H
#define WEFT_COPY_SLOTS_H

#include "replication/walreceiver.h"

extern void copy_slot_send(WalReceiverConn *conn, const char *buffer, int length);
extern void copy_slot_unused(void);
extern void copy_slot_dropped(WalRcvExecResult *result);
extern void copy_slots_clean(WalReceiverConn *conn);
extern void copy_slots_check(void);

#endif							/* WEFT_COPY_SLOTS_H */
