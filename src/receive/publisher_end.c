/*
 * publisher_end.c
 *	  Asks the publisher where its WAL ends.
 *
 * What the walsender sends tells how far it has decoded.  If the walsender is behind, or the
 * leader does not read because the ring is full, nothing of that tells where the publisher's
 * WAL ends.  Therefore, during a backlog, and now and then without one (sampler.c), the leader
 * asks for it on a second connection, an ordinary one, which it closes afterwards.
 *
 * The leader must not wait for an answer.  publisher_end_ask() is called a few times a second,
 * does what can be done without waiting, and returns; only the lookup of a host name may take
 * longer, and the walsender's connection has just had that one.  If the publisher cannot be
 * asked, apply goes on; the log says so once, and publisher_lsn_time shows that the
 * knowledge ages.
 *
 * The connection is made by the rules of the subscription's own one: with its connection
 * string, and with the password in it if one is demanded.  If the connection string names several
 * servers, only the one that the walsender belongs to is asked.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "libpq-fe.h"
#include "publisher_connection.h"
#include "receive/publisher_end.h"
#include "receive/reception.h"
#include "replication/worker_internal.h"
#include "seam/seam.h"
#include "storage/fd.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "wal_end.h"

/* Time between two questions. */
#define ASK_INTERVAL 2000		/* ms */

/* An answer, or a connection, that takes longer is given up. */
#define PATIENCE 20000			/* ms */

/* Time until the next attempt after one that has failed: doubled after each, up to the limit. */
#define RETRY_INTERVAL 30000	/* ms */
#define LONGEST_RETRY_INTERVAL (16 * RETRY_INTERVAL)

static const char question[] =
"SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()"
" ELSE pg_catalog.pg_current_wal_flush_lsn() END)::pg_catalog.text,"
" pg_catalog.current_setting('wal_block_size')";

typedef enum AskerState
{
	ASKER_CLOSED,
	ASKER_CONNECTING,
	ASKER_READY,
	ASKER_ASKED,
} AskerState;

static struct
{
	AskerState	state;
	PGconn	   *conn;
	PostgresPollingStatusType polling;	/* while connecting: what to wait for */
	TimestampTz since;			/* of the state */
	TimestampTz not_before;		/* when to begin with the next connection */
	TimestampTz last_question;
	TimestampTz last_call;
	int			retry_interval; /* ms; zero while there was no failure */
	bool		failure_logged;
}			asker;

static void
enter(AskerState state, TimestampTz now)
{
	asker.state = state;
	asker.since = now;
}

/* Closes the connection, if there is one. */
void
publisher_end_stop(void)
{
	if (asker.conn != NULL)
	{
		PQfinish(asker.conn);
		ReleaseExternalFD();
	}
	asker.conn = NULL;
	asker.state = ASKER_CLOSED;
}

/* Gives the connection up for a while. */
static void
fail(const char *problem, TimestampTz now)
{
	if (!asker.failure_logged)
		ereport(LOG,
				(errmsg("could not ask the publisher of subscription \"%s\" where its WAL ends: %s",
						MySubscription->name, problem)));
	asker.failure_logged = true;
	publisher_end_stop();
	asker.retry_interval = asker.retry_interval == 0 ? RETRY_INTERVAL :
		Min(2 * asker.retry_interval, LONGEST_RETRY_INTERVAL);
	asker.not_before = TimestampTzPlusMilliseconds(now, asker.retry_interval);
}

static void
fail_with_connection(TimestampTz now)
{
	char	   *problem = pchomp(PQerrorMessage(asker.conn));

	fail(problem, now);
	pfree(problem);
}

static void
begin_to_connect(TimestampTz now)
{
	/* The name follows the connection string, so that it wins. */
	char	   *name = psprintf("weft lag of %s", MySubscription->name);
	const char *keywords[] = {"dbname", "application_name", NULL};
	const char *values[] = {publisher_connection_string(MySubscription), name, NULL};

	if (AcquireExternalFD())
	{
		asker.conn = PQconnectStartParams(keywords, values, true);
		if (asker.conn == NULL)
			ReleaseExternalFD();
	}
	pfree(name);
	if (asker.conn == NULL)
		fail("too many open files, or out of memory", now);
	else if (PQstatus(asker.conn) == CONNECTION_BAD)
		fail_with_connection(now);
	else
	{
		asker.polling = PGRES_POLLING_WRITING;
		enter(ASKER_CONNECTING, now);
	}
}

/* Does the connection lead to where the walsender's does? */
static bool
is_same_server(void)
{
	char	   *host;
	int			port;
	bool		result;

	(seam_native->walrcv_get_senderinfo) (reception.conn, &host, &port);
	result = host == NULL ||
		(strcmp(host, PQhost(asker.conn)) == 0 && port == atoi(PQport(asker.conn)));
	if (host)
		pfree(host);
	return result;
}

static bool
socket_is_ready(void)
{
	bool		reading = asker.polling == PGRES_POLLING_READING;

	return PQsocketPoll(PQsocket(asker.conn), reading, !reading, 0) > 0;
}

/* Goes on with what needs no waiting. */
static void
go_on_connecting(TimestampTz now)
{
	while (asker.polling != PGRES_POLLING_OK && asker.polling != PGRES_POLLING_FAILED &&
		   socket_is_ready())
		asker.polling = PQconnectPoll(asker.conn);

	if (asker.polling == PGRES_POLLING_FAILED)
		fail_with_connection(now);
	else if (asker.polling != PGRES_POLLING_OK)
		return;
	else if (MySubscription->passwordrequired && !MySubscription->ownersuperuser &&
			 !PQconnectionUsedPassword(asker.conn))
		fail("it did not request a password", now);
	else if (!is_same_server())
		fail("the connection leads to another server of those that the connection string names", now);
	else if (PQsetnonblocking(asker.conn, 1) != 0)
		fail_with_connection(now);
	else
		enter(ASKER_READY, now);
}

static void
send_question(TimestampTz now)
{
	asker.last_question = now;
	if (PQsendQuery(asker.conn, question) == 0)
		fail_with_connection(now);
	else
		enter(ASKER_ASKED, now);
}

/* Takes the answer if it is complete. */
static XLogRecPtr
take_answer(TimestampTz now)
{
	XLogRecPtr	end = InvalidXLogRecPtr;
	PGresult   *result;

	if (PQflush(asker.conn) < 0 || PQconsumeInput(asker.conn) == 0)
	{
		fail_with_connection(now);
		return end;
	}
	if (PQisBusy(asker.conn))
		return end;
	result = PQgetResult(asker.conn);
	if (PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1 &&
		PQnfields(result) == 2 && !PQgetisnull(result, 0, 0))
	{
		WalEndAnswer answer = {
			.insert_lsn = PQgetvalue(result, 0, 0),
			.flush_lsn = PQgetvalue(result, 0, 0),
			.block_size = PQgetvalue(result, 0, 1),
		};

		end = wal_end_get(&answer).lsn;
	}
	PQclear(result);
	if (XLogRecPtrIsInvalid(end))
	{
		fail_with_connection(now);
		return end;
	}
	asker.failure_logged = false;
	asker.retry_interval = 0;
	enter(ASKER_READY, now);
	return end;
}

/* Is the answer complete?  The end of the command follows it. */
static bool
may_ask(TimestampTz now)
{
	PGresult   *rest;

	if (PQconsumeInput(asker.conn) == 0)
	{
		fail_with_connection(now);
		return false;
	}
	while (!PQisBusy(asker.conn) && (rest = PQgetResult(asker.conn)) != NULL)
		PQclear(rest);
	return PQtransactionStatus(asker.conn) == PQTRANS_IDLE &&
		TimestampDifferenceExceeds(asker.last_question, now, ASK_INTERVAL);
}

/*
 * Called a few times a second.  While the end is "wanted", keeps asking, and returns each answer
 * once; otherwise returns an invalid position.
 */
XLogRecPtr
publisher_end_ask(bool wanted, TimestampTz now)
{
	/* Somebody may have set the clock back. */
	if (now < asker.last_call)
	{
		publisher_end_stop();
		asker.not_before = asker.last_question = 0;
	}
	asker.last_call = now;
	if (!wanted)
	{
		publisher_end_stop();
		return InvalidXLogRecPtr;
	}
	if ((asker.state == ASKER_CONNECTING || asker.state == ASKER_ASKED) &&
		TimestampDifferenceExceeds(asker.since, now, PATIENCE))
		fail("it does not answer", now);

	switch (asker.state)
	{
		case ASKER_CLOSED:
			if (now >= asker.not_before)
				begin_to_connect(now);
			break;
		case ASKER_CONNECTING:
			go_on_connecting(now);
			break;
		case ASKER_READY:
			if (may_ask(now))
				send_question(now);
			break;
		case ASKER_ASKED:
			return take_answer(now);
	}
	return InvalidXLogRecPtr;
}
