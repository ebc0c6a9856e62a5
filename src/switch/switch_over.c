/*
 * switch_over.c
 *	  Drives the steps of a switch-over, and undoes or completes what has failed.
 *
 * The procedures in sql/11-switch.sql call switch_over_begin() once, and switch_over_step()
 * until it returns false, and commit after each call.  Each step runs in a subtransaction, so
 * that its error can be dealt with here; steps.c has the steps, fence.c says why there are
 * never two servers that accept writes.
 *
 * What becomes of an error depends on the phase (switch_attempt.h):
 *
 * - BEGUN: the fence of the source is looked at.  If it is final, the answer has been lost, and the
 *	 switch-over goes on.  Otherwise it is undone: the source is opened, what was prepared is
 *	 removed, the phase is UNDONE, and the error is thrown.  The target stays closed.
 * - FINAL, OPENED: the step is tried again, with a new session if the connection was lost;
 *	 after that the error is thrown.  Calling the procedure again goes on with the step.
 *
 * If the process dies, or undoing fails, the session on the other server ends and with it its
 * provisional fence.  The next call finds the phase BEGUN, and does the same as above before
 * it begins anew.  It waits for the lock on both sides first, so that whatever the
 * session of a dead caller was executing is over.
 *
 * A row in the phase BEGUN is committed before anything is done on either side; what a later
 * phase says has been done before that phase is committed.
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "miscadmin.h"
#include "pinned_settings.h"
#include "replication/slot.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "switch/fence.h"
#include "switch/follower.h"
#include "switch/link.h"
#include "switch/switch_over.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timeout.h"
#include "verify/publisher.h"
#include "wait_event.h"

/* How long to wait for the lock there, in ms: for a server to notice that a caller is gone. */
#define LOCK_TIMEOUT 30000

/* Between two attempts to lock tables, or to connect, in ms. */
#define RETRY_PAUSE 200

/* How often to look whether the postmaster is alive, in ms. */
#define POSTMASTER_INTERVAL 1000

/* How often a step after the point of no return is tried again. */
#define MAX_RETRIES 25

typedef struct SwitchOver
{
	MemoryContext context;		/* of all of this */
	SwitchCommand command;
	SwitchAttempt attempt;
	SwitchOptions options;
	SwitchStep	step;
	int			position;		/* of the step, in the attempt's list */
	int			retries;		/* of the step */
	LocalTransactionId transaction; /* of the last part of the work */
	TimestampTz limit;			/* of the step, if writes pause in it */
	int			lock_timeout;	/* of the lock on the other server, in ms */
	bool		undoing;
	ErrorData  *error;			/* that is to be thrown in the end, or NULL */
} SwitchOver;

/* Of the procedure that this session is running. */
static SwitchOver *current = NULL;

static const char *
procedure_name(bool back)
{
	return back ? "weft.switch_back" : "weft.switch_over";
}

static void
open_link(SwitchOver *s)
{
	if (!link_is_open())
		link_open(s->attempt.subscription, s->options.connection,
				  TimestampTzPlusMilliseconds(GetCurrentTimestamp(), s->lock_timeout));
}

/* Begins a step, or the next one that is needed, if any. */
static void
enter_step(SwitchOver *s, SwitchStep step)
{
	while (step < STEP_END && !steps_is_needed(&s->attempt, &s->options, step))
		step++;
	s->step = step;
	s->retries = 0;
	s->options.repeated = false;
	if (step == STEP_DISARM && s->command != SWITCH_CANCEL)
	{
		s->attempt.phase = PHASE_DONE;
		switch_attempt_store(&s->attempt);
	}
	if (step < STEP_END)
		switch_attempt_begin_step(&s->attempt, ++s->position, steps_name(step));
}

/*
 * The fence of the source is final, if it is; sees to it that it stays so.  Needs the lock on
 * both sides.
 */
static bool
is_final(SwitchOver *s)
{
	return fence_state(ATTEMPT_SOURCE(&s->attempt)) == s->attempt.id &&
		fence_make_final(&s->attempt);
}

/* Undoes an attempt in the phase BEGUN. */
static void
undo(SwitchOver *s)
{
	fence_reopen(&s->attempt);
	follower_undo(&s->attempt);
	s->attempt.phase = PHASE_UNDONE;
	switch_attempt_store(&s->attempt);
}

/* Returns the GUC nest level that ends the effect. */
static int
pin_settings(void)
{
	int			nest = NewGUCNestLevel();

	pinned_settings_set_local();
	(void) set_config_option("client_min_messages", "warning", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	return nest;
}

/* Called by a timer: ends this process as if somebody had asked for it. */
static void
look_for_postmaster(void)
{
	if (PostmasterIsAlive())
		return;
	ProcDiePending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

/*
 * Not everything that the server does in a step ends by itself when the postmaster is
 * gone: creating a slot may wait for WAL that nobody flushes any more.  The caller would keep
 * its locks on both sides, and this server could not start again.
 */
static TimeoutId
watch_postmaster(void)
{
	static TimeoutId timer = MAX_TIMEOUTS;

	if (timer == MAX_TIMEOUTS)
		timer = RegisterTimeout(USER_TIMEOUT, look_for_postmaster);
	enable_timeout_every(timer,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), POSTMASTER_INTERVAL),
						 POSTMASTER_INTERVAL);
	return timer;
}

/* Runs a part of the work in a subtransaction; returns its error, or NULL. */
static ErrorData *
guarded(SwitchOver *s, bool (*work) (SwitchOver *s), bool *result)
{
	MemoryContext old = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	SwitchPhase phase = s->attempt.phase;
	ErrorData  *volatile error = NULL;
	TimeoutId	timer = watch_postmaster();

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(old);
	PG_TRY();
	{
		int			nest = pin_settings();

		*result = work(s);
		AtEOXact_GUC(true, nest);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(s->context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		s->attempt.phase = phase;

		/* Creating or advancing a slot expects the process to do this. */
		if (MyReplicationSlot != NULL)
			ReplicationSlotRelease();
		ReplicationSlotCleanup(false);
	}
	PG_END_TRY();
	disable_timeout(timer, false);
	MemoryContextSwitchTo(old);
	CurrentResourceOwner = owner;
	return error;
}

/* An injection point at the beginning or end of the step; its name contains the step's. */
static void
pass_point(SwitchOver *s, const char *suffix)
{
	const char *point pg_attribute_unused() =
		psprintf("weft-switch-%s%s", steps_name(s->step), suffix);

	compat_injection_point(point);
}

/* Is this a step for which writes pause? */
static bool
must_be_limited(const SwitchOver *s)
{
	return s->step >= STEP_FENCE_SOURCE && s->step < STEP_FINAL;
}

/*
 * When is a step to be canceled?  While the fence is closed, max_pause is not known to have
 * begun.  The step "drain" looks at the deadline itself, and its error tells more; but
 * a stalled connection may keep it from looking.
 */
static TimestampTz
limit_of_step(const SwitchOver *s)
{
	if (s->step == STEP_FENCE_SOURCE)
		return TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
										   s->options.max_pause + INT64CONST(2) * s->options.lock_timeout);
	return s->step == STEP_DRAIN ?
		TimestampTzPlusMilliseconds(s->options.deadline, 1000) : s->options.deadline;
}

/*
 * Runs such a step; it is canceled when max_pause is over: it may wait for locks or for a
 * stalled connection, or count for long.  A statement_timeout of the caller stays as it is.
 */
static bool
run_limited(SwitchOver *s, char **result)
{
	TimestampTz deadline = limit_of_step(s);
	TimestampTz before = get_timeout_active(STATEMENT_TIMEOUT) ?
		get_timeout_finish_time(STATEMENT_TIMEOUT) : 0;
	bool		replace = before == 0 || before > deadline;
	bool		again;

	s->limit = deadline;
	if (replace)
		enable_timeout_after(STATEMENT_TIMEOUT,
							 Max(TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline), 1));
	PG_TRY();
	{
		again = steps_run(&s->attempt, &s->options, s->step, result);
	}
	PG_FINALLY();
	{
		/*
		 * A cancel that comes too late must not hit what follows, such as
		 * undoing.  If the caller's own timeout has ended the step, that is
		 * over.
		 */
		if (replace)
		{
			if (get_timeout_indicator(STATEMENT_TIMEOUT, true))
				QueryCancelPending = false;
			if (before == 0)
				disable_timeout(STATEMENT_TIMEOUT, false);
			else
				enable_timeout_at(STATEMENT_TIMEOUT, before);
		}
	}
	PG_END_TRY();
	return again;
}

/* Runs the current step once; returns true if it must be called again. */
static bool
run_step(SwitchOver *s)
{
	char	   *result = NULL;
	bool		again;

	pass_point(s, "");
	if (steps_needs_link(&s->attempt, s->step))
		open_link(s);
	again = must_be_limited(s) ? run_limited(s, &result) :
		steps_run(&s->attempt, &s->options, s->step, &result);
	pass_point(s, "-done");
	if (again)
		return true;
	switch_attempt_end_step(&s->attempt, s->position, result);
	return false;
}

/* After an error: returns true if the source's fence was final, false if it is undone. */
static bool
look_and_undo(SwitchOver *s)
{
	/* The session may be in the middle of something, or have lost its lock. */
	link_close();
	open_link(s);
	if (is_final(s))
		return true;
	undo(s);
	return false;
}

static void
pause_before_retry(void)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 RETRY_PAUSE, wait_event_id(WEFT_WAIT_SWITCH));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

static bool
is_about_locks(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
		error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED;
}

/* The end: releases everything, and throws the error if there is one. */
static void
finish(SwitchOver *s)
{
	ErrorData  *error = s->error;
	const char *hint = NULL;

	link_close_all();
	current = NULL;
	if (error == NULL)
		return;
	if (s->attempt.phase == PHASE_BEGUN)
		hint = psprintf("The attempt could not be undone either: call %s again, which undoes or completes it.  The old server accepts writes unless its fence is final.",
						procedure_name(s->attempt.back));
	else if (s->attempt.phase == PHASE_FINAL || s->attempt.phase == PHASE_OPENED)
		hint = psprintf("The switch-over has passed the point of no return: call %s again to complete it.",
						procedure_name(s->attempt.back));
	else if (s->command == SWITCH_OVER)
		hint = "The attempt has been undone.  The publisher accepts writes; the tables here do not until a switch-over succeeds, or weft.switch_over_cancel is called.";
	else if (s->command == SWITCH_BACK)
		hint = "The attempt has been undone.  This server still accepts writes.";
	if (hint != NULL)
		error->hint = error->hint ? psprintf("%s  %s", error->hint, hint) : pstrdup(hint);
	ReThrowError(error);
}

/* Decides what becomes of an error of the current step.  Returns false at the end. */
static bool
handle_error(SwitchOver *s, ErrorData *error)
{
	bool		lost = !link_is_open();

	if (s->step == STEP_DISARM)
	{
		/* Triggers of an open fence do no harm. */
		switch_attempt_end_step(&s->attempt, s->position, "some triggers are left");
		s->step = STEP_END;
		return true;
	}
	if (is_about_locks(error) && GetCurrentTimestamp() < s->options.deadline &&
		s->step != STEP_DRAIN)
	{
		pause_before_retry();
		return true;
	}
	if (s->attempt.phase == PHASE_BEGUN)
	{
		/* The step "drain" throws its own error, with a detail. */
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED && must_be_limited(s) &&
			error->detail == NULL && GetCurrentTimestamp() >= s->limit)
			error->message = MemoryContextStrdup(s->context,
												 psprintf("step \"%s\" did not end within \"max_pause\"",
														  steps_name(s->step)));
		s->error = error;
		s->undoing = true;
		return true;
	}
	if (lost && s->retries++ < MAX_RETRIES && error->sqlerrcode != ERRCODE_QUERY_CANCELED)
	{
		pause_before_retry();
		return true;
	}
	s->error = error;
	return false;
}

/* Undoes what has failed, or finds that it has not.  Returns false at the end. */
static bool
go_back(SwitchOver *s)
{
	bool		final;
	ErrorData  *error = guarded(s, look_and_undo, &final);

	s->undoing = false;
	if (error != NULL)
	{
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("could not undo the switch-over of subscription \"%s\": %s",
						s->attempt.subscription->name, error->message)));
		return false;
	}
	if (!final)
	{
		/* Throw the error after the caller has committed. */
		s->step = STEP_END;
		return true;
	}
	s->error = NULL;
	s->attempt.phase = PHASE_FINAL;
	switch_attempt_store(&s->attempt);
	enter_step(s, STEP_STOP);
	return true;
}

/*
 * Does the next part of the work.  Returns false if it was the last one; until then, the
 * caller commits and calls again.  Throws only when nothing is left to be done about it.
 */
bool
switch_over_step(void)
{
	SwitchOver *s = current;
	ErrorData  *error;
	bool		again;
	bool		more = true;

	if (s == NULL || !link_holds_lock_here())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("no switch-over is in progress in this session")));
	if (s->transaction == MyProc->vxid.lxid)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("the last part of the switch-over is not committed"),
				 errhint("Call weft.switch_over or weft.switch_back, which commit after each part.")));
	s->transaction = MyProc->vxid.lxid;
	if (s->undoing)
		more = go_back(s);
	else if (s->step == STEP_END)
		more = false;
	else if ((error = guarded(s, run_step, &again)) != NULL)
		more = handle_error(s, error);
	else if (again)
		s->options.repeated = true;
	else
		enter_step(s, s->step + 1);
	if (!more)
		finish(s);
	return more;
}

/* Where does an attempt that has passed the point of no return go on? */
static SwitchStep
step_after(SwitchPhase phase)
{
	return phase == PHASE_FINAL ? STEP_STOP : STEP_REMOVE;
}

/* Which side accepts writes, as the last attempt left it? */
static SwitchSide
active_side(const SwitchAttempt *attempt)
{
	return (attempt->phase == PHASE_DONE) == !attempt->back ? SIDE_HERE : SIDE_THERE;
}

/* Prepares a new attempt; "last" is the last one, or NULL. */
static void
begin_new(SwitchOver *s, const SwitchAttempt *last)
{
	SwitchAttempt *attempt = &s->attempt;
	SwitchSide	active = last ? active_side(last) : SIDE_THERE;
	bool		back = s->command == SWITCH_BACK;

	if (active != (back ? SIDE_HERE : SIDE_THERE))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 back ? errmsg("subscription \"%s\" has not been switched over", attempt->subscription->name) :
				 errmsg("subscription \"%s\" has already been switched over", attempt->subscription->name)));
	if (back && !last->follow)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no way back for subscription \"%s\"", attempt->subscription->name),
				 errdetail("The old server does not follow this one.")));
	attempt->id = switch_attempt_new_id();
	attempt->back = back;
	attempt->phase = PHASE_BEGUN;
	attempt->follow = back || s->options.reverse != NULL;
	open_link(s);
	if (back)
		follower_check_slot(attempt);
	else
		follower_read_slot(attempt);
	switch_attempt_store(attempt);
	enter_step(s, STEP_PLAN);
}

/* Deals with what the last attempt has left; returns whether it is this one that goes on. */
static bool
settle_last(SwitchOver *s)
{
	SwitchAttempt *attempt = &s->attempt;

	if (attempt->phase == PHASE_BEGUN)
	{
		open_link(s);
		if (is_final(s))
			attempt->phase = PHASE_FINAL;
		else
			undo(s);
	}
	if (attempt->phase != PHASE_FINAL && attempt->phase != PHASE_OPENED)
		return false;
	if (s->command != (attempt->back ? SWITCH_BACK : SWITCH_OVER))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a switch-over of subscription \"%s\" is incomplete, and cannot be undone any more",
						attempt->subscription->name),
				 errhint("Complete it with %s.", procedure_name(attempt->back))));
	switch_attempt_store(attempt);
	s->position = switch_attempt_steps(attempt);
	enter_step(s, step_after(attempt->phase));
	return true;
}

/* Opens the target of an attempt to switch over that was undone. */
static void
begin_cancel(SwitchOver *s, bool any)
{
	if (!any || s->attempt.phase == PHASE_DONE)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no switch-over of subscription \"%s\" that could be canceled",
						s->attempt.subscription->name)));
	s->step = STEP_END;
	if (active_side(&s->attempt) == SIDE_HERE)
		return;
	steps_check_target(&s->attempt);
	fence_open(SIDE_HERE);
	s->position = switch_attempt_steps(&s->attempt);
	enter_step(s, STEP_DISARM);
}

static SwitchOver *
new_switch_over(const char *subscription, SwitchCommand command, const SwitchOptions *options)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "weft switch-over",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	SwitchOver *s = palloc0(sizeof(SwitchOver));

	s->context = context;
	s->command = command;
	s->options = *options;
	s->options.reverse = options->reverse ? pstrdup(options->reverse) : NULL;
	s->options.connection = options->connection ? pstrdup(options->connection) : NULL;
	s->options.verify = pstrdup(options->verify);
	s->attempt.subscription = publisher_subscription(subscription);
	MemoryContextSwitchTo(old);
	return s;
}

/*
 * Begins, or goes on with, a switch-over of a subscription that the caller owns.  "timeout" is
 * for everything before the pause, in ms.  The strings of the options are copied.
 */
void
switch_over_begin(const char *subscription, SwitchCommand command,
				  const SwitchOptions *options, int timeout)
{
	static MemoryContext last_context = NULL;
	SwitchOver *s;
	MemoryContext old;
	int			nest = pin_settings();
	bool		any;

	if (current != NULL && link_holds_lock_here())
		elog(ERROR, "a switch-over is already in progress in this session");
	if (last_context != NULL)
		MemoryContextDelete(last_context);
	last_context = NULL;
	current = NULL;
	s = new_switch_over(subscription, command, options);
	last_context = s->context;
	s->options.deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout);
	s->lock_timeout = Min(LOCK_TIMEOUT, timeout);

	if (!link_lock_here())
	{
		char	   *holder = side_value(SIDE_HERE, link_lock_holder_query());

		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("another switch-over is in progress in this database"),
				 holder ? errdetail_internal("%s", holder) : 0,
				 errhint("See \"weft.switch_over_progress\".  If its client is gone, or it is none, end that session with pg_terminate_backend.")));
	}
	old = MemoryContextSwitchTo(s->context);
	any = switch_attempt_load(&s->attempt);
	if (!any || !settle_last(s))
	{
		SwitchAttempt last = s->attempt;

		if (command == SWITCH_CANCEL)
			begin_cancel(s, any);
		else
			begin_new(s, any ? &last : NULL);
	}
	MemoryContextSwitchTo(old);
	AtEOXact_GUC(true, nest);
	s->transaction = MyProc->vxid.lxid;
	current = s;
}
