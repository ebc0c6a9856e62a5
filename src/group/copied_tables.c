/*
 * copied_tables.c
 *	  Locks the tables of the member that is copied.
 *
 * J joins, and reads the tables of M in a snapshot, one after the other, which may take hours.  What
 * sessions change there after it arrives through M's slot.  But no older snapshot sees a row in a file that
 * a table has got meanwhile with new versions of its rows: from ALTER TABLE that rewrites them, from an
 * extension such as pg_repack, or from REPACK (CONCURRENTLY) of PostgreSQL 19.  And the names
 * that J has are those of the snapshot, whereas a COPY reads the table and the columns that
 * have these names now.
 *
 * Therefore J locks all tables before it reads the first one, and keeps the locks until it has read the last one:
 * nobody can exchange a table's file meanwhile, or rename it or its columns.  Then it compares the tables
 * with the snapshot.  If anything has changed between the snapshot and the locks, it begins again, with a new
 * snapshot (join.c).  That may be for nothing, since VACUUM FULL and TRUNCATE give a table another file, too, and do no
 * harm; but nothing tells what has given a table its file.  Only a schema can be renamed in spite of the
 * locks; so data.c compares the name of each table before and after it is read.
 *
 * J locks in the session that reads.  Another one could wait behind somebody who waits for these locks, and that
 * would never end: the server does not know that the two sessions belong together.  For the same reason, waiting
 * for a lock has a timeout.  While J waits, its session K keeps M's schema (snapshot.c), and who has a lock that J
 * waits for may wait for K.
 *
 * A function that looks something up in the catalog, such as pg_relation_filenode(), sees what is there now; a query sees
 * what its snapshot does.
 */
#include "postgres.h"

#include "group/copied_tables.h"
#include "utils/builtins.h"

/* How long to wait for each lock, in milliseconds. */
#define LOCK_LIMIT 5000

/* The published tables with their schemas, as a snapshot has them. */
#define TABLES \
	"weft.published_tables() r JOIN pg_catalog.pg_class c ON c.oid = r" \
	" JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"

#define QUOTED_NAME "(pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname))"

/* Does the name of "c" in the snapshot mean "c" now? */
#define SAME_NAME "c.oid IS NOT DISTINCT FROM pg_catalog.to_regclass(" QUOTED_NAME ")::pg_catalog.oid"

/* Does it, and has the table the same file? */
#define SAME_TABLE \
	"(" SAME_NAME " AND c.relfilenode = coalesce(pg_catalog.pg_relation_filenode(c.oid), 0::pg_catalog.oid))"

#define COLUMN_NAMES \
	"(SELECT pg_catalog.json_object_agg(a.attnum, a.attname) FROM pg_catalog.pg_attribute a" \
	" WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)"

/* The tables that are not, or have columns that are not, what the snapshot has; NULL if there is none. */
static char *
changed_tables(Remote *source, Remote *now)
{
	char	   *columns = remote_value(now,
									   "SELECT coalesce(pg_catalog.json_object_agg(c.oid, " COLUMN_NAMES "), '{}')"
									   " FROM " TABLES);

	/*
	 * FILTER: the role may have no right to look up names in schemas of other
	 * tables.
	 */
	return remote_value(source,
						psprintf("SELECT pg_catalog.string_agg(" QUOTED_NAME ", ', ' ORDER BY c.oid) FILTER (WHERE NOT " SAME_TABLE
								 "  OR " COLUMN_NAMES "::pg_catalog.jsonb"
								 "   IS DISTINCT FROM NULLIF(s.columns -> c.oid::text, 'null'))"
								 " FROM " TABLES ", (SELECT %s::pg_catalog.jsonb) s (columns)",
								 quote_literal_cstr(columns)));
}

/*
 * Locks all tables that M publishes in the snapshot of the transaction of "source", until that ends.  "now" is another
 * session on M, which sees what is there now.  Returns NULL, or the names of tables that have changed since the snapshot;
 * fails with ERRCODE_LOCK_NOT_AVAILABLE if a lock takes too long.
 */
char *
copied_tables_lock(Remote *source, Remote *now)
{
	char	   *names;
	char	   *changed = changed_tables(source, now);

	if (changed != NULL)
		return changed;
	names = remote_value(source,
						 "SELECT pg_catalog.string_agg('ONLY ' || " QUOTED_NAME ", ', ' ORDER BY c.oid)"
						 " FROM " TABLES);
	if (names == NULL)
		return NULL;
	remote_run(source,
			   psprintf("SET LOCAL lock_timeout = %d; LOCK TABLE %s IN ACCESS SHARE MODE;"
						" SET LOCAL lock_timeout TO DEFAULT", LOCK_LIMIT, names));
	return changed_tables(source, now);
}

/* Is a condition true of the relation "c" that has this name in the snapshot of the transaction of "source"? */
static bool
is_true_of(Remote *source, const char *condition, const char *schema, const char *name)
{
	char	   *answer = remote_value(source,
									  psprintf("SELECT %s FROM pg_catalog.pg_class c"
											   " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
											   " WHERE n.nspname = %s AND c.relname = %s",
											   condition, quote_literal_cstr(schema), quote_literal_cstr(name)));

	return answer != NULL && answer[0] == 't';
}

/* Does the name mean the relation that it means in the snapshot of the transaction of "source"? */
bool
copied_name_same(Remote *source, const char *schema, const char *name)
{
	return is_true_of(source, SAME_NAME, schema, name);
}

/* The same for a table, which also has the same file. */
bool
copied_tables_same(Remote *source, const char *schema, const char *table)
{
	return is_true_of(source, SAME_TABLE, schema, table);
}
