/*
 * node_copy.c
 *	  Is another member of the group still the server that it was?
 *
 * A member that fails over to its standby is the same member: same identity, same name.  The
 * leader of a subscription between two members makes both sides look at each other before it
 * starts to stream; sql/19-node-failover.sql has the protocol, and what is compared.
 *
 * A member whose extension is older, or on which the role that connects may not execute new
 * functions yet (weft.grant_node_admin), is not asked.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "local_query.h"
#include "next_leader.h"
#include "node_copy.h"
#include "remote_query.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"

#define MEET "weft.member_meet(uuid,text,integer,uuid,pg_lsn,text,pg_lsn)"

/* What this node tells the publisher, and what it knows of it; columns of weft.own_copy_for(). */
enum
{
	OWN_SERVER, OWN_GENERATION, OWN_INCARNATION, FOLLOWED, NUM_OWN
};

/* What the publisher answers; columns of weft.member_meet(). */
#define NUM_ANSWERS 6
#define ANSWERED_SERVER 0

/* The server of the publisher that this leader has met, as a hash. */
static uint32 met_server;
static bool met = false;

static char *
literal(const char *value)
{
	return value ? quote_literal_cstr(value) : "NULL";
}

/* Servers are compared with those that were met before; one in 2^32 looks like another. */
static uint32
hash_of(const char *server)
{
	return hash_bytes((const unsigned char *) server, strlen(server));
}

/* How far the publisher, on the server that this node has followed, has sent its WAL to it; as text. */
static char *
sent_by(Oid subid, const char *followed)
{
	XLogRecPtr	sent = followed ? next_leader_sent(subid, hash_of(followed)) : InvalidXLogRecPtr;

	return XLogRecPtrIsInvalid(sent) ? NULL : psprintf("%X/%X", LSN_FORMAT_ARGS(sent));
}

static bool
asks_true(char *answer)
{
	return answer != NULL && answer[0] == 't';
}

/* Does the publisher answer?  Makes sure of the same for its transactions. */
static bool
publisher_answers(WalReceiverConn *conn, const char *subscription)
{
	RemoteValue *values;

	remote_command(conn, psprintf("start subscription \"%s\"", subscription),
				   "SET default_transaction_read_only = off;"
				   " SET default_transaction_isolation = 'read committed'");
	values = remote_query_row(conn, NULL,
							  "SELECT coalesce(pg_catalog.has_function_privilege(f, 'EXECUTE'), false)::pg_catalog.text"
							  " FROM pg_catalog.to_regprocedure('" MEET "') f", 1);
	return values != NULL && asks_true(values[0]);
}

/* Returns what this node is now, which may have to be stored first. */
static LocalValue *
own_copy(const char *subscription)
{
	if (!asks_true(local_value("SELECT pg_catalog.to_regprocedure('weft.own_copy_for(name)') IS NOT NULL")))
		return NULL;
	return linitial(local_rows_of_weft(psprintf("SELECT * FROM weft.own_copy_for(%s)", quote_literal_cstr(subscription)),
									   NUM_OWN));
}

/*
 * Makes the publisher of a subscription between members look at this node, and this node at it.
 * "applied" is where the stream is to start.  Fails if one of the two is a copy that the other one
 * does not follow any more, or if the publisher was promoted without transactions that are applied
 * here.  Called outside of transactions, in the caller's memory context.
 */
void
node_copy_meet(WalReceiverConn *conn, Oid subid, const char *subscription, const char *identity,
			   XLogRecPtr applied)
{
	MemoryContext old = CurrentMemoryContext;
	char	   *position = psprintf("%X/%X", LSN_FORMAT_ARGS(applied));
	LocalValue *own;
	StringInfoData query;
	char	   *problem = NULL;

	/* What this node says of itself must be on disk before. */
	local_start_writing();
	own = own_copy(subscription);
	initStringInfo(&query);
	if (own)
		appendStringInfo(&query, "SELECT * FROM weft.member_meet(%s, %s, %s, %s, %s, %s, %s)",
						 literal(identity), literal(own[OWN_SERVER]), literal(own[OWN_GENERATION]),
						 literal(own[OWN_INCARNATION]), literal(position), literal(own[FOLLOWED]),
						 literal(sent_by(subid, own[FOLLOWED])));
	query.data = MemoryContextStrdup(old, query.data);
	CommitTransactionCommand();
	if (query.data[0] == '\0')
		return;

	local_start_writing();
	if (publisher_answers(conn, subscription))
	{
		RemoteValue *answers = remote_query_row(conn,
												psprintf("start subscription \"%s\"", subscription),
												query.data, NUM_ANSWERS);
		StringInfoData note;

		initStringInfo(&note);
		appendStringInfo(&note, "SELECT weft.note_publisher(%s, %s",
						 literal(subscription), literal(position));
		for (int i = 0; i < NUM_ANSWERS; i++)
			appendStringInfo(&note, ", %s", literal(answers[i]));
		appendStringInfoChar(&note, ')');
		problem = local_value_of_weft(note.data);
		if (problem)
			problem = MemoryContextStrdup(old, problem);
		else
		{
			met_server = hash_of(answers[ANSWERED_SERVER]);
			met = true;
		}
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	if (problem)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s", problem),
				 errhint("See weft.health() and the documentation of failover.")));
}

/*
 * The leader of a subscription ends; its publisher has sent its WAL up to "sent", which it had flushed.  Between
 * members, the next leader shows that to the publisher.
 */
void
node_copy_leave(Oid subid, XLogRecPtr sent)
{
	if (met && !XLogRecPtrIsInvalid(sent))
		next_leader_tell_sent(subid, met_server, sent);
}
