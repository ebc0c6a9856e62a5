/*
 * clock.h
 *	  Waits until this server's clock has passed a time.
 */
#ifndef WEFT_CLOCK_H
#define WEFT_CLOCK_H

#include "datatype/timestamp.h"

extern bool clock_has_passed(TimestampTz time);
extern void clock_wait(TimestampTz time);

#endif							/* WEFT_CLOCK_H */
