/*
 * follower.c
 *	  What makes the source follow the target, and what is left of the way before.
 *
 * "Over", the other server follows this one with a subscription of its own, which is created
 * for it together with a publication and a slot here.  This server's subscription is kept, disabled and
 * without a slot: a slot would retain WAL there for nothing.  "Back", the slot is created
 * again, and the subscription continues; the other server's subscription, with publication and slot,
 * is dropped.  So there is never more than one direction in which anything is replicated, and
 * no change can return to where it came from, even from version 15, which cannot filter by
 * origin.
 *
 * A slot is created on the target while only replication may write there, and is advanced
 * (follower_position) after the last change that comes from the source, and before the target
 * is opened.  The server reads all WAL in between for that; follower_advance() does most of it
 * before writes pause.  Hence what it passes on is what users write on the target, from their first
 * transaction on.
 *
 * Everything may be repeated.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_replication_origin.h"
#include "compat.h"
#include "connection_string.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "replication/slot.h"
#include "replication/worker_internal.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/standby.h"
#include "switch/fence.h"
#include "switch/follower.h"
#include "switch/link.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "wait_event.h"

#define POLL_INTERVAL 10

/* Versions of the other server from which on it knows these. */
#define VERSION_WITH_ORIGIN 160000
#define VERSION_WITH_FAILOVER 170000

/* Learns what a way back needs to know of the subscription's slot. */
void
follower_read_slot(SwitchAttempt *attempt)
{
	List	   *rows;

	if (attempt->subscription->slotname == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" has no replication slot",
						attempt->subscription->name)));
	attempt->slot = attempt->subscription->slotname;
	rows = side_rows(SIDE_THERE,
					 psprintf("SELECT plugin, two_phase FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
							  quote_literal_cstr(attempt->slot)), 2);
	if (rows == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("replication slot \"%s\" does not exist on the publisher of subscription \"%s\"",
						attempt->slot, attempt->subscription->name)));
	attempt->plugin = ((char **) linitial(rows))[0];
	attempt->two_phase = ((char **) linitial(rows))[1][0] == 't';
}

/*
 * Back: makes sure that the slot that will be created has no namesake, which this attempt would
 * drop.  Whatever an earlier one has left is gone by now.
 */
void
follower_check_slot(const SwitchAttempt *attempt)
{
	if (side_value(SIDE_THERE,
				   psprintf("SELECT true FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
							quote_literal_cstr(attempt->slot))) == NULL)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_DUPLICATE_OBJECT),
			 errmsg("replication slot \"%s\" of the publisher of subscription \"%s\" belongs to somebody else",
					attempt->slot, attempt->subscription->name),
			 errdetail("The slot of the subscription was dropped by the switch-over, and is to be created again."),
			 errhint("Drop that slot, or give it another name.")));
}

/* The columns of all published tables there: [[schema, table, column], ...], as jsonb. */
static char *
columns_there(const SwitchAttempt *attempt)
{
	char	   *columns =
		link_value(psprintf("SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(n.nspname, c.relname, a.attname))"
							" FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
							" JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
							" WHERE c.oid IN (%s)", fence_base_tables(attempt, SIDE_THERE)));

	return columns ? columns : "[]";
}

/*
 * Over: publishes here the tables of the subscription.  Columns that the other server does not
 * have are left out.
 */
void
follower_publish(const SwitchAttempt *attempt)
{
	const char *name = quote_identifier(switch_attempt_object_name(attempt));
	char	   *tables;

	if (attempt->back)
		return;
	tables = side_value(SIDE_HERE,
						psprintf("SELECT pg_catalog.string_agg(t.name || CASE WHEN t.complete THEN '' ELSE ' (' || t.columns || ')' END, ', ')"
								 " FROM (SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname) AS name,"
								 "  pg_catalog.bool_and(there.found) AS complete,"
								 "  pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY a.attnum) FILTER (WHERE there.found) AS columns"
								 "  FROM (%s) base JOIN pg_catalog.pg_class c ON c.oid = base.oid"
								 "  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
								 "  JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
								 "   AND NOT a.attisdropped AND a.attgenerated = ''"
								 "  CROSS JOIN LATERAL (SELECT %s::jsonb @> pg_catalog.jsonb_build_array("
								 "   pg_catalog.jsonb_build_array(n.nspname, c.relname, a.attname)) AS found) there"
								 "  GROUP BY 1) t",
								 fence_base_tables(attempt, SIDE_HERE),
								 quote_literal_cstr(columns_there(attempt))));
	side_run(SIDE_HERE, psprintf("DROP PUBLICATION IF EXISTS %s", name));
	side_run(SIDE_HERE, psprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (publish_via_partition_root = true)",
								 name, tables));
}

static const char *
new_slot(const SwitchAttempt *attempt)
{
	return attempt->back ? attempt->slot : switch_attempt_object_name(attempt);
}

/* Drops a slot; fails if it is in use until the deadline. */
static void
drop_slot(SwitchSide side, const char *slot, TimestampTz deadline)
{
	char	   *active;
	char	   *name = quote_literal_cstr(slot);

	for (;;)
	{
		active = side_value(side,
							psprintf("SELECT active FROM pg_catalog.pg_replication_slots"
									 " WHERE slot_name = %s AND database = pg_catalog.current_database()", name));
		if (active == NULL)
			return;
		if (active[0] == 'f')
			break;
		if (GetCurrentTimestamp() >= deadline)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("replication slot \"%s\" is still in use", slot)));
		if (link_is_open())
			link_ping();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 POLL_INTERVAL, wait_event_id(WEFT_WAIT_SWITCH));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	(void) side_value(side, psprintf("SELECT pg_catalog.pg_drop_replication_slot(%s)", name));
}

/*
 * Creates the slot on the target.  Must be called in a transaction that has not written
 * anything.
 */
void
follower_create_slot(const SwitchAttempt *attempt)
{
	SwitchSide	target = ATTEMPT_TARGET(attempt);
	const char *slot = new_slot(attempt);
	bool		knows_failover = target == SIDE_HERE || link_version() >= VERSION_WITH_FAILOVER;

	drop_slot(target, slot, GetCurrentTimestamp());
	if (!attempt->back)
		(void) side_slot_value(target,
							   psprintf("SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput')",
										quote_literal_cstr(slot)));
	else
		(void) side_slot_value(target,
							   psprintf("SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot(%s, %s, false, %s%s)",
										quote_literal_cstr(slot), quote_literal_cstr(attempt->plugin),
										attempt->two_phase ? "true" : "false",
										!knows_failover ? "" : attempt->subscription->failover ? ", true" : ", false"));
}

/* A line of COPY's text format. */
static char *
copy_line(const char *value)
{
	StringInfoData line;

	initStringInfo(&line);
	for (const char *c = value; *c; c++)
		switch (*c)
		{
			case '\\':
				appendStringInfoString(&line, "\\\\");
				break;
			case '\n':
				appendStringInfoString(&line, "\\n");
				break;
			case '\r':
				appendStringInfoString(&line, "\\r");
				break;
			case '\t':
				appendStringInfoString(&line, "\\t");
				break;
			default:
				appendStringInfoChar(&line, *c);
		}
	appendStringInfoChar(&line, '\n');
	return line.data;
}

/* Drops the other server's subscription, but not the slot here. */
static void
drop_subscription_there(const SwitchAttempt *attempt)
{
	char	   *subscription = switch_attempt_subscription_name(attempt);
	const char *name = quote_identifier(subscription);

	link_run(psprintf("DO $weft$ BEGIN IF EXISTS (SELECT FROM pg_catalog.pg_subscription"
					  " WHERE subname = %s AND subdbid = (SELECT oid FROM pg_catalog.pg_database"
					  "  WHERE datname = pg_catalog.current_database())) THEN"
					  " ALTER SUBSCRIPTION %s DISABLE;"
					  " ALTER SUBSCRIPTION %s SET (slot_name = NONE);"
					  " DROP SUBSCRIPTION %s; END IF; END $weft$",
					  quote_literal_cstr(subscription), name, name, name));
}

/*
 * Over: the other server subscribes to this one, disabled.  Its connection string travels as
 * data of a COPY into a temporary table, which is not in the WAL; the command that contains it
 * is built and run there, inside of a block, whose text is all that views and logs
 * show.  An error must not show it as its context; hence it is thrown anew.  Nor must other messages,
 * such as those of the level DEBUG; hence the command is the body of a temporary function in SQL,
 * which the context of a message names, but does not show.
 */
static void
subscribe_there(const SwitchAttempt *attempt, const char *connection)
{
	const char *object = quote_identifier(switch_attempt_object_name(attempt));

	connection_string_check(connection, "the way back", false);
	drop_subscription_there(attempt);
	link_run("DROP TABLE IF EXISTS pg_temp.weft_switch_connection");
	link_run("CREATE TEMPORARY TABLE weft_switch_connection (line pg_catalog.text)");
	link_send("COPY pg_temp.weft_switch_connection FROM STDIN", copy_line(connection));
	link_run(psprintf("DO $weft$ DECLARE connection pg_catalog.text; BEGIN"
					  " SELECT line INTO STRICT connection FROM pg_temp.weft_switch_connection;"
					  " DROP TABLE pg_temp.weft_switch_connection;"
					  " PERFORM pg_catalog.set_config('check_function_bodies', 'off', true);"
					  " EXECUTE pg_catalog.format('CREATE FUNCTION pg_temp.weft_switch_subscribe() RETURNS void LANGUAGE sql AS %%L',"
					  "  pg_catalog.format('CREATE SUBSCRIPTION %s CONNECTION %%L PUBLICATION %s"
					  " WITH (enabled = false, create_slot = false, slot_name = %s, copy_data = false%s)', connection));"
					  " PERFORM pg_temp.weft_switch_subscribe();"
					  " DROP FUNCTION pg_temp.weft_switch_subscribe();"
					  " EXCEPTION WHEN OTHERS THEN RAISE EXCEPTION USING ERRCODE = SQLSTATE, MESSAGE = SQLERRM;"
					  " END $weft$",
					  quote_identifier(switch_attempt_subscription_name(attempt)), object, object,
					  link_version() >= VERSION_WITH_ORIGIN ? ", origin = none" : ""));
}

/* Prepares, disabled, the subscription with which the source will follow. */
void
follower_subscribe(const SwitchAttempt *attempt, const char *connection)
{
	if (!attempt->back)
		subscribe_there(attempt, connection);
	else
		side_run(SIDE_HERE, psprintf("ALTER SUBSCRIPTION %s SET (slot_name = %s)",
									 quote_identifier(attempt->subscription->name),
									 quote_literal_cstr(attempt->slot)));
}

/*
 * Makes the position of a slot here survive a crash: pg_replication_slot_advance() leaves
 * writing it to the next checkpoint.
 */
static void
save_slot(const char *slot)
{
	compat_replication_slot_acquire(slot);
	ReplicationSlotMarkDirty();
	ReplicationSlotSave();
	ReplicationSlotRelease();
}

/* The subscription, which is disabled, will not ask for anything before this position. */
static void
advance_origin(Oid subscription, XLogRecPtr position)
{
	char		name[NAMEDATALEN];

	ReplicationOriginNameForLogicalRep(subscription, InvalidOid, name, sizeof(name));
	LockRelationOid(ReplicationOriginRelationId, RowExclusiveLock);
	replorigin_advance(replorigin_by_name(name, false), position, InvalidXLogRecPtr,
					   true /* go backward */ , true /* WAL log */ );
}

/* Advances the new slot to what is flushed on the target now; returns that position. */
static XLogRecPtr
advance_slot(const SwitchAttempt *attempt)
{
	return side_lsn(side_slot_value(ATTEMPT_TARGET(attempt),
									psprintf("SELECT end_lsn FROM pg_catalog.pg_replication_slot_advance(%s,"
											 " pg_catalog.pg_current_wal_flush_lsn())",
											 quote_literal_cstr(new_slot(attempt)))));
}

/*
 * Brings the new slot close to what the target has, so that follower_position() has little to
 * read.  May take long.  A slot is read from its restart_lsn, which follows only when the
 * WAL has a snapshot of what is running: here it gets one, on another server every 15 seconds.
 */
void
follower_advance(const SwitchAttempt *attempt)
{
	if (!attempt->follow)
		return;
	link_limit_idleness(0);
	if (ATTEMPT_TARGET(attempt) == SIDE_HERE)
		XLogFlush(LogStandbySnapshot());
	(void) advance_slot(attempt);
	link_limit_idleness(SESSION_IDLE_LIMIT);
}

/*
 * Advances the new slot to what is flushed on the target now; returns that position.  All
 * that has been applied must be flushed (fence_flush()).
 *
 * After a crash of the target, the slot could be where it was when it was created, and pass
 * on to the source what has come from there.  Here the slot is saved.  On another server that is
 * not possible, but then it is this server that will follow, and knows where to begin.
 */
XLogRecPtr
follower_position(const SwitchAttempt *attempt)
{
	XLogRecPtr	position = advance_slot(attempt);

	if (attempt->back)
		advance_origin(attempt->subscription->oid, position);
	else
		save_slot(new_slot(attempt));
	return position;
}

/* The target no longer follows the source. */
void
follower_stop_target(const SwitchAttempt *attempt)
{
	char	   *name = attempt->back ? switch_attempt_subscription_name(attempt) : attempt->subscription->name;

	side_run(ATTEMPT_TARGET(attempt),
			 psprintf("ALTER SUBSCRIPTION %s DISABLE", quote_identifier(name)));
}

/* Removes what the target followed the source with, once its worker has ended. */
void
follower_remove_old(const SwitchAttempt *attempt, TimestampTz deadline)
{
	if (!attempt->back)
	{
		drop_slot(SIDE_THERE, attempt->slot, deadline);
		side_run(SIDE_HERE, psprintf("ALTER SUBSCRIPTION %s SET (slot_name = NONE)",
									 quote_identifier(attempt->subscription->name)));
	}
	else
	{
		drop_subscription_there(attempt);
		drop_slot(SIDE_HERE, switch_attempt_object_name(attempt), deadline);
		side_run(SIDE_HERE, psprintf("DROP PUBLICATION IF EXISTS %s",
									 quote_identifier(switch_attempt_object_name(attempt))));
	}
}

/* The source begins to follow the target. */
void
follower_start(const SwitchAttempt *attempt)
{
	if (!attempt->follow)
		return;
	if (attempt->back)
		side_run(SIDE_HERE, psprintf("ALTER SUBSCRIPTION %s ENABLE",
									 quote_identifier(attempt->subscription->name)));
	else
		link_run(psprintf("ALTER SUBSCRIPTION %s ENABLE",
						  quote_identifier(switch_attempt_subscription_name(attempt))));
}

/* Removes what was prepared for the source, which continues as such. */
void
follower_undo(const SwitchAttempt *attempt)
{
	if (!attempt->follow)
		return;
	if (attempt->back)
	{
		side_run(SIDE_HERE, psprintf("ALTER SUBSCRIPTION %s SET (slot_name = NONE)",
									 quote_identifier(attempt->subscription->name)));
		drop_slot(SIDE_THERE, attempt->slot, GetCurrentTimestamp());
	}
	else
	{
		drop_subscription_there(attempt);
		drop_slot(SIDE_HERE, switch_attempt_object_name(attempt), GetCurrentTimestamp());
		side_run(SIDE_HERE, psprintf("DROP PUBLICATION IF EXISTS %s",
									 quote_identifier(switch_attempt_object_name(attempt))));
	}
}
