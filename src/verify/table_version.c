/*
 * table_version.c
 *	  Whether tables were altered, truncated or dropped since a snapshot was taken.
 *
 * A snapshot protects from changes of rows only.  TRUNCATE, and ALTER TABLE where it rewrites a
 * table, remove rows for all snapshots; DETACH PARTITION takes them out of the table; and a query
 * always uses the newest definition.  A lock keeps others from doing so, but the first query for a table locks
 * it some time after the snapshot was taken.  To lock it before that would not do: apply may
 * have to truncate it on its way to the cut.
 *
 * Therefore the versions of tables are read from the catalog twice: as the snapshot sees them, and as
 * they are once everything has been read.  If both are equal, then nothing was altered in
 * between.  A version is made of the files in which the table and its partitions are
 * stored, their names and schemas, their places in the hierarchy, and their columns, with the labels of
 * enums and the attributes of composite types in them, because these are part of the texts of values, and are
 * not read with a snapshot; here, also of the state of the table in the subscription.
 *
 * A query has locked the table until the transaction ends.  Whoever wants to alter it waits,
 * and apply with him.  Therefore the session that compares looks from time to time whether
 * somebody waits, and then ends the cut early.
 */
#include "postgres.h"

#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "remote_query.h"
#include "verify/table_version.h"

static char *
oid_list(const List *relids)
{
	StringInfoData list;

	initStringInfo(&list);
	foreach_oid(relid, relids)
		appendStringInfo(&list, "%s%u", list.len > 0 ? "," : "", relid);
	return list.data;
}

/*
 * A subquery for the user-defined types that make up the columns of relation c, with their labels and
 * attributes.  No built-in type is made of others' types.  A type may belong to several of them.
 */
static const char types[] =
"(WITH RECURSIVE part (type) AS ("
" SELECT a.atttypid FROM pg_catalog.pg_attribute a"
" WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.atttypid >= 16384"
" UNION SELECT x.type FROM part p, LATERAL ("
"SELECT y.typelem FROM pg_catalog.pg_type y WHERE y.oid = p.type"
" UNION ALL SELECT y.typbasetype FROM pg_catalog.pg_type y WHERE y.oid = p.type"
" UNION ALL SELECT a.atttypid FROM pg_catalog.pg_type y JOIN pg_catalog.pg_attribute a"
" ON a.attrelid = y.typrelid WHERE y.oid = p.type AND y.typrelid <> 0 AND a.attnum > 0"
" UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r"
" WHERE p.type IN (r.rngtypid, r.rngmultitypid)) x (type) WHERE x.type >= 16384)"
" SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', y.oid,"
" (SELECT pg_catalog.string_agg(pg_catalog.quote_literal(e.enumlabel), ' ' ORDER BY e.oid)"
" FROM pg_catalog.pg_enum e WHERE e.enumtypid = y.oid),"
" (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', a.attnum, a.atttypid, a.atttypmod,"
" a.attisdropped), ',' ORDER BY a.attnum)"
" FROM pg_catalog.pg_attribute a WHERE a.attrelid = y.typrelid AND y.typrelid <> 0 AND a.attnum > 0)),"
" ',' ORDER BY y.oid)"
" FROM part p JOIN pg_catalog.pg_type y ON y.oid = p.type)";

/*
 * The columns are the table's OID and its version.  "state" is an expression for what else belongs to the
 * version.
 */
static char *
version_query(const List *relids, const char *state)
{
	return psprintf(
					"WITH RECURSIVE tree (root, relid, link) AS ("
					" SELECT c.oid, c.oid, '0' FROM pg_catalog.pg_class c"
					" WHERE c.oid = ANY ('{%s}'::pg_catalog.oid[])"
					" UNION ALL SELECT t.root, i.inhrelid, i.xmin::pg_catalog.text"
					" FROM pg_catalog.pg_inherits i JOIN tree t ON i.inhparent = t.relid)"
					" SELECT t.root::pg_catalog.text, pg_catalog.string_agg(pg_catalog.concat_ws(' ',"
					" t.relid, t.link, c.relfilenode, c.relkind, n.nspname, c.relname,"
					" c.relrowsecurity, %s, %s,"
					" (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', a.attnum, a.attname,"
					" a.atttypid, a.atttypmod, a.attcollation, a.attnotnull, a.attisdropped), ',' ORDER BY a.attnum)"
					" FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)),"
					" ';' ORDER BY t.relid)"
					" FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.relid"
					" JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace GROUP BY t.root",
					oid_list(relids), types, state);
}

static char *
lock_query(const List *relids)
{
	return psprintf("WITH RECURSIVE tree (relid) AS ("
					" SELECT r FROM pg_catalog.unnest('{%s}'::pg_catalog.oid[]) r"
					" UNION ALL SELECT i.inhrelid FROM pg_catalog.pg_inherits i"
					" JOIN tree t ON i.inhparent = t.relid)"
					" SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l JOIN tree t ON l.relation = t.relid"
					" JOIN pg_catalog.pg_database d ON d.oid = l.database"
					" WHERE NOT l.granted AND d.datname = pg_catalog.current_database())"
					"::pg_catalog.text",
					oid_list(relids));
}

static TableVersion *
make_version(const char *relid, const char *text)
{
	TableVersion *version = palloc(sizeof(TableVersion));

	version->relid = atooid(relid);
	version->text = pstrdup(text);
	return version;
}

/* Returns the versions of tables here, as the active snapshot sees them. */
List *
table_versions_local(Oid subid, const List *relids)
{
	MemoryContext context = CurrentMemoryContext;
	char	   *state = psprintf("(SELECT s.srsubstate FROM pg_catalog.pg_subscription_rel s"
								 " WHERE s.srsubid = %u AND s.srrelid = t.root)", subid);
	char	   *query = version_query(relids, state);
	List	   *result = NIL;

	if (relids == NIL)
		return NIL;
	SPI_connect();
	if (SPI_execute(query, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the versions of tables");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		char	   *relid = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1);
		char	   *text = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2);
		MemoryContext old = MemoryContextSwitchTo(context);

		result = lappend(result, make_version(relid, text));
		MemoryContextSwitchTo(old);
	}
	SPI_finish();
	return result;
}

/* The same for the publisher's tables; its transaction determines the snapshot. */
List *
table_versions_publisher(WalReceiverConn *conn, const List *relids)
{
	RemoteAnswer answer;
	List	   *result = NIL;

	if (relids == NIL)
		return NIL;
	answer = remote_query(conn, "read the versions of the publisher's tables",
						  version_query(relids, "NULL"), WALRCV_OK_TUPLES, 2);
	foreach_ptr(RemoteValue, values, answer.rows)
		result = lappend(result, make_version(values[0], values[1]));
	return result;
}

/* Returns NULL if the table does not exist. */
const char *
table_version_find(const List *versions, Oid relid)
{
	foreach_ptr(TableVersion, version, versions)
		if (version->relid == relid)
		return version->text;
	return NULL;
}

/* Is the table the same in both lists? */
bool
table_version_equal(const List *old, const List *new, Oid relid)
{
	const char *before = table_version_find(old, relid);
	const char *after = table_version_find(new, relid);

	return before != NULL && after != NULL && strcmp(before, after) == 0;
}

/* Does somebody wait here for a lock on one of these tables? */
bool
table_locks_wanted_local(const List *relids)
{
	char	   *query = lock_query(relids);
	char	   *value;
	bool		result;

	SPI_connect();
	if (SPI_execute(query, true, 1) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not read locks on tables");
	value = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	result = value != NULL && strcmp(value, "true") == 0;
	SPI_finish();
	return result;
}

/* The same on the publisher. */
bool
table_locks_wanted_publisher(WalReceiverConn *conn, const List *relids)
{
	RemoteValue *values = remote_query_row(conn, "read locks on the publisher's tables",
										   lock_query(relids), 1);

	return values[0] != NULL && strcmp(values[0], "true") == 0;
}
