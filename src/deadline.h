/*
 * deadline.h
 *	  Waits for other servers that end in time.
 */
#ifndef WEFT_DEADLINE_H
#define WEFT_DEADLINE_H

#include "datatype/timestamp.h"

/* What waits for another server: connecting to it, or executing a command there. */
typedef void (*DeadlineTask) (void *argument);

extern bool deadline_run(TimestampTz deadline, DeadlineTask task, void *argument);

#endif							/* WEFT_DEADLINE_H */
