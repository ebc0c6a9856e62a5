/*
 * session_worker.c
 *	  Background workers that do something on behalf of a session, which waits for them.
 *
 * The session creates a segment of dynamic shared memory with what the worker needs, starts
 * the worker, and waits until it has ended; if the session is canceled or ends, it terminates
 * the worker.  The worker leaves an error in the segment, where the session finds it.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "verify/session_worker.h"

/*
 * Starts a worker, of which "name" and "type" are shown to users; it calls "function" with the
 * handle of the segment.  Fails if no more workers may run.
 */
BackgroundWorkerHandle *
session_worker_start(const char *name, const char *type, const char *function,
					 dsm_segment *segment)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *result;

	strlcpy(worker.bgw_name, name, BGW_MAXLEN);
	strlcpy(worker.bgw_type, type, BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "weft", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, function, BGW_MAXLEN);
	worker.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(segment));
	worker.bgw_notify_pid = MyProcPid;
	if (!RegisterDynamicBackgroundWorker(&worker, &result))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("no background worker is available"),
				 errhint("Increase \"max_worker_processes\".")));
	return result;
}

/* For PG_ENSURE_ERROR_CLEANUP() around the session's wait; the argument is the worker's handle. */
void
session_worker_terminate(int code, Datum handle)
{
	TerminateBackgroundWorker((BackgroundWorkerHandle *) DatumGetPointer(handle));
}

/* The worker begins with this; returns the segment.  Ends the process if the session is gone. */
void *
session_worker_attach(Datum main_arg)
{
	dsm_segment *segment;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	segment = dsm_attach(DatumGetUInt32(main_arg));
	if (segment == NULL)
		proc_exit(0);
	dsm_pin_mapping(segment);
	return dsm_segment_address(segment);
}

/* In PG_CATCH(): leaves the error to the session. */
void
session_worker_report(Failure *failure)
{
	MemoryContextSwitchTo(TopMemoryContext);
	failure_report(failure, CopyErrorData(), InvalidXLogRecPtr);
	FlushErrorState();
}
