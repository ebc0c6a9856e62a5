/*
 * streams.h
 *	  Transactions that the publisher sends while they are in progress.
 */
#ifndef WEFT_STREAMS_H
#define WEFT_STREAMS_H

extern void streams_start(char *message, int length, const char *payload, int payload_length);
extern bool streams_message(char *message, int length, const char *payload, int payload_length);
extern void streams_end(char *message, int length, const char *payload, int payload_length);

#endif							/* WEFT_STREAMS_H */
