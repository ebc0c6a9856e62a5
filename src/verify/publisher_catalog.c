/*
 * publisher_catalog.c
 *	  What the publisher's catalog says of the tables that a subscription gets.
 *
 * All publishers from version 15 on understand these queries.  pg_get_publication_tables()
 * resolves what a publication includes: schemas, all tables, partitions or their root.  If one
 * publication publishes a partition, and another one its root with publish_via_partition_root,
 * then the changes are sent as those of the root, so the partition is left out.
 */
#include "postgres.h"

#include "nodes/value.h"
#include "remote_query.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "verify/publisher_catalog.h"

#define FIRST_VERSION 150000

/* What is published of the tables that are wanted; begins each query. */
static const char published[] =
"WITH entry AS MATERIALIZED (SELECT p.pubinsert, p.pubupdate, p.pubdelete, g.relid, g.attrs, g.qual"
" FROM pg_catalog.pg_publication p,"
" LATERAL pg_catalog.pg_get_publication_tables(p.pubname) g"
" WHERE p.pubname IN (%s)),"
" wanted AS MATERIALIZED (SELECT DISTINCT c.oid, c.relnamespace, n.nspname, c.relname, c.relkind,"
" c.relreplident, c.reltuples"
" FROM entry e JOIN pg_catalog.pg_class c ON c.oid = e.relid"
" JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
" WHERE (%s) AND NOT EXISTS (SELECT FROM pg_catalog.pg_partition_ancestors(c.oid) a"
" WHERE a.relid <> c.oid AND a.relid IN (SELECT e2.relid FROM entry e2))) ";

/*
 * The index that identifies rows, else the primary key, which can do so with REPLICA IDENTITY
 * FULL or NOTHING, too.  Columns that are only INCLUDEd are no part of it.
 */
static const char question_of_tables[] =
"SELECT w.oid, w.nspname, w.relname, w.relkind,"
" pg_catalog.has_schema_privilege(w.relnamespace, 'USAGE')"
" AND NOT pg_catalog.row_security_active(w.oid),"
" (SELECT pg_catalog.string_agg(k.attnum::pg_catalog.text, ' ' ORDER BY k.position)"
" FROM (SELECT i.indkey, i.indnkeyatts FROM pg_catalog.pg_index i"
" WHERE i.indrelid = w.oid AND i.indisvalid"
" AND (i.indisprimary OR i.indisreplident AND w.relreplident = 'i')"
" ORDER BY i.indisreplident AND w.relreplident = 'i' DESC LIMIT 1) x,"
" pg_catalog.unnest(x.indkey) WITH ORDINALITY k (attnum, position)"
" WHERE k.position <= x.indnkeyatts),"
" CASE w.relkind WHEN 'p' THEN"
" (SELECT pg_catalog.sum(pg_catalog.float4larger(c.reltuples, 0))"
" FROM pg_catalog.pg_partition_tree(w.oid) t JOIN pg_catalog.pg_class c ON c.oid = t.relid"
" WHERE t.isleaf) ELSE pg_catalog.float4larger(w.reltuples, 0) END"
" FROM wanted w ORDER BY w.oid";

/*
 * A collation of the provider "builtin" compares bytes, whatever it is called.  From version 18 on,
 * a column with attnotnull has null values if its constraint is NOT VALID.
 */
static const char question_of_columns[] =
"SELECT a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod,"
" CASE WHEN a.attcollation = 0::pg_catalog.oid THEN true"
" WHEN l.collprovider = 'd' THEN d.datlocprovider = 'b'"
" OR d.datlocprovider = 'c' AND d.datcollate IN ('C', 'POSIX')"
" ELSE l.collprovider = 'b' OR l.collprovider = 'c' AND l.collcollate IN ('C', 'POSIX') END,"
" a.attgenerated <> '',"
" a.attnotnull AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint x"
" WHERE x.conrelid = a.attrelid AND x.contype = 'n' AND NOT x.convalidated"
" AND a.attnum = ANY (x.conkey)),"
" pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT')"
" FROM wanted w JOIN pg_catalog.pg_attribute a ON a.attrelid = w.oid"
" JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()"
" LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation"
" WHERE a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum";

static const char question_of_entries[] =
"SELECT e.relid, e.pubinsert, e.pubupdate, e.pubdelete, e.attrs::pg_catalog.text,"
" pg_catalog.pg_get_expr(e.qual, e.relid)"
" FROM entry e JOIN wanted w ON w.oid = e.relid ORDER BY e.relid";

/* The commands whose changes publications publish, but for TRUNCATE. */
#define COMMANDS 3

/* What the publications together say of one table. */
typedef struct Summary
{
	Oid			relid;			/* must be first: the key */
	CatalogTable *table;
	int			entries;
	bool		published[COMMANDS];
	bool		all_rows[COMMANDS]; /* has one of them no row filter? */
	List	   *filters[COMMANDS];	/* else these, without duplicates */
} Summary;

static char *
names_of(List *publications)
{
	StringInfoData list;
	ListCell   *cell;

	initStringInfo(&list);
	foreach(cell, publications)
		appendStringInfo(&list, "%s%s", list.len > 0 ? ", " : "",
						 quote_literal_cstr(strVal(lfirst(cell))));
	return list.data;
}

/* A condition that selects the tables that are called as these are here. */
static char *
condition_of(List *relids)
{
	StringInfoData condition;
	ListCell   *cell;

	if (relids == NIL)
		return "true";
	initStringInfo(&condition);
	foreach(cell, relids)
	{
		char	   *name = get_rel_name(lfirst_oid(cell));

		if (name != NULL)
			appendStringInfo(&condition, "%sn.nspname = %s AND c.relname = %s",
							 condition.len > 0 ? " OR " : "",
							 quote_literal_cstr(get_namespace_name(get_rel_namespace(lfirst_oid(cell)))),
							 quote_literal_cstr(name));
	}
	return condition.len > 0 ? condition.data : "false";
}

/* A value that must not be null. */
static char *
required(char *value)
{
	if (value == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("the publisher has sent an unexpected null value")));
	return value;
}

static Oid
to_oid(char *value)
{
	return (Oid) strtoul(required(value), NULL, 10);
}

static int
to_int(char *value)
{
	return pg_strtoint32(required(value));
}

static bool
to_bool(char *value)
{
	return strcmp(required(value), "t") == 0;
}

/* Reads a list of column numbers, separated by spaces. */
static List *
to_numbers(char *value)
{
	List	   *result = NIL;
	char	   *next;

	for (char *number = strtok_r(value, " ", &next); number; number = strtok_r(NULL, " ", &next))
		result = lappend_int(result, pg_strtoint16(number));
	return result;
}

static Summary *
find_table(HTAB *summaries, char *relid)
{
	Oid			oid = to_oid(relid);

	return hash_search(summaries, &oid, HASH_FIND, NULL);
}

static CatalogTable *
make_table(RemoteValue *row)
{
	CatalogTable *table = palloc0(sizeof(CatalogTable));

	table->relid = to_oid(row[0]);
	table->schema = required(row[1]);
	table->name = required(row[2]);
	table->relkind = required(row[3])[0];
	table->usable = to_bool(row[4]);
	table->key = row[5] ? to_numbers(row[5]) : NIL;
	table->estimated_rows = row[6] ? strtod(row[6], NULL) : 0;
	return table;
}

static CatalogColumn *
make_column(RemoteValue *row)
{
	CatalogColumn *column = palloc0(sizeof(CatalogColumn));

	column->attnum = to_int(row[1]);
	column->name = required(row[2]);
	column->type = to_oid(row[3]);
	column->typmod = to_int(row[4]);
	column->binary_order = row[5] && to_bool(row[5]);
	column->generated = to_bool(row[6]);
	column->not_null = to_bool(row[7]);
	column->readable = to_bool(row[8]);
	return column;
}

/* The columns that one publication publishes: those in its list, else all that are no result. */
static Bitmapset *
columns_of_entry(const CatalogTable *table, char *list)
{
	List	   *numbers = list ? to_numbers(list) : NIL;
	Bitmapset  *result = NULL;
	ListCell   *cell;

	foreach(cell, table->columns)
	{
		CatalogColumn *column = lfirst(cell);

		if (list ? list_member_int(numbers, column->attnum) : !column->generated)
			result = bms_add_member(result, column->attnum);
	}
	return result;
}

static void
add_filter(Summary *summary, int command, char *filter)
{
	ListCell   *cell;

	summary->published[command] = true;
	if (filter == NULL)
		summary->all_rows[command] = true;
	else
	{
		foreach(cell, summary->filters[command])
			if (strcmp(lfirst(cell), filter) == 0)
			return;
		summary->filters[command] = lappend(summary->filters[command], filter);
	}
}

static void
add_entry(Summary *summary, RemoteValue *row)
{
	CatalogTable *table = summary->table;
	Bitmapset  *columns = columns_of_entry(table, row[4]);

	if (summary->entries++ == 0)
		table->published = columns;
	else if (!bms_equal(columns, table->published))
		table->problem = "Its publications publish different columns of it.";
	for (int command = 0; command < COMMANDS; command++)
		if (to_bool(row[1 + command]))
			add_filter(summary, command, row[5]);
}

/* Do both commands send the same rows?  The publisher tells filters apart by their text. */
static bool
same_filters(const Summary *summary, int one, int other)
{
	ListCell   *cell;

	if (summary->all_rows[one] || summary->all_rows[other])
		return summary->all_rows[one] == summary->all_rows[other];
	if (list_length(summary->filters[one]) != list_length(summary->filters[other]))
		return false;
	foreach(cell, summary->filters[one])
	{
		bool		found = false;
		ListCell   *cell2;

		foreach(cell2, summary->filters[other])
			found = found || strcmp(lfirst(cell), lfirst(cell2)) == 0;
		if (!found)
			return false;
	}
	return true;
}

/* Are the rows here to be those of a condition on the rows there? */
static void
summarize(Summary *summary)
{
	CatalogTable *table = summary->table;

	for (int command = 0; command < COMMANDS; command++)
	{
		if (!summary->published[command])
			table->problem = "Not every INSERT, UPDATE and DELETE of it is published.";
		else if (summary->published[0] && !same_filters(summary, 0, command))
			table->problem = "Not the same rows of it are published for INSERT, UPDATE and DELETE.";
	}
	if (!summary->all_rows[0])
		table->filters = summary->filters[0];
}

static List *
ask(WalReceiverConn *conn, Subscription *subscription, const char *begin, const char *question,
	int columns)
{
	char	   *purpose = psprintf("read what the publisher of subscription \"%s\" publishes",
								   subscription->name);

	return remote_query(conn, purpose, psprintf("%s%s", begin, question), WALRCV_OK_TUPLES,
						columns).rows;
}

Catalog *
publisher_catalog_read(Subscription *subscription, WalReceiverConn *conn, List *relids)
{
	char	   *begin = psprintf(published, names_of(subscription->publications),
								 condition_of(relids));
	HASHCTL		ctl = {.keysize = sizeof(Oid),.entrysize = sizeof(Summary),
	.hcxt = CurrentMemoryContext};
	HTAB	   *summaries = hash_create("weft published tables", 128, &ctl,
										HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	Catalog    *catalog = palloc0(sizeof(Catalog));
	Summary    *summary;
	ListCell   *cell;

	if (walrcv_server_version(conn) < FIRST_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the publisher of subscription \"%s\" is too old to be compared",
						subscription->name),
				 errdetail("Version 15 or later is required.")));
	catalog->encoding = required(((RemoteValue *) linitial(ask(conn, subscription, "",
															   "SELECT pg_catalog.getdatabaseencoding()",
															   1)))[0]);

	foreach(cell, ask(conn, subscription, begin, question_of_tables, 7))
	{
		CatalogTable *table = make_table(lfirst(cell));
		bool		found;

		summary = hash_search(summaries, &table->relid, HASH_ENTER, &found);
		memset(summary, 0, sizeof(Summary));
		summary->relid = table->relid;
		summary->table = table;
		catalog->tables = lappend(catalog->tables, table);
	}
	foreach(cell, ask(conn, subscription, begin, question_of_columns, 9))
		if ((summary = find_table(summaries, ((RemoteValue *) lfirst(cell))[0])) != NULL)
		summary->table->columns = lappend(summary->table->columns, make_column(lfirst(cell)));
	foreach(cell, ask(conn, subscription, begin, question_of_entries, 6))
		if ((summary = find_table(summaries, ((RemoteValue *) lfirst(cell))[0])) != NULL)
		add_entry(summary, lfirst(cell));
	foreach(cell, catalog->tables)
		summarize(hash_search(summaries, &((CatalogTable *) lfirst(cell))->relid, HASH_FIND, NULL));
	hash_destroy(summaries);
	return catalog;
}
