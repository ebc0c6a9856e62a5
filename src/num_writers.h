/*
 * num_writers.h
 *	  A subscription's own number of writers.
 */
#ifndef WEFT_NUM_WRITERS_H
#define WEFT_NUM_WRITERS_H

/* Nothing is stored for the subscription. */
#define NUM_WRITERS_DEFAULT (-1)

extern void num_writers_define(void);
extern int	num_writers_get(Oid subid);
extern void num_writers_set(Oid subid, int num_writers);

#endif							/* WEFT_NUM_WRITERS_H */
