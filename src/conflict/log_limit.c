/*
 * log_limit.c
 *	  Keeps a message that many rows could cause from filling the log.
 */
#include "postgres.h"

#include "conflict/log_limit.h"
#include "utils/timestamp.h"

/* The same message is logged at most this often, in milliseconds. */
#define MIN_LOG_INTERVAL (60 * 1000)

/*
 * Returns whether a message that was last logged at *reported may be logged again, and
 * if so, notes that it is being logged now.
 */
bool
log_limit_passed(TimestampTz *reported)
{
	TimestampTz now = GetCurrentTimestamp();

	if (!TimestampDifferenceExceeds(*reported, now, MIN_LOG_INTERVAL))
		return false;
	*reported = now;
	return true;
}
