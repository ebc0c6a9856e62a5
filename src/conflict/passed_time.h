/*
 * passed_time.h
 *	  Up to which time the changes of each subscription have been applied here.
 */
#ifndef WEFT_PASSED_TIME_H
#define WEFT_PASSED_TIME_H

#include "access/xlogdefs.h"
#include "compat.h"
#include "datatype/timestamp.h"
#include "nodes/pg_list.h"

/* A subscription of this database that detects conflicts. */
typedef struct PassedTime
{
	RepOriginId origin;			/* invalid if there is none */
	TimestampTz time;			/* by the publisher's clock; 0 if unknown */
} PassedTime;

extern List *passed_time_list(void);
extern bool passed_time_ask(void);
extern PGDLLEXPORT void weft_passed_time_main(Datum main_arg);

#endif							/* WEFT_PASSED_TIME_H */
