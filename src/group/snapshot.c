/*
 * snapshot.c
 *	  A snapshot of a member that says exactly what it had of every other one.
 *
 * J joins, and copies M.  From M it goes on with the slot that is made here: the
 * snapshot exported with it has all that was committed on M before the slot's
 * first position, and nothing else.  M's transactions that it had from another
 * member X are not sent through that slot (origin = none), so J must get them from
 * X, and begin where M stood towards X in that snapshot.
 *
 * That is the progress of M's replication origin for X, if nothing is applied
 * between the snapshot and looking at it.  So M's apply worker for X is ended, and
 * a session of ours takes the origin before the next one can
 * (weft.member_hold).  An apply worker gives its origin up only when its writers
 * have ended; whoever has the origin knows that nothing more will be applied with
 * it.  The launcher starts the worker again and again, which fails as long as we
 * hold the origin, and succeeds when our session ends, for whatever reason: if J
 * dies, nothing has to be put right on M.  If J cannot be reached any more, M ends
 * the session itself after a while (idle_session_timeout).
 *
 * X's slot for J was made before, and M has applied since what X had then
 * (weft.join_step_make_slots): so J's position is never in front of the slot's.
 *
 * The slot is not ready before all transactions that were running on M have
 * ended.  Apply waits that long, so there is a limit to it, after which we let go
 * and try again later.  Nobody that we wait for waits for us: transactions of apply
 * workers were rolled back when these ended.
 */
#include "postgres.h"

#include "group/local_query.h"
#include "group/snapshot.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/wait_event.h"

/* How long each transaction is waited for that is in the way of the slot. */
#define HOLD_LIMIT 5000L		/* ms */

/* How often it is tried, and the pause between. */
#define ATTEMPTS 10
#define PAUSE 3000L				/* ms */

typedef struct Hold
{
	Remote	   *remote;			/* the session on M that has the origin */
	char	   *member;			/* X */
	char	   *position;		/* NULL if nothing was ever applied */
} Hold;

static Hold *
take_hold(const char *dsn, const char *node, const char *member)
{
	Hold	   *result = palloc0(sizeof(Hold));

	result->member = pstrdup(member);
	result->remote = remote_connect(dsn, node, false);
	remote_run(result->remote, "SET idle_session_timeout = '1min'");
	result->position = remote_value(result->remote,
									psprintf("SELECT weft.member_hold(%s)",
											 quote_literal_cstr(member)));
	return result;
}

/* Has nothing been applied since? */
static bool
still_holds(Hold *hold)
{
	char	   *position = remote_value(hold->remote,
										"SELECT pg_catalog.pg_replication_origin_session_progress(true)");

	if (position == NULL || hold->position == NULL)
		return position == hold->position;
	return strcmp(position, hold->position) == 0;
}

/*
 * Makes the slot, and with it the snapshot; returns false if transactions on M do
 * not let it become ready in time.
 */
static bool
create_slot(JoinSnapshot *snapshot, Remote *remote, const char *slot)
{
	char	   *plugin = remote_value(remote, "SELECT weft.output_plugin()");
	char	   *command = psprintf("CREATE_REPLICATION_SLOT %s LOGICAL %s (SNAPSHOT 'export')",
								   quote_identifier(slot), quote_identifier(plugin));
	MemoryContext context = CurrentMemoryContext;
	char	  **values = NULL;

	remote_run(remote, psprintf("SET lock_timeout = %ld", HOLD_LIMIT));
	PG_TRY();
	{
		values = remote_row(remote, command, 4);
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	if (values == NULL)
		return false;
	snapshot->slot = remote;
	snapshot->name = values[2];
	return true;
}

/* Keeps where M stands for the time after the copy, in the same transaction. */
static void
store_position(Hold *hold)
{
	local_run(psprintf("UPDATE weft.node_entry SET start_lsn = %s WHERE node_name = %s",
					   hold->position ? quote_literal_cstr(hold->position) : "NULL",
					   quote_literal_cstr(hold->member)));
}

static bool
try_to_take(JoinSnapshot *snapshot, const char *dsn, const char *node,
			const char *slot, List *members)
{
	Remote	   *remote = remote_connect(dsn, node, true);
	List	   *holds = NIL;
	bool		result;

	foreach_ptr(LocalValue, member, members)
		holds = lappend(holds, take_hold(dsn, node, member[0]));
	result = create_slot(snapshot, remote, slot);
	foreach_ptr(Hold, hold, holds)
	{
		if (result && !still_holds(hold))
			ereport(ERROR,
					(errmsg("node \"%s\" has applied changes of node \"%s\" while it was held",
							node, hold->member)));
		remote_close(hold->remote);
		if (result)
			store_position(hold);
	}
	if (!result)
		remote_close(remote);
	return result;
}

/*
 * Makes the slot on M and takes the snapshot; stores in weft.node_entry, in the
 * transaction that is in progress, where M stood towards each other member.
 */
void
snapshot_take(JoinSnapshot *snapshot, const char *dsn, const char *node, const char *slot)
{
	List	   *members = local_rows("SELECT node_name FROM weft.node_entry n, weft.join_entry j "
									 "WHERE NOT is_local AND node_name <> target_node", 1);

	for (int i = 0; i < ATTEMPTS; i++)
	{
		if (try_to_take(snapshot, dsn, node, slot, members))
			return;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 PAUSE, WAIT_EVENT_PG_SLEEP);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not take a snapshot on node \"%s\"", node),
			 errdetail("Long-running transactions there kept its replication slot from becoming ready."),
			 errhint("End the long-running transactions there, then join again.")));
}
