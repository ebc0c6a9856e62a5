/*
 * source.c
 *	  The publisher's table: its size, and the server's snapshot for other connections.
 *
 * P is the process that copies the table, H its helper, X any session on the publisher.
 * P's connection has begun a transaction there with the snapshot of the slot's consistent
 * point.  That transaction stays open, idle, while helpers copy in transactions of their
 * own with the same snapshot.
 *
 * The meaning of the helpers' ranges must not change meanwhile:
 *
 *	- Each of these transactions first locks the table, then its partitions, as the COPY in
 *	  it would.  Therefore none of them is dropped, truncated or rewritten.
 *	- Each range names the partitions that the snapshot sees, because another one may be
 *	  attached at any time, and the table's OID, because a schema may be renamed
 *	  (command.c).
 *
 * Planning a range locks all indexes of the table, which the server's own COPY of a table
 * does not do; REINDEX, which blocks writes, would have to wait for the whole copy.
 * Therefore each range is a subtransaction that is rolled back, which releases these locks
 * (copy_source_begin_ranges()).
 *
 * Deadlocks:
 * 1. H waits for a lock on the table behind X in the queue, and X waits for P's
 *	  transaction.  P is idle there and waits for H on this side, so nobody would see a
 *	  deadlock.  Therefore H gives up after LOCK_TIMEOUT, and others do its work.  Once H
 *	  has all its locks, a session that waits for P's transaction waits for H, too.
 * 2. H waits for a lock on an index that X holds.  X cannot wait for P's transaction without
 *	  waiting for H, too, and the publisher detects that deadlock.
 *
 * A role that may read only some columns must not use a row's ctid, so there are no ranges
 * for it; nor are there for tables of another access method, where ctid means something
 * else.
 *
 * Helpers use ordinary connections, which do not count for max_wal_senders.  A connection
 * string may name several servers, so a helper checks that it reached the same one.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "copy/source.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "pinned_settings.h"
#include "remote_query.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

/* Ranges of ctid are scanned as such from this version on. */
#define FIRST_VERSION_WITH_RANGES 140000

/* COPY of a partitioned table's name sends the rows of its partitions from this version on. */
#define FIRST_VERSION_COPYING_PARTITIONED 190000

/* A partitioned table can be published instead of its partitions from this version on. */
#define FIRST_VERSION_PUBLISHING_ROOTS 130000

/* How long a helper waits for a lock on the publisher, in milliseconds. */
#define LOCK_TIMEOUT "1000"

#define IDENTITY \
	"(EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)" \
	"::pg_catalog.int8::pg_catalog.text"

#define COLUMNS 9

/* The end of a range releases the locks that it has taken. */
#define BEGIN_RANGES "SAVEPOINT weft_range"
#define NEXT_RANGE "ROLLBACK TO SAVEPOINT weft_range"
#define END_RANGES "RELEASE SAVEPOINT weft_range"

/* The columns' names as a list of literals. */
static char *
column_literals(const CopyCommand *command)
{
	StringInfoData list;
	ListCell   *cell;

	initStringInfo(&list);
	foreach(cell, command->columns)
		appendStringInfo(&list, "%s%s", list.len > 0 ? ", " : "",
						 quote_literal_cstr(strVal(lfirst(cell))));
	return list.data;
}

/*
 * A query for a table, given by an expression for its OID, with its partitions, as the snapshot sees them.
 * pg_partition_tree() would lock partitions before the table, and all others lock them in
 * the opposite order.
 */
static char *
tree_of(const char *oid)
{
	return psprintf("WITH RECURSIVE tree (relid) AS (SELECT %s"
					" UNION ALL SELECT i.inhrelid FROM pg_catalog.pg_inherits i"
					" JOIN tree t ON i.inhparent = t.relid"
					" JOIN pg_catalog.pg_class p ON p.oid = i.inhparent AND p.relkind = 'p') ",
					oid);
}

/* A query for the table of a command, with its partitions unless the command leaves them out. */
static char *
with_tree(const CopyCommand *command)
{
	char	   *oid = psprintf("%s::pg_catalog.regclass::pg_catalog.oid",
							   quote_literal_cstr(command->relation));

	return command->only ? psprintf("WITH tree (relid) AS (SELECT %s) ", oid) : tree_of(oid);
}

/*
 * A query for the approximate number of bytes to copy.  It comes first, because it costs
 * the publisher little, and most tables are small.
 */
static char *
question_of_size(const CopyCommand *command)
{
	return psprintf("%sSELECT pg_catalog.sum(pg_catalog.pg_table_size(relid))"
					"::pg_catalog.text FROM tree",
					with_tree(command));
}

/* Locks the table, and its partitions, as a COPY of it does. */
static char *
lock_command(const CopyCommand *command)
{
	return psprintf("LOCK TABLE %s%s IN ACCESS SHARE MODE",
					command->only ? "ONLY " : "", command->relation);
}

static char *
question(const CopyCommand *command)
{
	char	   *relation = quote_literal_cstr(command->relation);
	char	   *names = column_literals(command);
	StringInfoData query;

	initStringInfo(&query);
	appendStringInfo(&query,
					 "%sSELECT pg_catalog.pg_export_snapshot(), " IDENTITY ","
					 " max(pg_catalog.pg_relation_size(c.oid)"
					 " / pg_catalog.current_setting('block_size')::pg_catalog.int8)::pg_catalog.text,"
					 " sum(pg_catalog.pg_table_size(c.oid))::pg_catalog.text,"
					 " pg_catalog.bool_and(c.relkind = 'r' AND m.amname = 'heap')::pg_catalog.text,"
					 " (SELECT pg_catalog.string_agg(a.atttypid::pg_catalog.text, ',' ORDER BY"
					 " pg_catalog.array_position(ARRAY[%s], a.attname::pg_catalog.text))"
					 " FROM pg_catalog.pg_attribute a"
					 " WHERE a.attrelid = %s::pg_catalog.regclass AND a.attnum > 0"
					 " AND NOT a.attisdropped AND a.attname = ANY (ARRAY[%s])),"
					 " sum(pg_catalog.pg_relation_size(NULLIF(c.reltoastrelid, 0::pg_catalog.oid)))"
					 "::pg_catalog.text,"
					 " %s::pg_catalog.regclass::pg_catalog.oid::pg_catalog.text,"
					 " pg_catalog.string_agg(c.oid::pg_catalog.text, ',')"
					 " FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.relid"
					 " LEFT JOIN pg_catalog.pg_am m ON m.oid = c.relam"
					 " WHERE c.relkind <> 'p'",
					 with_tree(command), names, relation, names, relation);
	return query.data;
}

static List *
parse_types(char *text)
{
	List	   *result = NIL;
	char	   *next;

	for (char *type = strtok_r(text, ",", &next); type; type = strtok_r(NULL, ",", &next))
		result = lappend_oid(result, atooid(type));
	return result;
}

/* Asks the publisher; returns the first row, or fails. */
static RemoteValue *
ask(WalReceiverConn *conn, const CopyCommand *command, const char *query, int columns)
{
	return remote_query_row(conn,
							psprintf("ask the publisher for the size of table %s",
									 command->relation),
							query, columns);
}

/* Does the publisher's version allow several processes to copy? */
bool
copy_source_supported(WalReceiverConn *conn)
{
	return walrcv_server_version(conn) >= FIRST_VERSION_WITH_RANGES;
}

/*
 * Does the command name a partitioned table?  Before version 19, the server selects from such a
 * table.
 */
bool
copy_source_partitioned(WalReceiverConn *conn, const CopyCommand *command)
{
	RemoteValue *values;

	if (!command->only || walrcv_server_version(conn) < FIRST_VERSION_COPYING_PARTITIONED)
		return false;
	values = ask(conn, command,
				 psprintf("SELECT (relkind = 'p')::pg_catalog.text FROM pg_catalog.pg_class"
						  " WHERE oid = %s::pg_catalog.regclass",
						  quote_literal_cstr(command->relation)), 1);
	return values[0] && strcmp(values[0], "true") == 0;
}

/* Returns the approximate number of bytes to copy.  Locks nothing. */
uint64
copy_source_size(WalReceiverConn *conn, const CopyCommand *command)
{
	RemoteValue *values = ask(conn, command, question_of_size(command), 1);

	return values[0] ? strtou64(values[0], NULL, 10) : 0;
}

/* May the subscription read the whole table?  Then it may lock it and copy ranges. */
static bool
readable(WalReceiverConn *conn, const CopyCommand *command)
{
	char	   *query = psprintf("SELECT pg_catalog.has_table_privilege(%s, 'SELECT')"
								 "::pg_catalog.text",
								 quote_literal_cstr(command->relation));
	RemoteValue *values = ask(conn, command, query, 1);

	return values[0] && strcmp(values[0], "true") == 0;
}

/* Runs a command that returns no rows on the server's connection. */
static void
run(WalReceiverConn *conn, const char *command)
{
	remote_command(conn, "continue the publisher's transaction that holds the snapshot", command);
}

/*
 * Asks the publisher for the snapshot and a description of the table.  The snapshot can be
 * exported only outside of a subtransaction.
 */
void
copy_source_ask(WalReceiverConn *conn, const CopyCommand *command, CopySource *source)
{
	bool		locked = readable(conn, command);
	RemoteValue *values;

	if (locked)
		run(conn, lock_command(command));
	values = ask(conn, command, question(command), COLUMNS);
	memset(source, 0, sizeof(CopySource));
	source->snapshot = values[0];
	source->identity = values[1];
	source->num_blocks = values[2] ? strtoul(values[2], NULL, 10) : 0;
	source->bytes = values[3] ? strtou64(values[3], NULL, 10) : 0;
	source->types = values[5] ? parse_types(values[5]) : NIL;
	source->toast_bytes = values[6] ? strtou64(values[6], NULL, 10) : 0;
	source->target.relid = values[7] ? values[7] : "";
	source->target.leaves = values[8] ? values[8] : "";
	source->ranges = locked && values[4] && strcmp(values[4], "true") == 0 &&
		strlen(source->target.relid) < COPY_OID_LEN &&
		source->snapshot && strlen(source->snapshot) < COPY_SNAPSHOT_LEN &&
		source->identity && strlen(source->identity) < COPY_IDENTITY_LEN;
}

/* Are the names of the columns of the table "c", which the snapshot sees, those that they have now? */
#define SAME_COLUMNS \
	"NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0" \
	" AND NOT a.attisdropped AND (pg_catalog.pg_identify_object_as_address('pg_catalog.pg_class'::pg_catalog.regclass," \
	" a.attrelid, a.attnum)).object_names[3] IS DISTINCT FROM a.attname::pg_catalog.text)"

/*
 * Fails if a schema change between the snapshot and the copy may have spoilt the latter:
 *
 * - The table, or a partition, has another file than the snapshot sees.  ALTER TABLE may have rewritten it, and an
 *	 older snapshot sees no row in the new file.
 * - Columns have other names, or the table's name is another table's.  The names are those of the snapshot, and were
 *	 read by what they mean now.  If the schema change is replicated, the values would follow the wrong names.
 * - A partition was detached.  Its rows were not read.  (Rows of one that was attached are not copied anyway; and one that
 *	 is being detached by DETACH ... CONCURRENTLY has been read, and pg_partition_tree() still shows it.)
 *
 * The copy starts again with a new snapshot; so it does after TRUNCATE and VACUUM FULL, which would do no harm.  The
 * transaction on the publisher has locked the table, with the partitions that were read, so pg_partition_tree() locks only
 * those that were attached since.  But the schema may have been renamed, which counts, too.
 */
void
copy_source_check(WalReceiverConn *conn, Relation rel)
{
	char	   *schema = get_namespace_name(RelationGetNamespace(rel));
	char	   *name = quote_qualified_identifier(schema, RelationGetRelationName(rel));
	char	   *then = psprintf("(SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
								" ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s)",
								quote_literal_cstr(schema),
								quote_literal_cstr(RelationGetRelationName(rel)));
	char	   *now = psprintf("pg_catalog.to_regclass(%s)::pg_catalog.oid", quote_literal_cstr(name));
	char	   *detached = walrcv_server_version(conn) < FIRST_VERSION_PUBLISHING_ROOTS ? "false" :
		psprintf("EXISTS (SELECT relid FROM tree WHERE relid <> %s"
				 " EXCEPT SELECT p.relid::pg_catalog.oid FROM pg_catalog.pg_partition_tree(%s) p)",
				 now, now);
	RemoteValue *values;

	values = remote_query_row(conn,
							  psprintf("ask the publisher for the file of table %s", name),
							  psprintf("%sSELECT (%s = %s AND NOT %s AND pg_catalog.bool_and(c.oid IS NOT NULL AND"
									   " coalesce(pg_catalog.pg_relation_filenode(c.oid) = c.relfilenode, c.relfilenode = 0)"
									   " AND " SAME_COLUMNS "))::pg_catalog.text"
									   " FROM tree t LEFT JOIN pg_catalog.pg_class c ON c.oid = t.relid",
									   tree_of(then), then, now, detached), 1);
	if (values[0] == NULL || strcmp(values[0], "true") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table %s got a new file or other columns on the publisher when its copy began", name),
				 errdetail("If a schema change was the reason, rows may be missing in the copy, or values be in wrong columns."),
				 errhint("The table is copied again.")));
}

/*
 * Makes sure that the transaction with the snapshot still exists, and shows routers and
 * firewalls on the way that the connection is in use.
 */
void
copy_source_keep_alive(WalReceiverConn *conn)
{
	run(conn, "SET LOCAL idle_in_transaction_session_timeout = 0");
}

/*
 * The first commands of a helper: the same settings as on the server's connections, or on
 * those between members of a group.  The latter do not read a view in the table's place.
 */
static char *
greeting(const CopyTask *task)
{
	return psprintf("SET client_encoding = %s; %s"
					"SET datestyle = ISO; SET intervalstyle = postgres;"
					"SET extra_float_digits = 3; SET idle_in_transaction_session_timeout = 0;"
					"SET enable_tidscan = on; SET max_parallel_workers_per_gather = 0;"
					"SET lock_timeout = " LOCK_TIMEOUT ";"
					"BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ",
					quote_literal_cstr(GetDatabaseEncodingName()),
					task->all_rows ?
					psprintf("%sSET row_security = off;"
							 "SET restrict_nonsystem_relation_kind = 'view, foreign-table';",
							 pinned_settings_command()) : "");
}

/* Runs a command; returns what is wrong, or NULL. */
static const char *
problem_with(WalReceiverConn *conn, const char *command)
{
	return remote_query(conn, NULL, command, WALRCV_OK_COMMAND, 0).problem;
}

/* Checks that these are the server and the table; returns what is wrong, or NULL. */
static const char *
problem_with_table(WalReceiverConn *conn, const CopyTask *task, const CopyCommand *command)
{
	char	   *query = psprintf("SELECT " IDENTITY ","
								 " %s::pg_catalog.regclass::pg_catalog.oid::pg_catalog.text",
								 quote_literal_cstr(command->relation));
	RemoteAnswer answer = remote_query(conn, NULL, query, WALRCV_OK_TUPLES, 2);
	RemoteValue *values;

	if (answer.problem)
		return answer.problem;
	if (answer.rows == NIL)
		return "no row";
	values = linitial(answer.rows);
	if (values[0] == NULL || strcmp(values[0], task->identity) != 0)
		return "the connection string leads to another server";
	if (values[1] == NULL || strcmp(values[1], task->source_relid) != 0)
		return "its name now belongs to another table";
	return NULL;
}

/*
 * Connects a helper to the publisher, with the task's snapshot and a lock on the table.
 * If that fails, logs the problem and returns NULL; no row is lost by that.
 */
WalReceiverConn *
copy_source_join(const CopyTask *task, const CopyCommand *command)
{
	WalReceiverConn *conn;
	char	   *error = NULL;
	const char *problem = NULL;

	conn = walrcv_connect(task->texts + task->conninfo, false, false,
						  task->must_use_password, task->appname, &error);
	if (conn == NULL)
		problem = error;
	else
	{
		problem = problem_with(conn, greeting(task));
		if (problem == NULL)
			problem = problem_with(conn, psprintf("SET TRANSACTION SNAPSHOT %s",
												  quote_literal_cstr(task->snapshot)));
		if (problem == NULL)
			problem = problem_with(conn, lock_command(command));
		if (problem == NULL)
			problem = problem_with_table(conn, task, command);
		if (problem == NULL)
			problem = problem_with(conn, "SET lock_timeout = 0");
	}
	if (problem == NULL)
		return conn;

	ereport(LOG,
			(errmsg("a helper could not join the initial copy of %s: %s",
					task->user, problem)));
	if (conn)
		walrcv_disconnect(conn);
	return NULL;
}

/* Prepares a connection for copy_source_range(). */
void
copy_source_begin_ranges(WalReceiverConn *conn)
{
	run(conn, BEGIN_RANGES);
}

/*
 * Starts the COPY TO of a range, after releasing what an earlier range has locked.  A
 * helper's connection takes both commands at once; a walsender before version 15 does not.
 */
void
copy_source_range(WalReceiverConn *conn, const CopyCommand *command, const char *query,
				  bool helper)
{
	if (helper)
		query = psprintf(NEXT_RANGE ";%s", query);
	else
		run(conn, NEXT_RANGE);
	(void) remote_query(conn,
						psprintf("start initial contents copy for table %s", command->relation),
						query, WALRCV_OK_COPY_OUT, 0);
}

void
copy_source_end_ranges(WalReceiverConn *conn)
{
	run(conn, NEXT_RANGE);
	run(conn, END_RANGES);
}
