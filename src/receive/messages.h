/*
 * messages.h
 *	  What becomes of each message from the publisher.
 */
#ifndef WEFT_MESSAGES_H
#define WEFT_MESSAGES_H

extern bool messages_between_transactions(void);
extern void messages_data(char *message, int length);
extern void messages_keepalive(char *message, int length);

#endif							/* WEFT_MESSAGES_H */
