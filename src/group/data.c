/*
 * data.c
 *	  The rows and sequences of the member that is copied.
 *
 * Nothing tells when, or on which node, a stored row was changed last: the rows are frozen,
 * or, if helpers have copied them, of an origin that belongs to no member (copy/table.c).
 * Therefore any later change of another member takes effect, as it did on the member that
 * was copied (but see recent.c).  Rows can be stored frozen only in tables that are new or
 * have just been truncated; here they always are.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/copy.h"
#include "commands/defrem.h"
#include "commands/tablecmds.h"
#include "copy/copy_reader.h"
#include "copy/table.h"
#include "copy/target_table.h"
#include "fmgr.h"
#include "group/copied_tables.h"
#include "group/copied_types.h"
#include "group/data.h"
#include "local_query.h"
#include "group/remote.h"
#include "guc.h"
#include "local_table.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_relation.h"
#include "replication/walreceiver.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/usercontext.h"

PG_FUNCTION_INFO_V1(weft_is_empty);
PG_FUNCTION_INFO_V1(weft_join_truncate);

/* The tables to copy, which are truncated first; they have no rows yet. */
#define TABLES_QUERY "SELECT relation::oid FROM weft.published_tables() relation"
#define SEQUENCES_QUERY \
	"SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace" \
	" WHERE c.relkind = 'S' AND c.relpersistence = 'p' AND weft.is_group_schema(n.nspname)"

/*
 * On the other member, a relation may have been replaced by one of another kind since its
 * name was looked up.  A view would run its owner's functions as the role that reads it.
 *
 * If this node is lost, others wait there for its locks on tables until its session ends.
 */
static const char *const settings[] = {
	"SET row_security = off",
	"SET restrict_nonsystem_relation_kind = 'view, foreign-table'",
	"SET tcp_keepalives_idle = '1min'",
	"SET tcp_keepalives_interval = '10s'",
	"SET tcp_keepalives_count = 6"
};

/* The member that is copied; static because CopyFrom's callback has no argument. */
static Remote *source;
static const char *source_dsn;
static CopyReader reader;
static bool reader_ended;		/* the connection must not be read any further */

static bool
next_message(bool may_wait)
{
	CopyReadResult result;

	if (reader_ended)
		return false;
	result = copy_reader_receive(&reader, may_wait);
	reader_ended = result == COPY_READ_END;
	return result == COPY_READ_MESSAGE;
}

static int
read_data(void *buffer, int min_read, int max_read)
{
	return copy_reader_read(&reader, next_message, buffer, min_read, max_read);
}

/* Returns the names of the columns to copy, and appends them, quoted, to "list". */
static List *
columns_of(Relation rel, StringInfo list)
{
	List	   *names = NIL;

	for (int i = 0; i < RelationGetDescr(rel)->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(rel), i);

		if (attribute->attisdropped || attribute->attgenerated)
			continue;
		appendStringInfo(list, "%s%s", names == NIL ? "" : ", ",
						 quote_identifier(NameStr(attribute->attname)));
		names = lappend(names, makeString(pstrdup(NameStr(attribute->attname))));
	}
	return names;
}

/* Stores the rows that a COPY TO STDOUT on the other member sends. */
static void
copy_into(Relation rel, List *names, const char *command, bool freeze)
{
	ParseState *pstate = make_parsestate(NULL);
	List	   *options = NIL;
	CopyFromState copy;

	if (freeze)
		options = list_make1(makeDefElem("freeze", (Node *) makeBoolean(true), -1));
	remote_begin_copy_out(source, command);
	copy_reader_start(&reader, source->conn);
	reader_ended = false;
	(void) addRangeTableEntryForRelation(pstate, rel, RowExclusiveLock, NULL, false, false);
	PushActiveSnapshot(GetTransactionSnapshot());
	copy = BeginCopyFrom(pstate, rel, NULL, NULL, false, read_data, names, options);
	(void) CopyFrom(copy);
	EndCopyFrom(copy);
	copy_reader_end(&reader);
	PopActiveSnapshot();
	free_parsestate(pstate);
	CommandCounterIncrement();
}

/* Copies a table with helpers; returns false if it is small or that is not possible. */
static bool
copy_with_helpers(Relation rel, const char *command, bool must_use_password)
{
	CopyPublisher publisher = {
		.subid = InvalidOid,
		.user = psprintf("node \"%s\"", source->node),
		.appname = "weft group",
		.conninfo = source_dsn,
		.must_use_password = must_use_password,
		.all_rows = true
	};
	bool		result;

	if (weft_copy_workers_per_table == 0)
		return false;
	PushActiveSnapshot(GetTransactionSnapshot());
	result = copy_table_rows(&publisher, source->conn, rel, command) != NULL;
	PopActiveSnapshot();
	if (result)
		copy_table_indexes();
	return result;
}

static void
fail_renamed(const char *kind, const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("%s %s of node \"%s\" was renamed while tables were copied", kind, name, source->node),
			 errhint("Join again, and rename nothing meanwhile.")));
}

/* Fails if a name of the other member no longer means the table that is to be copied. */
static void
check_source_table(const char *schema, const char *table)
{
	if (!copied_tables_same(source, schema, table))
		fail_renamed("table", quote_qualified_identifier(schema, table));
}

/*
 * Copies a table.  Storing rows runs code of the table's owner: triggers, constraints of
 * tables and domains, expressions of indexes.  It runs as the owner, as when changes are
 * applied.
 */
static void
copy_table(Oid relid)
{
	Relation	rel = table_open(relid, RowExclusiveLock);
	bool		must_use_password = !superuser();
	char	   *schema = get_namespace_name(RelationGetNamespace(rel));
	StringInfoData list;
	List	   *names;
	char	   *command;
	UserContext context;

	initStringInfo(&list);
	names = columns_of(rel, &list);
	local_table_check_rights(rel, ACL_INSERT);
	check_source_table(schema, RelationGetRelationName(rel));
	command = psprintf("COPY %s %s TO STDOUT",
					   quote_qualified_identifier(schema, RelationGetRelationName(rel)),
					   names == NIL ? "" : psprintf("(%s)", list.data));
	SwitchToUntrustedUser(rel->rd_rel->relowner, &context);
	if (names == NIL || !copy_with_helpers(rel, command, must_use_password))
		copy_into(rel, names, command, true);
	RestoreUserContext(&context);
	check_source_table(schema, RelationGetRelationName(rel));
	table_close(rel, NoLock);
}

/* Stores the rows that a command on the other member sends in a table of Weft's. */
static void
copy_into_own_table(const char *table, const char *command)
{
	Relation	rel = table_open(get_relname_relid(table, get_namespace_oid("weft", false)),
								 RowExclusiveLock);
	StringInfoData list;

	initStringInfo(&list);
	copy_into(rel, columns_of(rel, &list), command, false);
	table_close(rel, NoLock);
}

/*
 * Copies which rows of a table were changed recently on the other member, by which node and
 * when, for recent.c.
 */
static void
copy_recent(Oid relid)
{
	char	   *command = local_value(psprintf("SELECT weft.recent_query(%u)", relid));

	if (command == NULL)
		return;
	copy_into_own_table("join_recent", command);
}

/* The same for rows that were deleted, and for rows into which counters were merged. */
static void
copy_conflict_state(void)
{
	char	   *since = local_value("SELECT pg_catalog.quote_literal(recent_since) FROM weft.join_entry");

	if (since == NULL)
		return;
	copy_into_own_table("join_tombstone",
						psprintf("COPY (SELECT * FROM weft.member_tombstones(%s)) TO STDOUT", since));
	copy_into_own_table("join_merged_row",
						psprintf("COPY (SELECT * FROM weft.member_merged_rows(%s)) TO STDOUT", since));
	local_run("SELECT weft.keep_tombstones()");
}

/* Reading a sequence locks it, so that its name is looked at afterwards. */
static void
copy_sequence(const char *schema, const char *name)
{
	char	   *sequence = quote_qualified_identifier(schema, name);
	char	  **values = remote_row(source,
									psprintf("SELECT last_value, is_called FROM %s", sequence), 2);
	char	   *end = NULL;

	if (!copied_name_same(source, schema, name))
		fail_renamed("sequence", sequence);

	/* On the other member it may be anything with two columns of these names. */
	errno = 0;
	if (values != NULL && values[0] != NULL && values[1] != NULL)
		(void) strtoi64(values[0], &end, 10);
	if (end == NULL || end == values[0] || *end != '\0' || errno != 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("unexpected answer from node \"%s\"", source->node),
				 errdetail("The query was for the value of sequence %s.", sequence)));
	local_run(psprintf("SELECT pg_catalog.setval(%s, %s, %s)",
					   quote_literal_cstr(sequence), quote_literal_cstr(values[0]),
					   quote_literal_cstr(values[1])));
}

/* Connects to the other member, to read it as a snapshot there sees it. */
void
data_open(const char *dsn, const char *node, const char *snapshot)
{
	source = remote_connect(dsn, node, false);
	source_dsn = dsn;
	for (int i = 0; i < lengthof(settings); i++)
		remote_run(source, settings[i]);
	remote_run(source, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
	remote_run(source, psprintf("SET TRANSACTION SNAPSHOT %s", quote_literal_cstr(snapshot)));
}

/*
 * Locks the tables of the other member until data_close().  Returns NULL, or why the snapshot cannot be copied; fails
 * if that takes too long.  "now" is another session there.
 */
char *
data_lock(Remote *now)
{
	char	   *changed = copied_tables_lock(source, now);

	if (changed != NULL)
		return psprintf("These tables have been changed since the snapshot: %s.", changed);
	changed = copied_types_changed(source, now);
	if (changed != NULL)
		return psprintf("These types have been changed since the snapshot: %s.", changed);
	return NULL;
}

/* Fails if types have changed, so that values may have been read as others than they are. */
void
data_check_types(void)
{
	Remote	   *now = remote_connect(source_dsn, source->node, false);
	char	   *changed = copied_types_changed(source, now);

	if (changed != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("types were changed on node \"%s\" while tables were copied: %s", source->node, changed),
				 errhint("Join again, and change no type meanwhile.")));
	remote_close(now);
}

static void
for_all_tables(void (*function) (Oid relid))
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "weft group copy",
												  ALLOCSET_DEFAULT_SIZES);
	List	   *tables = local_rows(TABLES_QUERY, 1);

	foreach_ptr(LocalValue, row, tables)
	{
		MemoryContext old = MemoryContextSwitchTo(context);

		(*function) (atooid(row[0]));
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
}

/* Copies all tables and sequences of the group, in the current transaction. */
void
data_copy(void)
{
	List	   *sequences = local_rows(SEQUENCES_QUERY, 2);

	for_all_tables(copy_table);
	foreach_ptr(LocalValue, row, sequences)
		copy_sequence(row[0], row[1]);
}

/* Copies what recent.c needs; called when the tables have their keys. */
void
data_copy_recent(void)
{
	for_all_tables(copy_recent);
	copy_conflict_state();
}

/*
 * weft.is_empty(relation regclass)
 *
 * Is the table empty?  No query is planned, because planning could run code of its owner.
 */
Datum
weft_is_empty(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Relation	rel = local_table_open(relid, ACL_SELECT, AccessShareLock);
	bool		empty = target_table_empty(rel);

	table_close(rel, AccessShareLock);
	PG_RETURN_BOOL(empty);
}

/*
 * weft.join_truncate()
 *
 * Before the copy: tables that exist already get new files, so that rows can be stored
 * frozen.  Fails if one of them has rows.  Triggers run as their table's owner.
 */
Datum
weft_join_truncate(PG_FUNCTION_ARGS)
{
	List	   *tables = local_rows(TABLES_QUERY, 1);
	List	   *rels = NIL;
	List	   *relids = NIL;

	foreach_ptr(LocalValue, row, tables)
	{
		Oid			relid = atooid(row[0]);
		Relation	rel = local_table_open(relid, ACL_TRUNCATE, AccessExclusiveLock);

		/* Sees what was committed before the lock was granted. */
		PushActiveSnapshot(GetLatestSnapshot());
		if (!target_table_empty(rel))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table %s on node \"%s\" is not empty",
							quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
													   RelationGetRelationName(rel)),
							local_value("SELECT weft.local_node()"))));
		PopActiveSnapshot();
		rels = lappend(rels, rel);
		relids = lappend_oid(relids, relid);
	}

	/* All at once, because of foreign keys. */
	if (rels != NIL)
		ExecuteTruncateGuts(rels, relids, NIL, DROP_RESTRICT, false, true);
	foreach_ptr(RelationData, rel, rels)
		table_close(rel, NoLock);
	PG_RETURN_VOID();
}

void
data_close(void)
{
	remote_run(source, "COMMIT");
	remote_close(source);
	source = NULL;
}
