/*
 * guard.c
 *	  Makes an attempt; an error in it is either reported or a misspeculation.
 *
 * Which of the two it is depends on the stage of the attempt (attempt.c).  An error that is
 * reported goes to the leader, which throws it as its own, and ends the writer.
 */
#include "postgres.h"

#include "apply/column_filter.h"
#include "apply/guard.h"
#include "apply/local_transaction.h"
#include "apply/schema_wait.h"
#include "apply/server_apply.h"
#include "apply/writer.h"
#include "compat.h"
#include "conflict/remote_transaction.h"
#include "ddl/ddl_failure.h"
#include "fast/fast.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

/* Says which transaction an error is about where the server's code does not. */
static void
error_callback(void *arg)
{
	if (!server_apply_names_message())
		errcontext("applying remote transaction %u of subscription \"%s\", finished at " compat_lsn_format,
				   attempt_subject()->xid, MySubscription->name,
				   LSN_FORMAT_ARGS(attempt_subject()->final_lsn));
}

/* Ends this writer, and the leader with the error. */
pg_noreturn static void
fail(ErrorData *error)
{
	ddl_failure_record();
	failure_report(&writer.ring->failure, error, attempt_subject()->final_lsn);
	proc_exit(0);
}

/* Is an error the transaction's own?  "fast" tells whether the fast path has thrown it. */
static bool
is_its_own(const ErrorData *error, bool fast)
{
	switch (attempt_stage())
	{
		case ATTEMPT_SPECULATIVE:
			return false;
		case ATTEMPT_FINAL:
		case ATTEMPT_GENERAL:
			return !fast && error->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED &&
				!conflict_may_retry(error->sqlerrcode);
		case ATTEMPT_COMMITTED_TO:
			return true;
	}
	pg_unreachable();
}

/* An error has been thrown in the attempt.  Returns if it is a misspeculation. */
static void
handle_error(GuardReport report)
{
	ErrorData  *error;
	bool		fast = fast_in_progress();

	HOLD_INTERRUPTS();
	MemoryContextSwitchTo(ApplyContext);
	error = CopyErrorData();
	FlushErrorState();
	schema_wait_note_failed();
	local_transaction_roll_back();
	RESUME_INTERRUPTS();

	if (report != NULL)
		report(error);
	if (is_its_own(error, fast) && !schema_wait_after_error(error))
		fail(error);
	ereport(DEBUG1,
			(errmsg_internal("remote transaction %u was too early and is applied again: %s",
							 attempt_subject()->xid, error->message)));
	FreeErrorData(error);
}

/*
 * Makes an attempt, which commits what it has applied.  Returns whether it has succeeded;
 * if not, it has been rolled back.
 */
bool
guard_attempt(AttemptStage stage, GuardAttempt attempt, GuardReport report)
{
	MemoryContext old = CurrentMemoryContext;
	ErrorContextCallback callback;
	volatile bool result = false;

	attempt_begin(stage);
	callback.callback = error_callback;
	callback.previous = error_context_stack;
	local_transaction_set_origin();
	column_filter_begin();
	server_apply_attempt();
	conflict_attempt();
	ddl_failure_forget();
	fast_begin();

	PG_TRY();
	{
		error_context_stack = &callback;
		schema_wait_check_filters();
		result = attempt();
	}
	PG_CATCH();
	{
		error_context_stack = callback.previous;
		handle_error(report);
	}
	PG_END_TRY();

	error_context_stack = callback.previous;
	MemoryContextSwitchTo(old);
	attempt_end();

	/* An attempt that gave up on its own has not been rolled back. */
	if (!result)
		local_transaction_roll_back();
	return result;
}
