/*
 * confirmation.c
 *	  Withholds what a publisher is told to be flushed until this server's standbys have it.
 *
 * A publisher never sends again what a subscriber has told it to be flushed.  If the subscriber
 * crashes, it has everything that it has told.  If a standby of the subscriber is promoted instead,
 * that is a crash, too, but at an earlier point of the WAL: at the end of what the standby has.
 * Therefore, with weft.confirm_after_standby_slots, the publisher is told of a position only when
 * the standbys of these slots have flushed everything that makes it true.
 *
 * Actors: a reporter, which is a leader or a table synchronization worker, and talks to a
 * publisher; the walsenders of standbys, which move the slots; the publisher.
 *
 * Whenever a reporter would tell a position R of the publisher, everything that is applied up to R
 * is in the local WAL, and flushed.  Whoever applied it, a writer, the server's apply loop or
 * one of its parallel workers, and whatever it was, rows, a prepared transaction, the state of a
 * table: it is before the local flush position at that moment, L.  Therefore the pair (R, L) is all
 * that has to be known of R: once the standbys have L, R may be told.  L may be further than
 * necessary, because other sessions write WAL, too; that costs a little time.
 *
 * Two pairs are enough, however many positions are claimed: the pair that is awaited, and the
 * newest one, which becomes the awaited one when the standbys have that.  L of the awaited pair
 * never moves; therefore it is reached by standbys that receive at all, however much is written.
 *
 * Nobody waits here, except for confirmation_wait().  A reporter looks at the slots when it
 * reports, and otherwise asks confirmation_withheld() when to look again, because the server wakes
 * nobody when a slot moves that is not in its own synchronized_standby_slots.  The longer a pair
 * has been awaited, the longer the pauses between two looks are: they add an eighth to the time
 * that the standbys take.
 *
 * What a publisher does besides removing WAL: a table synchronization worker drops its slot there when the
 * table is synchronized.  A standby that does not know that yet would look for the slot; see
 * copy/slots.c.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "confirmation.h"
#include "guc.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "storage/latch.h"
#include "utils/timestamp.h"
#include "wait_event.h"

/* Pauses between two looks at the slots: the limits, and the part of the time already waited. */
#define SHORTEST_DELAY 1L		/* ms */
#define LONGEST_DELAY 100L		/* ms */
#define DELAY_SHARE 8			/* one eighth */

typedef struct Claim
{
	XLogRecPtr	remote;			/* a position of the publisher */
	XLogRecPtr	local;			/* what is before it is applied up to here */
	TimestampTz since;
} Claim;

/* Static because a process has one publisher. */
static Claim awaited;			/* remote is invalid: nothing is withheld */
static Claim newest;
static XLogRecPtr confirmed;
static StandbySlotLack lack;	/* of the awaited claim, at the last look */
static TimestampTz look_at;		/* when the slots are looked at next */

/* What the log has been told. */
static StandbySlotLack logged;

static const char *
problem_text(StandbySlotProblem problem)
{
	switch (problem)
	{
		case STANDBY_SLOT_BEHIND:
			break;
		case STANDBY_SLOT_INACTIVE:
			return "no standby uses the slot";
		case STANDBY_SLOT_INVALIDATED:
			return "the slot has been invalidated";
		case STANDBY_SLOT_LOGICAL:
			return "the slot is logical";
		case STANDBY_SLOT_MISSING:
			return "the slot does not exist";
	}
	return "the standby is behind";
}

/* Logs what somebody must mend, once, and when that is done. */
static void
log_lack(void)
{
	bool		wrong = lack.slot[0] != '\0' && lack.problem != STANDBY_SLOT_BEHIND;

	if (!am_leader_apply_worker())
		return;
	if (wrong && (strcmp(logged.slot, lack.slot) != 0 || logged.problem != lack.problem))
	{
		logged = lack;
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" confirms nothing to its publisher because of replication slot \"%s\": %s",
						MySubscription->name, lack.slot, problem_text(lack.problem)),
				 errdetail("The slot is named in \"%s\". Changes are applied, and the publisher keeps its WAL.",
						   "weft.confirm_after_standby_slots"),
				 errhint("Start the standby, create the physical slot, or remove it from the parameter.")));
	}
	else if (XLogRecPtrIsInvalid(awaited.remote) && logged.slot[0] != '\0')
	{
		ereport(LOG,
				(errmsg("subscription \"%s\" confirms to its publisher again",
						MySubscription->name)));
		logged.slot[0] = '\0';
	}
}

/* Returns the milliseconds between two looks, if the awaited claim is as old as it is now. */
static long
delay_at(TimestampTz now)
{
	long		age = TimestampDifferenceMilliseconds(awaited.since, now);

	return Max(SHORTEST_DELAY, Min(age / DELAY_SHARE, LONGEST_DELAY));
}

/* Is it too early to look again?  If the clock was set back, it is not. */
static bool
too_early(TimestampTz now)
{
	return now < look_at && look_at - now <= LONGEST_DELAY * 1000;
}

/* Looks whether the standbys have what is awaited, unless it is too early for that. */
static void
look(void)
{
	TimestampTz now;
	XLogRecPtr	flushed;

	if (XLogRecPtrIsInvalid(awaited.remote))
		return;
	now = GetCurrentTimestamp();
	if (standby_slots_named() && too_early(now))
		return;
	flushed = standby_slots_flushed(awaited.local, &lack);
	if (flushed >= newest.local)
	{
		confirmed = newest.remote;
		awaited.remote = InvalidXLogRecPtr;
	}
	else if (flushed >= awaited.local)
	{
		confirmed = awaited.remote;
		awaited = newest;
	}
	look_at = TimestampTzPlusMilliseconds(now, delay_at(now));
	log_lack();
}

/*
 * Everything up to this position of the publisher is flushed here.  Returns up to where the
 * publisher may know that.
 */
XLogRecPtr
confirmation_claim(XLogRecPtr flushed)
{
	if (flushed > newest.remote)
	{
		newest.remote = flushed;
		if (!standby_slots_named() && XLogRecPtrIsInvalid(awaited.remote))
			confirmed = flushed;
		else
		{
			newest.local = GetFlushRecPtr(NULL);
			newest.since = GetCurrentTimestamp();
			if (XLogRecPtrIsInvalid(awaited.remote))
			{
				awaited = newest;
				look_at = 0;
			}
		}
	}
	look();
	return confirmed;
}

/* Is anything withheld?  If so, sets *delay to the milliseconds until the next look. */
bool
confirmation_withheld(long *delay)
{
	look();
	if (XLogRecPtrIsInvalid(awaited.remote))
		return false;
	*delay = Max(SHORTEST_DELAY,
				 Min(TimestampDifferenceMilliseconds(GetCurrentTimestamp(), look_at), LONGEST_DELAY));
	return true;
}

void
confirmation_status(ConfirmationStatus *status)
{
	status->confirmed = confirmed;
	status->withheld_since = XLogRecPtrIsInvalid(awaited.remote) ? 0 : awaited.since;
	status->lack = lack;
	if (status->withheld_since == 0)
		status->lack.slot[0] = '\0';
}

/*
 * Waits until the standbys have the local WAL up to a position, or for a number of milliseconds.
 * Returns whether they have it.
 */
bool
confirmation_wait(XLogRecPtr local, long limit)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), limit);
	StandbySlotLack unused;

	while (standby_slots_flushed(local, &unused) < local)
	{
		if (GetCurrentTimestamp() >= end)
			return false;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(limit, LONGEST_DELAY / 10), wait_event_id(WEFT_WAIT_STANDBY));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		guc_reload_if_requested();
	}
	return true;
}
