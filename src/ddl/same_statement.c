/*
 * same_statement.c
 *	  The same schema change of several members of a node group.
 *
 * An application starts on two members at once, and creates its tables on both.  Each member gets the
 * other one's CREATE TABLE when it has the table.  If it is the same text, executed by the same
 * role under the same search_path, then the table is the same, too, and the second one has nothing to do.
 *
 * That holds only for schema changes of which neither has seen the other (seen.c).  If E came after
 * D and has the same text, then something has undone D meanwhile, and E is executed.
 *	 - D was made by a session here: E has not seen it if D was made behind what E had seen of this
 *	   member.  (If a session has made D before that, and has committed it after that, then E
 *	   counts as later.  It is executed, and fails.)
 *	 - D came from another member: E has not seen it if its commit record is behind what E had
 *	   seen of that member.
 *
 * Anything else that exists already makes the schema change fail, IF NOT EXISTS included
 * (ddl_make_strict): what has the same name may have other columns.
 */
#include "postgres.h"

#include "ddl/same_statement.h"
#include "ddl/seen.h"
#include "lib/stringinfo.h"
#include "local_query.h"
#include "node_identity.h"
#include "replication/worker_internal.h"
#include "utils/builtins.h"

#define RECENTLY "(pg_catalog.now() OPERATOR(pg_catalog.-) interval '1 hour')"

/*
 * The schema changes that sessions here have made, and that were executed here, with the same text.
 * Nothing is known of older ones, so that the query is fast.
 */
#define SAME \
	"SELECT q.message->>'made_at' AS made_at FROM weft.ddl_queue q" \
	" WHERE q.captured_at OPERATOR(pg_catalog.>) " RECENTLY \
	" AND q.message->>'statement' OPERATOR(pg_catalog.=) %s" \
	" AND q.message->>'role' OPERATOR(pg_catalog.=) %s" \
	" AND q.message->'settings'->>'search_path' OPERATOR(pg_catalog.=) %s"

static const char *
search_path_of(const DdlMessage *message)
{
	foreach_ptr(DdlSetting, setting, message->settings)
		if (strcmp(setting->name, "search_path") == 0)
		return setting->value;
	return "";
}

/* Writes a condition for a row of weft.ddl_applied "a": the schema change has not seen it. */
static void
append_unseen(StringInfo query, const DdlMessage *message)
{
	const char *separator = "";

	foreach_ptr(NodeMember, member, node_identity_members())
	{
		if (strcmp(member->subscription, MySubscription->name) == 0)
			continue;
		appendStringInfo(query, "%s(a.subname OPERATOR(pg_catalog.=) %s AND a.lsn OPERATOR(pg_catalog.>=) %s)",
						 separator, quote_literal_cstr(member->subscription),
						 quote_literal_cstr(seen_of(message->seen, member->name)));
		separator = " OR ";
	}
	if (separator[0] == '\0')
		appendStringInfoString(query, "false");
}

static char *
write_query(const DdlMessage *message, const char *own_name)
{
	const char *statement = quote_literal_cstr(message->statement);
	const char *role = quote_literal_cstr(message->role);
	StringInfoData query;

	initStringInfo(&query);
	appendStringInfoString(&query, "WITH same AS (");
	appendStringInfo(&query, SAME, statement, role, quote_literal_cstr(search_path_of(message)));
	appendStringInfo(&query, ") SELECT EXISTS (SELECT FROM same"
					 " WHERE same.made_at::pg_catalog.pg_lsn OPERATOR(pg_catalog.>) %s)",
					 quote_literal_cstr(seen_of(message->seen, own_name)));
	appendStringInfo(&query, " OR EXISTS (SELECT FROM same WHERE same.made_at IS NULL)"
					 " AND EXISTS (SELECT FROM weft.ddl_applied a"
					 " WHERE a.statement OPERATOR(pg_catalog.=) %s"
					 " AND a.role OPERATOR(pg_catalog.=) %s AND (",
					 statement, role);
	append_unseen(&query, message);
	appendStringInfoString(&query, "))");
	return query.data;
}

/*
 * Has another member, or a session here, made the same schema change, without either having seen
 * the other?
 */
bool
same_statement_made(const DdlMessage *message)
{
	char	   *result;

	if (node_identity_for(MySubscription->name) == NULL)
		return false;
	result = local_value_of_weft(write_query(message, node_identity_name()));
	if (result == NULL || result[0] != 't')
		return false;
	ereport(LOG,
			(errmsg("schema change " INT64_FORMAT " of subscription \"%s\" has been made here already: %s",
					message->id, MySubscription->name, message->statement)));
	return true;
}

/* Between two statements in a list. */
#define SEPARATOR '\001'

/*
 * Returns the texts of the schema changes that sessions here have made, or that came from other members,
 * and that this one has not seen.
 */
List *
same_statement_unseen(const DdlMessage *message)
{
	StringInfoData query;
	List	   *result = NIL;
	char	   *texts;

	if (node_identity_for(MySubscription->name) == NULL)
		return NIL;
	initStringInfo(&query);
	appendStringInfo(&query, "SELECT pg_catalog.string_agg(s.statement, pg_catalog.chr(%d)) FROM ("
					 "SELECT q.message->>'statement' FROM weft.ddl_queue q"
					 " WHERE q.captured_at OPERATOR(pg_catalog.>) %s"
					 " AND (q.message->>'made_at')::pg_catalog.pg_lsn OPERATOR(pg_catalog.>) %s",
					 SEPARATOR, RECENTLY,
					 quote_literal_cstr(seen_of(message->seen, node_identity_name())));
	appendStringInfo(&query, " UNION ALL SELECT a.statement FROM weft.ddl_applied a"
					 " WHERE a.applied_at OPERATOR(pg_catalog.>) %s AND (", RECENTLY);
	append_unseen(&query, message);
	appendStringInfoString(&query, ")) s(statement)");
	texts = local_value_of_weft(query.data);
	while (texts != NULL)
	{
		char	   *end = strchr(texts, SEPARATOR);

		if (end)
			*end++ = '\0';
		result = lappend(result, texts);
		texts = end;
	}
	return result;
}
