/*
 * unseen.c
 *	  The schema changes that were executed here, and that another one has not seen.
 *
 * E is a schema change of another member of the node group that is about to be executed here (seen.c).  E has not seen
 *	 - D that a session here has made, if D was made behind what E had seen of this member.  (If
 *	   the session has made D before that, and has committed it after that, then E counts as
 *	   later here.  The other member gets D, which has not seen E, and finds the conflict.)
 *	 - D that came from another member, if D's commit record is behind what E had seen of that member;
 *	   also if D waits to be executed by a process of its own (concurrent.c).
 *
 * A member may have been away for days, so it does not matter when D was made.  But what is older than
 * weft.ddl_history_retention is forgotten.
 *
 * If this node was made from a physical copy of member S, then weft.ddl_queue has the schema changes of sessions of S,
 * too.  Positions tell them apart: this node's WAL begins where the copy ended.  If S was made in the same way, then
 * what is from before S counts as seen.
 */
#include "postgres.h"

#include "ddl/seen.h"
#include "ddl/unseen.h"
#include "lib/stringinfo.h"
#include "local_query.h"
#include "node_identity.h"
#include "replication/worker_internal.h"
#include "utils/builtins.h"

/*
 * Writes a condition: a position of the member that a subscription is to is not before what the schema
 * change has seen of that member.
 */
static void
append_members(StringInfo query, const DdlMessage *message, const char *subscription,
			   const char *position)
{
	appendStringInfoString(query, "(false");
	foreach_ptr(NodeMember, member, node_identity_members())
	{
		if (strcmp(member->subscription, MySubscription->name) == 0)
			continue;
		appendStringInfo(query, " OR %s OPERATOR(pg_catalog.=) %s AND %s OPERATOR(pg_catalog.>=) %s",
						 subscription, quote_literal_cstr(member->subscription),
						 position, quote_literal_cstr(seen_of(message, member->name)));
	}
	appendStringInfoChar(query, ')');
}

/* Writes a condition: a session has made a schema change at a position that this one has not seen. */
static void
append_sessions(StringInfo query, const DdlMessage *message, const char *position)
{
	char	   *of_source;
	char	   *start = node_identity_start(&of_source);

	appendStringInfo(query, "(%s OPERATOR(pg_catalog.>) %s", position,
					 quote_literal_cstr(seen_of(message, node_identity_name())));
	if (start != NULL)
		appendStringInfo(query, " AND %s OPERATOR(pg_catalog.>=) %s", position, quote_literal_cstr(start));
	foreach_ptr(NodeMember, member, node_identity_members())
	{
		if (start == NULL || member->copied == NULL || strcmp(member->copied, start) != 0 ||
			strcmp(member->subscription, MySubscription->name) == 0)
			continue;
		appendStringInfo(query, " OR %s OPERATOR(pg_catalog.<) %s AND %s OPERATOR(pg_catalog.>=) %s"
						 " AND %s OPERATOR(pg_catalog.>=) %s",
						 position, quote_literal_cstr(start),
						 position, quote_literal_cstr(of_source ? of_source : "0/0"),
						 position, quote_literal_cstr(seen_of(message, member->name)));
	}
	appendStringInfoChar(query, ')');
}

static char *
write_query(const DdlMessage *message)
{
	StringInfoData query;

	initStringInfo(&query);
	appendStringInfo(&query, "SELECT s.message, EXISTS (SELECT FROM weft.ddl_applied r"
					 " WHERE r.subname OPERATOR(pg_catalog.=) %s AND r.result OPERATOR(pg_catalog.=) 'repeated'"
					 " AND r.statement OPERATOR(pg_catalog.=) (s.message->>'statement')"
					 " AND r.role OPERATOR(pg_catalog.=) (s.message->>'role')"
					 " AND r.applied_at OPERATOR(pg_catalog.>) s.made_at)"
					 " FROM (SELECT q.captured_at, q.message FROM weft.ddl_queue q WHERE ",
					 quote_literal_cstr(MySubscription->name));
	append_sessions(&query, message, "(q.message->>'made_at')::pg_catalog.pg_lsn");
	appendStringInfoString(&query, " UNION ALL SELECT a.applied_at, a.message FROM weft.ddl_applied a"
						   " WHERE a.message IS NOT NULL"
						   " AND a.result OPERATOR(pg_catalog.=) ANY ('{applied,skipped}') AND ");
	append_members(&query, message, "a.subname", "a.lsn");
	appendStringInfoString(&query, " UNION ALL SELECT c.stored_at, c.message FROM weft.ddl_concurrent c"
						   " JOIN pg_catalog.pg_subscription p ON p.oid OPERATOR(pg_catalog.=) c.subid"
						   " WHERE c.state OPERATOR(pg_catalog.<>) 'failed' AND ");
	append_members(&query, message, "p.subname", "c.lsn");
	appendStringInfoString(&query, ") s(made_at, message) ORDER BY s.made_at");
	return query.data;
}

/*
 * Returns the schema changes that were executed here, and that this one has not seen, in the order in
 * which they were.
 */
List *
unseen_of(const DdlMessage *message)
{
	List	   *result = NIL;

	if (node_identity_for(MySubscription->name) == NULL)
		return NIL;
	foreach_ptr(LocalValue, row, local_rows_of_weft(write_query(message), 2))
	{
		Unseen	   *unseen = palloc(sizeof(Unseen));

		unseen->message = ddl_message_read(row[0], strlen(row[0]));
		unseen->repeated = row[1][0] == 't';
		result = lappend(result, unseen);
	}
	return result;
}
