/*
 * stored_times.h
 *	  Stores the times of rows whose transactions share a commit.
 */
#ifndef WEFT_STORED_TIMES_H
#define WEFT_STORED_TIMES_H

#include "datatype/timestamp.h"

extern void conflict_store_times(TimestampTz committed);

#endif							/* WEFT_STORED_TIMES_H */
