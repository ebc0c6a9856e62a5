/*
 * wait_event.c
 *	  Weft's wait events, as pg_stat_activity shows them.
 */
#include "postgres.h"

#include "utils/wait_event.h"
#include "wait_event.h"

static const char *const names[] = {
	[WEFT_WAIT_LEADER_MAIN] = "WeftLeaderMain",
	[WEFT_WAIT_LEADER_SPACE] = "WeftLeaderSpace",
	[WEFT_WAIT_LEADER_DRAIN] = "WeftLeaderDrain",
	[WEFT_WAIT_LEADER_CUT] = "WeftLeaderCut",
	[WEFT_WAIT_WRITER_MAIN] = "WeftWriterMain",
	[WEFT_WAIT_WRITER_DATA] = "WeftWriterData",
	[WEFT_WAIT_WRITER_DEPENDENCY] = "WeftWriterDependency",
	[WEFT_WAIT_WRITER_COMMIT_ORDER] = "WeftWriterCommitOrder",
	[WEFT_WAIT_WRITER_RETRY] = "WeftWriterRetry",
	[WEFT_WAIT_WRITER_STEP_BACK] = "WeftWriterStepBack",
	[WEFT_WAIT_WRITER_CLOCK] = "WeftWriterClock",
	[WEFT_WAIT_WRITER_STREAM] = "WeftWriterStream",
	[WEFT_WAIT_SCHEMA] = "WeftSchema",
	[WEFT_WAIT_SUBSCRIPTION] = "WeftSubscription",
	[WEFT_WAIT_CUT] = "WeftCut",
	[WEFT_WAIT_PG_DUMP] = "WeftPgDump",
	[WEFT_WAIT_COPY_HELPERS] = "WeftCopyHelpers",
	[WEFT_WAIT_COPY_DATA] = "WeftCopyData",
	[WEFT_WAIT_COMPARE_RATE] = "WeftCompareRate",
	[WEFT_WAIT_SEQUENCE] = "WeftSequence",
	[WEFT_WAIT_SWITCH] = "WeftSwitch",
	[WEFT_WAIT_GATE] = "WeftGate",
	[WEFT_WAIT_STANDBY] = "WeftStandby",
};

/*
 * Returns what WaitLatch() is given for one of Weft's wait events.  The server assigns
 * the number on the first use of a name.
 */
uint32
wait_event_id(WeftWaitEvent event)
{
	static uint32 cached[lengthof(names)];

	if (cached[event] == 0)
		cached[event] = WaitEventExtensionNew(names[event]);
	return cached[event];
}
