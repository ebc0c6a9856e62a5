/*
 * fence.c
 *	  The fence that keeps everybody but replication from writing on one side.
 *
 * It is the same on both sides, and made of what a stock server has.  Schema "weft_switch"
 * contains the function refuse(), which is called by a statement trigger (BEFORE INSERT,
 * UPDATE, DELETE or TRUNCATE, ENABLE ALWAYS) of each table, and sequences, among them "state":
 *
 *	0		open
 *	-ID		closed by the attempt ID, provisionally: as long as the session that closed it holds
 *			the advisory lock of switch-overs (link.c), and not after a time limit
 *	+ID		closed for good, by the attempt ID
 *
 * Superusers fire such triggers as everybody does, session_replication_role does not matter,
 * and COPY, MERGE, ON CONFLICT, cascades of foreign keys and cursors are statements like
 * others.  Apply workers fire triggers of statements for TRUNCATE only, and the function lets
 * the processes of replication pass.  Not fenced: sequences (nextval), large objects,
 * unpublished tables, tables that are created or attached later, DDL (ALTER TABLE ... USING,
 * DROP TABLE), and whoever disables or drops the trigger, as the owner of the table may.
 *
 * Why a sequence: its value is not subject to snapshots.  A transaction with isolation level
 * REPEATABLE READ that began before the fence was closed sees the new value at once; with an
 * ordinary table it would not.  pg_locks is not subject to them either.  A value survives a
 * crash once a later transaction has committed synchronously.
 *
 * To close the fence, its value is set, and then each table is locked once against writers
 * (SHARE ROW EXCLUSIVE), one after the other.  A writer takes its lock on the table before it
 * fires the trigger, and keeps it until its (sub)transaction ends.  Therefore
 *
 * - a writer that has passed the trigger while the fence was open has ended, or is waited for;
 *	 its commit is before the end of the closing transaction, in the WAL as well;
 * - any other writer fires the trigger after the value was set, and is refused.
 *
 * No two locks are held at the same time: whoever locks all tables would be in a deadlock with
 * each transaction that writes to several in another order, and with enough of them never
 * succeed.  A transaction in progress is refused at its next statement, and ends.  Each table is
 * locked once before the value is set, too, so that a transaction that is open for long is
 * noticed while nobody is refused yet.
 *
 * With a provisional fence, a third kind of writer exists: one that passes while the lock of
 * the session is gone.  But then that session is gone, too, and nobody but that very session
 * makes the fence final (fence_make_final() runs in it, and looks at its own lock).  Whoever
 * takes the lock again closes the fence again first, and thereby waits for such a writer.
 * Nothing that was drained before counts then: another attempt has another ID.  The session may
 * have made the fence final before it went, after the writer has read the value.  Therefore a
 * writer that finds the lock gone reads the value again.
 *
 * Four more sequences belong to a provisional fence.  "session" is the PID of the session that
 * closed it: every role may take the advisory lock, and nobody else's keeps a fence closed.
 * "until" is the time, in ms, after which the fence opens by itself even though the session
 * lives: the process may be frozen, or its connection stalled.  Then fence_make_final() may be
 * about to run in it.  Hence whoever opens the fence, and whoever makes it final, first takes
 * nextval of "claim", which was set to 0 when the fence was closed: one of all gets 1.  A writer
 * who does sets "expired" to the value of "until", which lets everybody pass; any other one is
 * refused, unless that has been done.  So a fence that has let somebody pass never becomes final.
 * A writer may be slow, and the fence be closed anew between two of its steps.  Then it
 * takes the new claim for nothing, and the new fence does not become final; or it sets "expired"
 * to a time that is not the new limit.  Each closing has a limit of its own, and nobody needs
 * to write "state" but under the lock.
 *
 * If the answer to fence_make_final() is lost, the value tells what has happened.  It is
 * looked at under the lock, that is, when the session that may still be executing the
 * command has ended.  A final value may not be flushed yet; therefore it is set once more, in
 * a transaction that commits synchronously, before anybody relies on it.
 *
 * The value 0 is set without any lock.  Nobody relies on an open fence.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "switch/fence.h"
#include "switch/link.h"
#include "utils/builtins.h"

#define TRIGGER_NAME "weft_switch_fence"

/* The sequences in the schema. */
#define SEQUENCES "'state', 'session', 'until', 'claim', 'expired'"

/* A server's time in ms, as "until" has it. */
#define NOW "pg_catalog.floor(1000 * extract(epoch FROM pg_catalog.clock_timestamp()))::bigint"

/* Does that session hold the advisory lock of switch-overs?  The format takes its two keys. */
#define LOCK_IS_HELD_BY(session) \
"EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted" \
" AND mode = 'ExclusiveLock' AND classid = %u AND objid = %u AND objsubid = 2" \
" AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())" \
" AND pid = " session ")"

/* The grantee of a row, as REVOKE wants it. */
#define GRANTEE "CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::pg_catalog.regrole::pg_catalog.text END"

/*
 * Roles that may create objects in the schema could replace the function; hence it must
 * belong to the current role, or to a superuser.  Default privileges must not let others open
 * the fence; they need no right on the schema for nextval() of an OID.
 */
static const char create_schema[] =
"DO $weft$ DECLARE granted record; sequence text; BEGIN"
" IF pg_catalog.to_regnamespace('weft_switch') IS NULL THEN"
"  CREATE SCHEMA weft_switch;"
"  FOR granted IN SELECT DISTINCT a.grantee FROM pg_catalog.pg_namespace n, pg_catalog.aclexplode(n.nspacl) a"
"   WHERE n.nspname = 'weft_switch' AND a.grantee <> n.nspowner LOOP"
"   EXECUTE 'REVOKE ALL ON SCHEMA weft_switch FROM ' || " GRANTEE "; END LOOP;"
" END IF;"
" IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner"
"  WHERE n.nspname = 'weft_switch' AND (r.rolname = current_user OR r.rolsuper)"
"  AND NOT EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) a"
"   WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner)) THEN"
"  RAISE EXCEPTION 'schema \"weft_switch\" belongs to another role, or others may create objects in it'"
"   USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Drop the schema; a switch-over creates it.';"
" END IF;"
" FOREACH sequence IN ARRAY ARRAY[" SEQUENCES "] LOOP"
"  EXECUTE 'CREATE SEQUENCE IF NOT EXISTS weft_switch.' || sequence ||"
"   ' MINVALUE -9223372036854775807 MAXVALUE 9223372036854775807 START 0';"
"  FOR granted IN SELECT DISTINCT a.grantee FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a"
"   WHERE c.oid = pg_catalog.to_regclass('weft_switch.' || sequence) AND a.grantee <> c.relowner LOOP"
"   EXECUTE 'REVOKE ALL ON SEQUENCE weft_switch.' || sequence || ' FROM ' || " GRANTEE "; END LOOP;"
" END LOOP;"
" COMMENT ON SCHEMA weft_switch IS 'of the extension weft: refuses writes to tables while another server accepts them';"
" END $weft$";

/* The pattern contains all processes that apply changes, of all versions. */
static const char create_function[] =
"CREATE OR REPLACE FUNCTION weft_switch.refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
" SET search_path = pg_catalog, pg_temp AS $refuse$"
" DECLARE value bigint; expiry bigint; BEGIN"
" SELECT last_value INTO STRICT value FROM weft_switch.state;"
" IF value = 0 OR EXISTS (SELECT FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) a"
" WHERE a.backend_type ~ '^(logical replication .*worker|weft (stream )?writer)$') THEN RETURN NULL; END IF;"
" IF value < 0 THEN"
"  SELECT last_value INTO STRICT expiry FROM weft_switch.until;"
"  IF NOT " LOCK_IS_HELD_BY("(SELECT last_value FROM weft_switch.session)")
"   OR expiry = (SELECT last_value FROM weft_switch.expired) THEN"
"   SELECT last_value INTO STRICT value FROM weft_switch.state;"
"   IF value <= 0 THEN RETURN NULL; END IF;"
"  ELSIF expiry < " NOW " THEN"
"   IF pg_catalog.nextval('weft_switch.claim') = 1 THEN"
"    PERFORM pg_catalog.setval('weft_switch.expired', expiry); RETURN NULL; END IF;"
"  END IF;"
" END IF;"
" IF value < 0 THEN"
"  RAISE EXCEPTION 'table \"%%.%%\" is fenced: a switch-over to another server is in progress', TG_TABLE_SCHEMA, TG_TABLE_NAME"
"   USING ERRCODE = 'read_only_sql_transaction',"
"   HINT = 'Try again in a moment: either this server continues, or another one has taken its place.';"
" END IF;"
" RAISE EXCEPTION 'table \"%%.%%\" is fenced: another server accepts its writes', TG_TABLE_SCHEMA, TG_TABLE_NAME"
"  USING ERRCODE = 'read_only_sql_transaction',"
"  HINT = 'Connect to the server that accepts writes.';"
" END $refuse$";

/* Creates what the fence needs, except for the triggers; leaves it open if it is new. */
void
fence_install(SwitchSide side)
{
	side_run(side, create_schema);
	side_run(side, psprintf(create_function, SWITCH_LOCK_CLASS, SWITCH_LOCK_OBJECT));
}

/* A query for the OIDs of the tables of the subscription on one side. */
char *
fence_base_tables(const SwitchAttempt *attempt, SwitchSide side)
{
	StringInfoData query;
	ListCell   *cell;

	if (side == SIDE_HERE)
		return psprintf("SELECT r.srrelid AS oid FROM pg_catalog.pg_subscription_rel r"
						" JOIN pg_catalog.pg_class c ON c.oid = r.srrelid AND c.relkind <> 'S'"
						" WHERE r.srsubid = %u", attempt->subscription->oid);

	initStringInfo(&query);
	appendStringInfoString(&query, "SELECT c.oid FROM pg_catalog.pg_publication_tables p"
						   " JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname"
						   " JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename"
						   " WHERE p.pubname IN (");
	foreach(cell, attempt->subscription->publications)
		appendStringInfo(&query, "%s%s", foreach_current_index(cell) > 0 ? ", " : "",
						 quote_literal_cstr(strVal(lfirst(cell))));
	appendStringInfoChar(&query, ')');
	return query.data;
}

/*
 * A query for all tables that need a trigger: oid, name, and whether it has one.  A statement
 * on a table with children changes these, but fires the triggers of the table alone.
 */
static char *
fenced_tables(const SwitchAttempt *attempt, SwitchSide side)
{
	return psprintf("WITH RECURSIVE base AS (%s),"
					" ancestor AS (SELECT oid FROM base UNION SELECT i.inhparent"
					"  FROM pg_catalog.pg_inherits i JOIN ancestor a ON a.oid = i.inhrelid),"
					" partition AS (SELECT oid FROM base UNION SELECT i.inhrelid"
					"  FROM pg_catalog.pg_inherits i JOIN partition p ON p.oid = i.inhparent"
					"  JOIN pg_catalog.pg_class c ON c.oid = i.inhparent AND c.relkind = 'p')"
					" SELECT c.oid, pg_catalog.format('%%I.%%I', n.nspname, c.relname) AS name,"
					" EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid"
					"  AND t.tgname = '" TRIGGER_NAME "' AND t.tgenabled = 'A'"
					"  AND t.tgfoid = pg_catalog.to_regproc('weft_switch.refuse')) AS armed"
					" FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
					" WHERE c.relkind IN ('r', 'p')"
					" AND c.oid IN (SELECT oid FROM ancestor UNION SELECT oid FROM partition)",
					fence_base_tables(attempt, side));
}

/*
 * Creates the trigger of one table that lacks it; returns false if there is none.  Fails
 * with lock_not_available if the table cannot be locked against writers within
 * "lock_timeout", in ms.  Readers do not stand in the way.
 */
bool
fence_arm_next(const SwitchAttempt *attempt, SwitchSide side, int lock_timeout)
{
	char	   *table = side_value(side,
								   psprintf("SELECT t.name FROM (%s) t WHERE NOT t.armed ORDER BY t.oid LIMIT 1",
											fenced_tables(attempt, side)));

	if (table == NULL)
		return false;
	side_run_block(side,
				   psprintf("BEGIN PERFORM pg_catalog.set_config('lock_timeout', '%d', true);"
							" EXECUTE %s; EXECUTE %s; END", lock_timeout,
							quote_literal_cstr(psprintf("CREATE OR REPLACE TRIGGER " TRIGGER_NAME
														" BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s"
														" FOR EACH STATEMENT EXECUTE FUNCTION weft_switch.refuse()", table)),
							quote_literal_cstr(psprintf("ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER " TRIGGER_NAME, table))));
	return true;
}

/*
 * Drops the trigger of one table; returns false if none is left that can be locked.  An open
 * fence costs little, so there is no error.
 */
bool
fence_disarm_next(SwitchSide side, int lock_timeout)
{
	char	   *table = side_value(side,
								   "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)"
								   " FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid"
								   " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
								   " WHERE t.tgname = '" TRIGGER_NAME "'"
								   " AND t.tgfoid = pg_catalog.to_regproc('weft_switch.refuse')"
								   " ORDER BY c.oid LIMIT 1");

	if (table == NULL)
		return false;
	side_run_block(side,
				   psprintf("BEGIN PERFORM pg_catalog.set_config('lock_timeout', '%d', true);"
							" EXECUTE %s; END", lock_timeout,
							quote_literal_cstr(psprintf("DROP TRIGGER " TRIGGER_NAME " ON %s", table))));
	return true;
}

/*
 * Closes the fence of one side, and waits for the writers that are in progress: provisionally,
 * for that long from now on, in ms, or for good if "limit" is 0.  Fails with lock_not_available
 * if the writers take longer than "lock_timeout", in ms; the fence is then as before.
 *
 * A lock is released by rolling back the block that took it.
 */
void
fence_close(const SwitchAttempt *attempt, SwitchSide side, int64 limit, int lock_timeout)
{
	char	   *tables = fenced_tables(attempt, side);
	char	   *prepare = limit == 0 ? "" :
		psprintf(" PERFORM pg_catalog.setval('weft_switch.claim', 0);"
				 " PERFORM pg_catalog.setval('weft_switch.session', pg_catalog.pg_backend_pid());"
				 " PERFORM pg_catalog.setval('weft_switch.until', greatest(" NOW " + " INT64_FORMAT ", last_value + 1))"
				 "  FROM weft_switch.until;", limit);

	side_run_block(side,
				   psprintf("DECLARE fenced_table record; old_value bigint; deadline timestamptz; BEGIN"
							" IF NOT " LOCK_IS_HELD_BY("pg_catalog.pg_backend_pid()") " THEN"
							"  RAISE EXCEPTION 'the lock of the switch-over is not held'; END IF;"
							" SELECT last_value INTO STRICT old_value FROM weft_switch.state;"
							" FOR pass IN 1 .. 2 LOOP"
							"  IF pass = 2 THEN %s PERFORM pg_catalog.setval('weft_switch.state', " INT64_FORMAT "); END IF;"
							"  deadline := pg_catalog.clock_timestamp() + '%d ms';"
							"  FOR fenced_table IN SELECT t.name FROM (%s) t ORDER BY t.oid LOOP BEGIN"
							"   PERFORM pg_catalog.set_config('lock_timeout', greatest(1, pg_catalog.ceil(1000 *"
							"    extract(epoch FROM deadline - pg_catalog.clock_timestamp())))::text, true);"
							"   EXECUTE 'LOCK TABLE ONLY ' || fenced_table.name || ' IN SHARE ROW EXCLUSIVE MODE';"
							"   RAISE EXCEPTION USING ERRCODE = 'WEFT1';"
							"   EXCEPTION WHEN SQLSTATE 'WEFT1' THEN NULL; END; END LOOP;"
							" END LOOP;"
							" FOR fenced_table IN SELECT t.name FROM (%s) t WHERE NOT t.armed LOOP"
							"  RAISE EXCEPTION 'table %% has been published or attached since the switch-over began', fenced_table.name"
							"   USING ERRCODE = 'object_not_in_prerequisite_state'; END LOOP;"
							" EXCEPTION WHEN query_canceled OR OTHERS THEN"
							"  PERFORM pg_catalog.setval('weft_switch.state', old_value); RAISE; END",
							SWITCH_LOCK_CLASS, SWITCH_LOCK_OBJECT, prepare,
							limit == 0 ? attempt->id : -attempt->id, lock_timeout,
							tables, tables));
}

/*
 * Makes the fence of the source final, if the session that closed it still holds its lock, and
 * the time limit has let nobody pass.
 * Returns whether it is final now; if the caller's transaction commits synchronously, it
 * remains so.
 */
bool
fence_make_final(const SwitchAttempt *attempt)
{
	char	   *value = side_value(ATTEMPT_SOURCE(attempt),
								   psprintf("SELECT CASE WHEN last_value = " INT64_FORMAT
											" THEN pg_catalog.setval('weft_switch.state', last_value)"
											" WHEN last_value = " INT64_FORMAT " AND "
											LOCK_IS_HELD_BY("pg_catalog.pg_backend_pid()")
											" THEN CASE WHEN pg_catalog.nextval('weft_switch.claim') = 1"
											" THEN pg_catalog.setval('weft_switch.state', " INT64_FORMAT ") END END"
											" FROM weft_switch.state",
											attempt->id, -attempt->id,
											SWITCH_LOCK_CLASS, SWITCH_LOCK_OBJECT, attempt->id));

	return value != NULL;
}

/* Flushes everything that has been committed on a side that has a fence. */
void
fence_flush(SwitchSide side)
{
	(void) side_value(side,
					  "SELECT pg_catalog.setval('weft_switch.state', last_value) FROM weft_switch.state");
}

/* Opens the fence of the source again, unless it is final. */
void
fence_reopen(const SwitchAttempt *attempt)
{
	if (fence_state(ATTEMPT_SOURCE(attempt)) != -attempt->id)
		return;
	(void) side_value(ATTEMPT_SOURCE(attempt),
					  psprintf("SELECT pg_catalog.setval('weft_switch.state', 0) FROM weft_switch.state"
							   " WHERE last_value = " INT64_FORMAT, -attempt->id));
}

void
fence_open(SwitchSide side)
{
	if (fence_state(side) != 0)
		(void) side_value(side, "SELECT pg_catalog.setval('weft_switch.state', 0)");
}

/* Returns the state of a side's fence; without one, 0. */
int64
fence_state(SwitchSide side)
{
	if (side_value(side, "SELECT pg_catalog.to_regclass('weft_switch.state')") == NULL)
		return 0;
	return pg_strtoint64(side_value(side, "SELECT last_value FROM weft_switch.state"));
}
