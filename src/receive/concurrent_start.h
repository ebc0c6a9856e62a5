/*
 * concurrent_start.h
 *	  Starts the workers that execute schema changes outside of the stream.
 */
#ifndef WEFT_CONCURRENT_START_H
#define WEFT_CONCURRENT_START_H

extern void concurrent_start_turn(void);

#endif							/* WEFT_CONCURRENT_START_H */
