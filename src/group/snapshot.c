/*
 * snapshot.c
 *	  A snapshot of a member that says exactly what the member had of every other one.
 *
 * J joins, and copies M.  J continues from M with the slot that is made here: the snapshot
 * that is exported with the slot contains everything that was committed on M before the
 * slot's first position, and nothing else.  M's transactions that came from another member X
 * are not sent through that slot (origin = none), so J must get them from X, starting at the
 * position that M had reached for X in that snapshot.
 *
 * That position is the progress of M's replication origin for X, if nothing is applied
 * between the snapshot and the reading of the progress.  Therefore M's apply worker for X is
 * ended, and a session S of J's on M takes the origin before the next worker can
 * (weft.member_hold).  An apply worker releases its origin only after its writers have
 * ended, so once S has the origin, nothing more will be applied with it.  The launcher
 * restarts the worker again and again.  That fails while S has the origin, and succeeds when
 * S ends, for whatever reason: if J dies, nothing has to be repaired on M.  If J becomes
 * unreachable, M ends S after a while (idle_session_timeout).
 *
 * The position belongs to the server that X was on then.  If X fails over before J connects to it, J must find that
 * (node_copy.c), so J takes over from M which server that was.  It has no position of M itself yet.
 *
 * X's slot for J was made before, and M has since applied what X had at that time
 * (weft.join_step_make_slots).  Therefore J's position is never before the slot's.
 *
 * M's schema stays as it is in the snapshot until J has it (ddl/schema_lock.c): a session K of
 * J's on M waits until all transactions with schema changes that are replicated have ended, and
 * keeps others waiting.  M's slot for J is made after that, so each schema change is either in the
 * schema that J copies, or comes through the slot.  One that M has applied from X is in the schema,
 * and one that it has not comes from X, after the position above.
 *
 * Deadlocks: the slot is not ready before all transactions that were running on M have
 * ended, and S keeps M from applying for that long.  None of these transactions waits for
 * J: those of the apply workers that J has ended were rolled back.  But a long one would keep
 * M from applying for a long time, so J waits for at most HOLD_LIMIT, lets go, and tries
 * again later.  A transaction with a schema change may wait for K meanwhile.
 */
#include "postgres.h"

#include "local_query.h"
#include "group/snapshot.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/wait_event.h"

/* How long to wait for each transaction that keeps the slot from becoming ready. */
#define HOLD_LIMIT 5000L		/* ms */

/* The pause between two attempts. */
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

/* Has nothing been applied since the origin was taken? */
static bool
still_holds(Hold *hold)
{
	char	   *position = remote_value(hold->remote,
										"SELECT pg_catalog.pg_replication_origin_session_progress(true)");

	if (position == NULL || hold->position == NULL)
		return position == hold->position;
	return strcmp(position, hold->position) == 0;
}

/* Has a statement on M failed only because it has waited too long for a lock? */
static bool
lock_not_available(MemoryContext context)
{
	if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
		PG_RE_THROW();
	MemoryContextSwitchTo(context);
	FlushErrorState();
	return true;
}

/*
 * Keeps M's schema as it is; returns NULL if transactions that change it do not end in time.
 * If J becomes unreachable, M ends the session after a while.
 */
static Remote *
keep_schema(const char *dsn, const char *node)
{
	Remote	   *remote = remote_connect(dsn, node, false);
	MemoryContext context = CurrentMemoryContext;
	bool		failed = false;

	remote_run(remote, "BEGIN");
	remote_run(remote, "SET LOCAL idle_in_transaction_session_timeout = '10min'");
	remote_run(remote, psprintf("SET LOCAL lock_timeout = %ld", HOLD_LIMIT));
	PG_TRY();
	{
		(void) remote_value(remote, "SELECT weft.member_keep_schema()");
	}
	PG_CATCH();
	{
		failed = lock_not_available(context);
	}
	PG_END_TRY();
	if (!failed)
		return remote;
	remote_close(remote);
	return NULL;
}

/*
 * Creates the slot, and with it the snapshot; returns false if transactions on M keep it
 * from becoming ready in time.
 */
static bool
create_slot(JoinSnapshot *snapshot, Remote *remote, const char *slot)
{
	char	   *plugin = remote_value(remote, "SELECT weft.output_plugin()");
	bool		failover = local_value("SELECT true FROM weft.node_group_entry WHERE failover") != NULL;
	char	   *command = psprintf("CREATE_REPLICATION_SLOT %s LOGICAL %s (%sSNAPSHOT 'export')",
								   quote_identifier(slot), quote_identifier(plugin),
								   failover ? "FAILOVER, " : "");
	MemoryContext context = CurrentMemoryContext;
	char	  **values = NULL;

	remote_run(remote, psprintf("SET lock_timeout = %ld", HOLD_LIMIT));
	PG_TRY();
	{
		values = remote_row(remote, command, 4);
	}
	PG_CATCH();
	{
		(void) lock_not_available(context);
	}
	PG_END_TRY();
	if (values == NULL)
		return false;
	snapshot->slot = remote;
	snapshot->name = values[2];
	snapshot->position = values[1];
	return true;
}

/* Notes on which server of a member the position that M has reached for it is (sql/19-node-failover.sql). */
static void
note_server(Hold *hold)
{
	char	   *member = quote_literal_cstr(hold->member);
	char	   *copy = remote_value(hold->remote,
									psprintf("SELECT weft.member_copy_of(%s)", member));

	if (copy != NULL)
		(void) local_value_of_weft(psprintf("SELECT weft.join_note_position(%s, %s)", member,
											quote_literal_cstr(copy)));
}

/* Stores a position, or NULL, for a member, in the transaction that copies. */
static void
store_position(const char *column, const char *position, const char *member)
{
	local_run(psprintf("UPDATE weft.node_entry SET %s = %s WHERE node_name = %s", column,
					   position ? quote_literal_cstr(position) : "NULL",
					   quote_literal_cstr(member)));
}

static bool
try_to_take(JoinSnapshot *snapshot, const char *dsn, const char *node,
			const char *slot, List *members)
{
	Remote	   *schema = keep_schema(dsn, node);
	Remote	   *remote;
	List	   *holds = NIL;
	bool		result;

	if (schema == NULL)
		return false;
	remote = remote_connect(dsn, node, true);
	foreach_ptr(LocalValue, member, members)
		holds = lappend(holds, take_hold(dsn, node, member[0]));
	result = create_slot(snapshot, remote, slot);
	foreach_ptr(Hold, hold, holds)
	{
		if (result && !still_holds(hold))
			ereport(ERROR,
					(errmsg("node \"%s\" has applied changes of node \"%s\" while it was held",
							node, hold->member)));
		if (result)
		{
			note_server(hold);
			store_position("start_lsn", hold->position, hold->member);
		}
		remote_close(hold->remote);
	}
	if (result)
	{
		store_position("copied_lsn", snapshot->position, node);
		snapshot->schema = schema;
	}
	else
	{
		remote_close(remote);
		remote_close(schema);
	}
	return result;
}

/* Waits until the next attempt. */
void
snapshot_pause(void)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, PAUSE, WAIT_EVENT_PG_SLEEP);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Creates the slot on M and takes the snapshot; stores in weft.node_entry, in the current
 * transaction, the position that M had reached for each other member.
 */
void
snapshot_take(JoinSnapshot *snapshot, const char *dsn, const char *node, const char *slot)
{
	List	   *members = local_rows("SELECT node_name FROM weft.node_entry n, weft.join_entry j "
									 "WHERE NOT is_local AND node_name <> target_node", 1);

	for (int i = 0; i < SNAPSHOT_ATTEMPTS; i++)
	{
		if (try_to_take(snapshot, dsn, node, slot, members))
			return;
		snapshot_pause();
	}
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not take a snapshot on node \"%s\"", node),
			 errdetail("Long-running transactions there kept its replication slot from becoming ready."),
			 errhint("End the long-running transactions there, then join again.")));
}

/* J has M's schema.  Fails if M's schema was not kept until now. */
void
snapshot_let_schema_go(JoinSnapshot *snapshot)
{
	remote_run(snapshot->schema, "COMMIT");
	remote_close(snapshot->schema);
	snapshot->schema = NULL;
}

/* Gives the snapshot and its slot up, so that others can be taken. */
void
snapshot_give_up(JoinSnapshot *snapshot, const char *slot)
{
	remote_run(snapshot->slot, psprintf("DROP_REPLICATION_SLOT %s", quote_identifier(slot)));
	remote_close(snapshot->slot);
	remote_close(snapshot->schema);
	memset(snapshot, 0, sizeof(JoinSnapshot));
}
