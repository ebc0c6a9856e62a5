/*
 * pause.h
 *	  Pauses of the leader, and what it knows to be committed.
 */
#ifndef WEFT_PAUSE_H
#define WEFT_PAUSE_H

#include "wait_event.h"

extern void pause_collect(void);
extern bool pause_drained(void);
extern void pause_drain(uint64 seq);
extern void pause_sleep(pgsocket socket, uint64 awaited_seq, WeftWaitEvent event);
extern void pause_sleep_at_most(long limit, pgsocket socket, uint64 awaited_seq,
								WeftWaitEvent event);
extern void pause_nap(void);

#endif							/* WEFT_PAUSE_H */
