/*
 * writers.h
 *	  Starting, watching and ending a leader's writers.
 */
#ifndef WEFT_WRITERS_H
#define WEFT_WRITERS_H

#include "datatype/timestamp.h"
#include "shmem.h"

extern int	writers_count(void);
extern bool writers_outdated(int wanted, TimestampTz now, bool may_add);
extern void writers_start(int count);
extern void writers_stop(void);
extern void writers_check(void);
extern void writers_assign(StreamShared *stream);

#endif							/* WEFT_WRITERS_H */
