/*
 * switch_attempt.c
 *	  An attempt to switch over: what is stored of it, and what is not.
 *
 * The row in weft.switch_attempt is what an attempt that continues after a crash knows.  It
 * lags: whether the fence of the source is final is decided by the fence itself (fence.c), and
 * the phase follows.  Each transaction that writes here commits synchronously, whatever
 * synchronous_commit is.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "common/pg_prng.h"
#include "lib/stringinfo.h"
#include "switch/switch_attempt.h"
#include "utils/builtins.h"

static const char *const phase_names[] = {
	[PHASE_UNDONE] = "undone",
	[PHASE_BEGUN] = "begun",
	[PHASE_FINAL] = "final",
	[PHASE_OPENED] = "opened",
	[PHASE_DONE] = "done",
};

static SwitchPhase
phase_by_name(const char *name)
{
	for (int i = 0; i < lengthof(phase_names); i++)
		if (strcmp(phase_names[i], name) == 0)
			return i;
	elog(ERROR, "unknown phase of a switch-over: %s", name);
}

static char *
name_literal(const SwitchAttempt *attempt)
{
	return quote_literal_cstr(attempt->subscription->name);
}

static char *
nullable(const char *value)
{
	return value ? quote_literal_cstr(value) : "NULL";
}

static const char *
boolean(bool value)
{
	return value ? "true" : "false";
}

/*
 * Reads what is stored of the subscription's last attempt; false if there is none.  The
 * subscription may have been renamed since.
 */
bool
switch_attempt_load(SwitchAttempt *attempt)
{
	List	   *rows = side_rows(SIDE_HERE,
								 psprintf("SELECT attempt, back, phase, follow, slot, plugin, two_phase"
										  " FROM weft.switch_attempt WHERE subid = %u",
										  attempt->subscription->oid), 7);
	char	  **row;

	if (rows == NIL)
		return false;
	row = linitial(rows);
	attempt->id = pg_strtoint64(row[0]);
	attempt->back = row[1][0] == 't';
	attempt->phase = phase_by_name(row[2]);
	attempt->follow = row[3][0] == 't';
	attempt->slot = row[4];
	attempt->plugin = row[5];
	attempt->two_phase = row[6][0] == 't';
	return true;
}

void
switch_attempt_store(const SwitchAttempt *attempt)
{
	side_run_as_extension(psprintf("INSERT INTO weft.switch_attempt VALUES (%s, %u, " INT64_FORMAT
								   ", %s, %s, %s, %s, %s, %s)"
								   " ON CONFLICT (subid) DO UPDATE SET subscription = excluded.subscription,"
								   " attempt = excluded.attempt, back = excluded.back,"
								   " phase = excluded.phase, follow = excluded.follow,"
								   " slot = excluded.slot, plugin = excluded.plugin,"
								   " two_phase = excluded.two_phase",
								   name_literal(attempt), attempt->subscription->oid, attempt->id,
								   boolean(attempt->back),
								   quote_literal_cstr(phase_names[attempt->phase]),
								   boolean(attempt->follow), nullable(attempt->slot),
								   nullable(attempt->plugin), boolean(attempt->two_phase)));
	ForceSyncCommit();
}

/* A positive number that no other attempt has. */
int64
switch_attempt_new_id(void)
{
	uint64		random;

	if (!pg_strong_random(&random, sizeof(random)))
		elog(ERROR, "could not generate a random number");
	return (int64) (random >> 2) + 1;
}

void
switch_attempt_begin_step(const SwitchAttempt *attempt, int position, const char *step)
{
	side_run_as_extension(psprintf("INSERT INTO weft.switch_over_progress"
								   " VALUES (%s, " INT64_FORMAT ", %s, %d, %s, pg_catalog.clock_timestamp())",
								   name_literal(attempt), attempt->id,
								   attempt->back ? "'back'" : "'over'", position,
								   quote_literal_cstr(step)));
	ForceSyncCommit();
}

/* "result" is for the user; NULL if there is nothing to say. */
void
switch_attempt_end_step(const SwitchAttempt *attempt, int position, const char *result)
{
	side_run_as_extension(psprintf("UPDATE weft.switch_over_progress"
								   " SET ended_at = pg_catalog.clock_timestamp(), result = %s"
								   " WHERE subscription = %s AND attempt = " INT64_FORMAT " AND position = %d",
								   nullable(result), name_literal(attempt), attempt->id, position));
	ForceSyncCommit();
}

/*
 * Is "id" an attempt of the same subscription?  Those of subscriptions that do not exist any
 * more are like it: nobody can cancel them.
 */
bool
switch_attempt_is_own(const SwitchAttempt *attempt, int64 id)
{
	return side_value(SIDE_HERE,
					  psprintf("SELECT true FROM weft.switch_over_progress p WHERE attempt = " INT64_FORMAT
							   " AND (subscription = %s OR NOT EXISTS (SELECT FROM pg_catalog.pg_subscription s"
							   "  JOIN pg_catalog.pg_database d ON d.oid = s.subdbid"
							   "  WHERE d.datname = pg_catalog.current_database() AND s.subname = p.subscription)) LIMIT 1",
							   id, name_literal(attempt))) != NULL;
}

/* How many steps of the attempt have been recorded. */
int
switch_attempt_steps(const SwitchAttempt *attempt)
{
	char	   *last = side_value(SIDE_HERE,
								  psprintf("SELECT pg_catalog.max(position) FROM weft.switch_over_progress"
										   " WHERE subscription = %s AND attempt = " INT64_FORMAT,
										   name_literal(attempt), attempt->id));

	return last ? pg_strtoint32(last) : 0;
}

/* The name of the publication and the slot here that the other server follows. */
char *
switch_attempt_object_name(const SwitchAttempt *attempt)
{
	return psprintf("weft_switch_%u", attempt->subscription->oid);
}

/* The name of its subscription.  Several servers may have the same publisher. */
char *
switch_attempt_subscription_name(const SwitchAttempt *attempt)
{
	return psprintf("weft_switch_%u_" UINT64_FORMAT, attempt->subscription->oid,
					GetSystemIdentifier());
}
