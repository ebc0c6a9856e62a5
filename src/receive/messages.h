/*
 * messages.h
 *	  What becomes of each message from the publisher.
 */
#ifndef WEFT_MESSAGES_H
#define WEFT_MESSAGES_H

#include "access/xlogdefs.h"

extern void message_data(char *message, int length);
extern void message_keepalive(char *message, int length);
extern void message_check_change(const char *payload, int length, bool streamed);
extern void message_settled(XLogRecPtr end_lsn);

#endif							/* WEFT_MESSAGES_H */
