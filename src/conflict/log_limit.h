/*
 * log_limit.h
 *	  Keeps a message that many rows could cause from filling the log.
 */
#ifndef WEFT_LOG_LIMIT_H
#define WEFT_LOG_LIMIT_H

#include "datatype/timestamp.h"

extern bool log_limit_passed(TimestampTz *reported);

#endif							/* WEFT_LOG_LIMIT_H */
