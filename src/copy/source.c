/*
 * source.c
 *	  What the publisher has: the table's size, and the server's snapshot for
 *	  other connections.
 *
 * The table synchronisation worker's connection has begun a transaction with the
 * snapshot of the slot's consistent point.  That transaction stays open, idle,
 * while helpers copy in transactions of their own with the same snapshot.
 *
 * What the helpers' ranges mean must not change meanwhile:
 *
 *	- Every one of these transactions first locks the table, then its partitions, as the
 *	  COPY in it would.  So none of them is removed, emptied or rewritten.
 *	- Each range says which partitions there were for the snapshot, for another one may be
 *	  attached at any time, and which table it is, for a schema may be renamed (command.c).
 *
 * A helper must not wait for these locks: who stands before it in the queue may wait
 * for the first transaction, which nobody would see as a deadlock.  So it gives up
 * soon, and others do its work.  Once it has them all, whoever waits for the first
 * transaction waits for the helper, too.
 *
 * Planning a range locks all indexes of the table, which the server's own COPY of a
 * table does not do; REINDEX, which keeps out writers, would have to wait for the whole
 * copy.  So each range is a subtransaction that is rolled back, and with it these locks
 * (copy_source_begin_ranges()).  To wait for them is no danger: nobody who has an index
 * can wait for the first transaction without waiting for the helper, which the
 * publisher sees as a deadlock.
 *
 * Who may read no more than some columns may not name a row's place, so there are no
 * ranges then; nor are there where another access method has other places.
 *
 * Helpers use ordinary connections, not those of max_wal_senders.  A connection
 * string may name several servers, so it is checked that it is the same one.
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

/* Ranges of ctid are scanned as such from this version on. */
#define FIRST_VERSION_WITH_RANGES 140000

/* A helper gives up after so long without its lock, in milliseconds. */
#define LOCK_TIMEOUT "1000"

#define IDENTITY \
	"(EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)" \
	"::pg_catalog.int8::pg_catalog.text"

#define COLUMNS 9

/* What is locked by a range is given back at its end. */
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
 * The table with its partitions, as they are for the snapshot.  pg_partition_tree() would
 * lock partitions before the table, while others do it the other way.
 */
static char *
with_tree(const CopyCommand *command)
{
	char	   *relation = quote_literal_cstr(command->relation);

	if (command->only)
		return psprintf("WITH tree (relid) AS (SELECT %s::pg_catalog.regclass::pg_catalog.oid) ",
						relation);
	return psprintf("WITH RECURSIVE tree (relid) AS (SELECT %s::pg_catalog.regclass::pg_catalog.oid"
					" UNION ALL SELECT i.inhrelid FROM pg_catalog.pg_inherits i"
					" JOIN tree t ON i.inhparent = t.relid) ",
					relation);
}

/*
 * About how many bytes are there to copy?  This is asked first, for it costs the
 * publisher little, and most tables are small.
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

/*
 * Is the publisher of a version from which several processes can copy?
 */
bool
copy_source_supported(WalReceiverConn *conn)
{
	return walrcv_server_version(conn) >= FIRST_VERSION_WITH_RANGES;
}

/*
 * Returns about how many bytes there are to copy.  Nothing is locked.
 */
uint64
copy_source_size(WalReceiverConn *conn, const CopyCommand *command)
{
	RemoteValue *values = ask(conn, command, question_of_size(command), 1);

	return values[0] ? strtou64(values[0], NULL, 10) : 0;
}

/* May the subscription read all of the table, so lock it and ask for ranges of it? */
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
 * Asks the publisher for the snapshot and for what there is to copy.  The snapshot can
 * only be exported outside of a subtransaction.
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

/*
 * Makes sure that the transaction with the snapshot is still there, and shows
 * whatever is on the way that the connection is in use.
 */
void
copy_source_keep_alive(WalReceiverConn *conn)
{
	run(conn, "SET LOCAL idle_in_transaction_session_timeout = 0");
}

/*
 * What a helper says first; the same settings as on the server's connections, or on
 * those between members of a group.  A view in the table's place is not read there.
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
 * Connects a helper to the publisher, with the task's snapshot and a lock on the
 * table.  Returns NULL if that is not possible; nothing is lost then.
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

/* From here on a connection is asked for ranges. */
void
copy_source_begin_ranges(WalReceiverConn *conn)
{
	run(conn, BEGIN_RANGES);
}

/*
 * Asks for a range; what an earlier one has locked is given back first.  A helper's
 * connection takes both commands at once; a walsender before version 15 does not.
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
