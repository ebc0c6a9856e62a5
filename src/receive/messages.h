/*
 * messages.h
 *	  What becomes of each message from the publisher.
 */
#ifndef WEFT_MESSAGES_H
#define WEFT_MESSAGES_H

/* The publisher's answer to a question of the server's apply loop. */
#define STATUS_MESSAGE 's'

extern bool messages_between_transactions(void);
extern void messages_data(char *message, int length);
extern void messages_keepalive(char *message, int length);
extern void messages_status(char *message, int length);

#endif							/* WEFT_MESSAGES_H */
