/*
 * concurrent_yield.h
 *	  A worker for a schema change yields to a later one.
 */
#ifndef WEFT_CONCURRENT_YIELD_H
#define WEFT_CONCURRENT_YIELD_H

extern void concurrent_yield_start(Oid subid);
extern void concurrent_yield_stop(void);
extern bool concurrent_yielded(void);

#endif							/* WEFT_CONCURRENT_YIELD_H */
