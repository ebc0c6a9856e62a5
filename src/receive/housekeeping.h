/*
 * housekeeping.h
 *	  What the leader does about changes around it.
 */
#ifndef WEFT_HOUSEKEEPING_H
#define WEFT_HOUSEKEEPING_H

#include "compat.h"

extern void housekeeping_start(void);
extern void housekeeping_between_transactions(void);
extern void housekeeping_stop_writers(void);
pg_noreturn extern void housekeeping_finish(void);

#endif							/* WEFT_HOUSEKEEPING_H */
