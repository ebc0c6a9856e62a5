/*
 * streams.h
 *	  Transactions that the publisher sends while they are in progress.
 */
#ifndef WEFT_STREAMS_H
#define WEFT_STREAMS_H

extern void streams_init(void);
extern void streams_start(char *message, int length, const char *payload, int payload_length);
extern void streams_message(char *message, int length, const char *payload, int payload_length);
extern void streams_end(char *message, int length, const char *payload, int payload_length);
extern bool streams_open(void);
extern void streams_discard(void);
extern void streams_renew(void);
extern void streams_collect(void);
extern bool streams_in_block(void);
extern void streams_flush(void);
extern void streams_remove_files(void);

#endif							/* WEFT_STREAMS_H */
