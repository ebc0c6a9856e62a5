/*
 * publisher_end.h
 *	  Asks the publisher where its WAL ends.
 */
#ifndef WEFT_PUBLISHER_END_H
#define WEFT_PUBLISHER_END_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"

extern XLogRecPtr publisher_end_ask(bool wanted, TimestampTz now);
extern void publisher_end_stop(void);

#endif							/* WEFT_PUBLISHER_END_H */
