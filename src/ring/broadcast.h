/*
 * broadcast.h
 *	  A log of messages that every writer must have seen.
 *
 * The leader appends; version n consists of the log's first n messages.  Each
 * transaction names the version that it starts with.  Transactions are taken in order,
 * so a writer only moves forward.  Nothing is removed: the log lives as long as the ring,
 * and when the log has become too long, the leader replaces both.
 */
#ifndef WEFT_BROADCAST_H
#define WEFT_BROADCAST_H

#include "ring/layout.h"

/* The leader's end. */
typedef struct BroadcastLog
{
	Ring	   *ring;
	dsa_area   *area;
	dsa_pointer last;			/* the newest message */
	uint64		version;
	Size		bytes;			/* of all messages so far */
} BroadcastLog;

/* A writer's place. */
typedef struct BroadcastReader
{
	Ring	   *ring;
	dsa_area   *area;
	dsa_pointer last;			/* the message read last */
	uint64		version;
} BroadcastReader;

extern void broadcast_request(void);
extern void broadcast_startup(void);

extern void broadcast_create(BroadcastLog *log, Ring *ring);
extern uint64 broadcast_append(BroadcastLog *log, const char *data, Size length);

extern void broadcast_attach(BroadcastReader *reader, Ring *ring);
extern bool broadcast_read(BroadcastReader *reader, uint64 version,
						   const char **data, Size *length);
extern void broadcast_detach(dsa_area *area);

#endif							/* WEFT_BROADCAST_H */
