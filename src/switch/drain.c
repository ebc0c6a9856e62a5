/*
 * drain.c
 *	  Waits until the target has what the source had.
 *
 * If this server is the target, Weft knows how far it is.  If the other one is, its slot here
 * tells: a position is confirmed when everything before it is applied and flushed there.
 */
#include "postgres.h"

#include "applied_position.h"
#include "catalog/pg_subscription_rel.h"
#include "compat.h"
#include "last_error.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "switch/drain.h"
#include "switch/link.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/pg_lsn.h"
#include "wait_event.h"
#include "wal_end.h"

/* Time between two looks, in milliseconds. */
#define POLL_INTERVAL 5

/* Between two writes that make the source flush and send the end of its WAL, in ms. */
#define NUDGE_INTERVAL 200

/*
 * Everything that has been committed is before this: the transaction that closed the fence,
 * or another one, has committed synchronously.
 */
static const char flushed[] = "SELECT pg_catalog.pg_current_wal_flush_lsn()";

/* Makes records that follow a flush, and are not flushed yet, reach the target. */
static void
nudge(SwitchSide source)
{
	if (source == SIDE_HERE)
		(void) side_value(source, "SELECT pg_catalog.pg_logical_emit_message(false, 'weft', '', true)");
	else
		(void) side_value(source, WAL_END_FLUSH_QUERY);
}

static XLogRecPtr
reached(const SwitchAttempt *attempt)
{
	if (!attempt->back)
	{
		AcceptInvalidationMessages();
		if (compat_subscription_tables(attempt->subscription->oid, true) != NIL)
			return InvalidXLogRecPtr;
		return applied_position(attempt->subscription->oid);
	}
	return side_lsn(side_value(SIDE_HERE,
							   psprintf("SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
										quote_literal_cstr(switch_attempt_object_name(attempt)))));
}

/*
 * Returns the position that the source's WAL has now, once the target has applied everything
 * before it.  Fails if that takes until the deadline.
 */
XLogRecPtr
drain(const SwitchAttempt *attempt, TimestampTz deadline)
{
	SwitchSide	source = ATTEMPT_SOURCE(attempt);
	XLogRecPtr	target = side_lsn(side_value(source, flushed));
	TimestampTz next_nudge = GetCurrentTimestamp();
	XLogRecPtr	lsn;

	while ((lsn = reached(attempt)) < target)
	{
		TimestampTz now = GetCurrentTimestamp();

		if (now >= deadline)
			ereport(ERROR,
					(errcode(ERRCODE_QUERY_CANCELED),
					 errmsg("timed out while waiting for the changes of subscription \"%s\"",
							attempt->subscription->name),
					 errdetail("Applied up to LSN " compat_lsn_format " of " compat_lsn_format ".%s",
							   LSN_FORMAT_ARGS(lsn), LSN_FORMAT_ARGS(target),
							   attempt->back ? "" : last_error_describe(attempt->subscription->oid))));
		if (now >= next_nudge)
		{
			nudge(source);
			next_nudge = TimestampTzPlusMilliseconds(now, NUDGE_INTERVAL);
		}
		link_ping();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 POLL_INTERVAL, wait_event_id(WEFT_WAIT_SWITCH));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return target;
}
