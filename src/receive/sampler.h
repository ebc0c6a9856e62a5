/*
 * sampler.h
 *	  Samples, a few times a second, how far the subscription is.
 */
#ifndef WEFT_SAMPLER_H
#define WEFT_SAMPLER_H

#include "datatype/timestamp.h"

extern void sampler_start(void);
extern void sampler_tick(TimestampTz now);
extern void sampler_now(TimestampTz now);
extern void sampler_idle(TimestampTz now);
extern void sampler_stop(void);

#endif							/* WEFT_SAMPLER_H */
