/*
 * deadline.c
 *	  Waits for other servers that end in time.
 *
 * A server may be frozen, out of reach without its connections being closed, or waiting for a standby.
 * libpqwalreceiver waits until it is interrupted, which the server's timer for locks does: it has no other use
 * while this process waits for another server.
 */
#include "postgres.h"

#include "deadline.h"
#include "miscadmin.h"
#include "utils/timeout.h"

/*
 * Calls a function, with its argument.  Returns false if it was interrupted because the deadline is over: then the
 * caller must raise an error, which cleans up what the function has left.
 */
bool
deadline_run(TimestampTz deadline, DeadlineTask task, void *argument)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool in_time = true;

	PG_TRY();
	{
		enable_timeout_at(LOCK_TIMEOUT, deadline);
		task(argument);
		disable_timeout(LOCK_TIMEOUT, true);
		if (get_timeout_indicator(LOCK_TIMEOUT, false))
			CHECK_FOR_INTERRUPTS();
	}
	PG_CATCH();
	{
		disable_timeout(LOCK_TIMEOUT, false);
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		in_time = false;
	}
	PG_END_TRY();
	return in_time;
}
