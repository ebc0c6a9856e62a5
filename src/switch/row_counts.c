/*
 * row_counts.c
 *	  Compares how many rows the tables of both sides have.
 *
 * The other server counts while this one does: its query is a COPY, which returns before it
 * has counted anything.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "switch/fence.h"
#include "switch/link.h"
#include "switch/row_counts.h"
#include "utils/builtins.h"

/*
 * The tables here that are compared, and what to count there: schema, name, and whether it
 * has partitions here.
 */
static List *
tables_here(const SwitchAttempt *attempt)
{
	return side_rows(SIDE_HERE,
					 psprintf("SELECT n.nspname, c.relname, CASE WHEN c.relkind = 'p' THEN '' ELSE 'ONLY ' END"
							  " FROM (%s) base JOIN pg_catalog.pg_class c ON c.oid = base.oid"
							  " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
							  " ORDER BY n.nspname, c.relname", fence_base_tables(attempt, SIDE_HERE)), 3);
}

/*
 * The same there, with the rows that are published: the filters are what the publications
 * of that server say.  Tables that do not exist here are not compared.
 */
static List *
tables_there(const SwitchAttempt *attempt)
{
	StringInfoData names;
	ListCell   *cell;

	initStringInfo(&names);
	foreach(cell, attempt->subscription->publications)
		appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "",
						 quote_literal_cstr(strVal(lfirst(cell))));
	return link_rows(psprintf("SELECT n.nspname, c.relname, CASE WHEN c.relkind = 'p' THEN '' ELSE 'ONLY ' END,"
							  " CASE WHEN pg_catalog.bool_or(p.rowfilter IS NULL) THEN NULL"
							  "  ELSE pg_catalog.string_agg('(' || p.rowfilter || ')', ' OR ') END"
							  " FROM pg_catalog.pg_publication_tables p"
							  " JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname"
							  " JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename"
							  " WHERE p.pubname IN (%s) GROUP BY 1, 2, 3 ORDER BY 1, 2", names.data), 4);
}

static void
append_count(StringInfo query, int number, char **table, const char *filter)
{
	appendStringInfo(query, "%sSELECT %d AS n, pg_catalog.count(*) AS rows FROM %s%s",
					 number > 0 ? " UNION ALL " : "", number, table[2],
					 quote_qualified_identifier(table[0], table[1]));
	if (filter != NULL)
		appendStringInfo(query, " WHERE %s", filter);
}

/* Finds a table of the same name, or NULL. */
static char **
find_table(List *tables, char **table)
{
	ListCell   *cell;

	foreach(cell, tables)
	{
		char	  **other = lfirst(cell);

		if (strcmp(other[0], table[0]) == 0 && strcmp(other[1], table[1]) == 0)
			return other;
	}
	return NULL;
}

/*
 * Fails if a table has not as many rows here as there.  Returns what it has compared, for the
 * user.
 */
char *
row_counts_compare(const SwitchAttempt *attempt)
{
	List	   *there = tables_there(attempt);
	List	   *pairs = NIL;
	StringInfoData query_here,
				query_there,
				differing;
	char	   *counts_there;
	ListCell   *cell;

	initStringInfo(&query_here);
	initStringInfo(&query_there);
	initStringInfo(&differing);
	foreach(cell, tables_here(attempt))
	{
		char	  **table = lfirst(cell);
		char	  **other = find_table(there, table);

		if (other == NULL)
			continue;
		append_count(&query_here, list_length(pairs), table, NULL);

		/*
		 * Once it has followed, rows that the filters exclude may be here,
		 * and were sent there.
		 */
		append_count(&query_there, list_length(pairs), other, attempt->back ? NULL : other[3]);
		pairs = lappend(pairs, table);
	}
	if (pairs == NIL)
		return "no tables";

	link_begin_copy_out(psprintf("COPY (SELECT rows FROM (%s) c ORDER BY n) TO STDOUT", query_there.data));
	{
		List	   *counts = side_rows(SIDE_HERE, psprintf("SELECT rows FROM (%s) c ORDER BY n", query_here.data), 1);

		counts_there = link_end_copy_out();
		foreach(cell, counts)
		{
			char	   *count = ((char **) lfirst(cell))[0];
			char	   *other = strsep(&counts_there, "\n");
			char	  **table = list_nth(pairs, foreach_current_index(cell));

			if (other == NULL || strcmp(count, other) != 0)
				appendStringInfo(&differing, "%s%s has %s rows here and %s there",
								 differing.len > 0 ? "; " : "",
								 quote_qualified_identifier(table[0], table[1]), count,
								 other ? other : "?");
		}
	}
	if (differing.len > 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("the tables of subscription \"%s\" are not the same on both sides",
						attempt->subscription->name),
				 errdetail_internal("%s.", differing.data),
				 errhint("Compare them with weft.compare_subscription.")));
	return psprintf("%d tables", list_length(pairs));
}
