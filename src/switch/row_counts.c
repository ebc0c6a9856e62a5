/*
 * row_counts.c
 *	  Compares how many rows the tables of both sides have.
 *
 * The other server counts while this one does: its query is a COPY, which returns before it
 * has counted anything.
 *
 * Even to count rows runs code of a table's owner, in predicates of indexes.  Therefore it
 * runs with the rights that replication gives it: here, as the role as whom apply changes the
 * table; there, not in the session that owns the tables (link.c), but in another one, which connects
 * as the subscription does.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "remote_query.h"
#include "switch/fence.h"
#include "switch/link.h"
#include "switch/row_counts.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "verify/owner_context.h"
#include "verify/publisher.h"

/*
 * The tables here that are compared, and what to count there: schema, name, whether it
 * has partitions here, and OID.
 */
static List *
tables_here(const SwitchAttempt *attempt)
{
	return side_rows(SIDE_HERE,
					 psprintf("SELECT n.nspname, c.relname, CASE WHEN c.relkind = 'p' THEN '' ELSE 'ONLY ' END, c.oid"
							  " FROM (%s) base JOIN pg_catalog.pg_class c ON c.oid = base.oid"
							  " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
							  " ORDER BY n.nspname, c.relname", fence_base_tables(attempt, SIDE_HERE)), 4);
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

/* Counts the rows of a table here, as apply's role. */
static char *
count_here(const SwitchAttempt *attempt, char **table)
{
	const Subscription *subscription = attempt->subscription;
	UserContext owner;
	Oid			user;
	int			context;
	int			nest_level;
	char	   *result;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(subscription->owner, context | SECURITY_RESTRICTED_OPERATION);
	nest_level = NewGUCNestLevel();
	RestrictSearchPath();
	(void) set_config_option("row_security", "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	owner_context_enter_table(&owner, atooid(table[3]), subscription->runasowner);
	result = side_value(SIDE_HERE,
						psprintf("SELECT pg_catalog.count(*) FROM %s%s", table[2],
								 quote_qualified_identifier(table[0], table[1])));
	owner_context_leave_table(&owner, subscription->runasowner);
	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(user, context);
	return result;
}

/* Counts here, while the other server works on its query; returns what differs, or "". */
static char *
compare_counts(const SwitchAttempt *attempt, WalReceiverConn *conn, const char *query, List *pairs)
{
	RemoteAnswer answer = remote_query(conn, NULL, query, WALRCV_OK_COPY_OUT, 0);
	List	   *counts = NIL;
	char	   *counts_there;
	StringInfoData differing;
	ListCell   *cell;

	if (answer.problem != NULL)
		ereport(ERROR,
				(errcode(answer.sqlstate ? answer.sqlstate : ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not count rows on the publisher of subscription \"%s\": %s",
						attempt->subscription->name, answer.problem)));

	/*
	 * The session may be idle for as long as the pause may be
	 * (link_limit_idleness).
	 */
	foreach(cell, pairs)
		counts = lappend(counts, count_here(attempt, lfirst(cell)));
	counts_there = link_read_copy(conn);
	initStringInfo(&differing);
	foreach(cell, counts)
	{
		char	   *count = lfirst(cell);
		char	   *other = strsep(&counts_there, "\n");
		char	  **table = list_nth(pairs, foreach_current_index(cell));

		if (other == NULL || strcmp(count, other) != 0)
			appendStringInfo(&differing, "%s%s has %s rows here and %s there",
							 differing.len > 0 ? "; " : "",
							 quote_qualified_identifier(table[0], table[1]), count,
							 other ? other : "?");
	}
	return differing.data;
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
	StringInfoData query;
	WalReceiverConn *conn;
	char	   *differing;
	ListCell   *cell;

	initStringInfo(&query);
	foreach(cell, tables_here(attempt))
	{
		char	  **table = lfirst(cell);
		char	  **other = find_table(there, table);

		if (other == NULL)
			continue;

		/*
		 * Once it has followed, rows that the filters exclude may be here,
		 * and were sent there.
		 */
		append_count(&query, list_length(pairs), other, attempt->back ? NULL : other[3]);
		pairs = lappend(pairs, table);
	}
	if (pairs == NIL)
		return "no tables";

	conn = publisher_connect(attempt->subscription);
	PG_TRY();
	{
		differing = compare_counts(attempt, conn,
								   psprintf("COPY (SELECT rows FROM (%s) c ORDER BY n) TO STDOUT", query.data),
								   pairs);
	}
	PG_FINALLY();
	{
		walrcv_disconnect(conn);
	}
	PG_END_TRY();
	if (differing[0] != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("the tables of subscription \"%s\" are not the same on both sides",
						attempt->subscription->name),
				 errdetail_internal("%s.", differing),
				 errhint("Compare them with weft.compare_subscription.")));
	return psprintf("%d tables", list_length(pairs));
}
