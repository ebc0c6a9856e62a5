/*
 * link.c
 *	  The session on the other server that a switch-over uses, and the locks of both sides.
 *
 * The session holds an advisory lock there for as long as it lives.  This lock has two
 * purposes: there is one switch-over at a time, and a provisional fence refuses writes only
 * while it is held (fence.c).  Therefore the session must be unique: a broken connection is
 * never replaced in the middle of an attempt.  Whoever holds the lock again must begin with
 * fencing anew.  The local lock is the same for this side.
 *
 * The other server should notice within seconds that this process, or its host, is dead.
 * Hence the session's settings there: keepalives, and a check of the connection while a
 * command runs.  A frozen caller keeps its connection; it is given SESSION_IDLE_LIMIT between
 * two commands (or what link_limit_idleness() says), and link_ping() keeps a live one from being
 * idle.
 *
 * Every role may take such a lock, and thus prevent switch-overs; the message tells who holds
 * it.  Nobody can keep a fence closed with it: fence.c looks at the session, too.
 *
 * Both locks and the connection end with the caller's statement, however that ends: at the
 * end of the procedure, or when a transaction of it is aborted as a whole.  (The steps run in
 * subtransactions, whose aborts do not count.)
 *
 * Connection strings are never in a message or a command.
 */
#include "postgres.h"

#include "access/xact.h"
#include "connection_string.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "pinned_settings.h"
#include "publisher_connection.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "switch/link.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "wait_event.h"

/* How long a session that was cut off may keep its lock until a new one gives up, in ms. */
#define LOCK_RETRY 50

/* After this many milliseconds a query about a slot is canceled for the first time. */
#define SLOT_FIRST_LIMIT 10000

/* Between two pings, in milliseconds. */
#define PING_INTERVAL 500

/* Settings there.  Those that the role may not set, or the server does not have, are left. */
static const char session_settings[] =
"DO $weft$ DECLARE s text[]; BEGIN"
" FOREACH s SLICE 1 IN ARRAY ARRAY["
"['application_name', 'weft switch-over'], ['synchronous_commit', 'on'],"
" ['tcp_keepalives_idle', '2'], ['tcp_keepalives_interval', '1'], ['tcp_keepalives_count', '3'],"
" ['tcp_user_timeout', '5s'], ['client_connection_check_interval', '1s'],"
" ['idle_session_timeout', '" CppAsString2(SESSION_IDLE_LIMIT) "'],"
" ['idle_in_transaction_session_timeout', '" CppAsString2(SESSION_IDLE_LIMIT) "'],"
" ['deadlock_timeout', '50ms'], ['row_security', 'off'], ['session_replication_role', 'origin'],"
" ['log_statement', 'none'], ['log_duration', 'off'], ['log_min_duration_statement', '-1'],"
" ['log_min_duration_sample', '-1'], ['auto_explain.log_min_duration', '-1'],"
" ['pg_stat_statements.track', 'none'], ['pgaudit.log', 'none']] LOOP"
" BEGIN PERFORM pg_catalog.set_config(s[1], s[2], false)"
" WHERE s[1] !~ '[.]' OR pg_catalog.current_setting(s[1], true) IS NOT NULL;"
" EXCEPTION WHEN OTHERS THEN NULL; END;"
" END LOOP; END $weft$";

typedef struct Link
{
	WalReceiverConn *conn;		/* NULL if there is none */
	char	   *name;			/* of the subscription, for messages */
	char	   *pid;			/* of the session there */
	bool		locked_here;
	TimestampTz next_ping;
} Link;

static Link the_link;

static void
set_lock_tag(LOCKTAG *tag)
{
	/* As pg_advisory_lock(int, int) does. */
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, SWITCH_LOCK_CLASS, SWITCH_LOCK_OBJECT, 2);
}

/* The caller's statement has failed, or its process ends. */
static void
transaction_ended(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_ABORT)
		link_close_all();
}

/* A query that describes, in one value, which session of a server holds the lock. */
char *
link_lock_holder_query(void)
{
	return psprintf("SELECT pg_catalog.format('The lock is held by process %%s, of role \"%%s\".',"
					"  l.pid, pg_catalog.pg_get_userbyid(a.usesysid))"
					" FROM pg_catalog.pg_locks l, pg_catalog.pg_stat_get_activity(l.pid) a"
					" WHERE l.locktype = 'advisory' AND l.granted AND l.classid = %u AND l.objid = %u"
					" AND l.objsubid = 2 AND l.database = (SELECT oid FROM pg_catalog.pg_database"
					"  WHERE datname = pg_catalog.current_database()) LIMIT 1",
					SWITCH_LOCK_CLASS, SWITCH_LOCK_OBJECT);
}

/* Takes the lock of this database; returns false if somebody else holds it. */
bool
link_lock_here(void)
{
	static bool registered = false;
	LOCKTAG		tag;

	if (!registered)
		RegisterXactCallback(transaction_ended, NULL);
	registered = true;
	if (the_link.locked_here)
		elog(ERROR, "a switch-over is already in progress in this session");
	set_lock_tag(&tag);
	the_link.locked_here = LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
	return the_link.locked_here;
}

static const char *
purpose(void)
{
	return psprintf("the publisher of subscription \"%s\"", the_link.name);
}

/* Is this the end of the connection? */
static bool
is_lost(int sqlstate)
{
	int			class = ERRCODE_TO_CATEGORY(sqlstate);

	return sqlstate == 0 || class == ERRCODE_CONNECTION_EXCEPTION ||
		sqlstate == ERRCODE_ADMIN_SHUTDOWN || sqlstate == ERRCODE_CRASH_SHUTDOWN ||
		sqlstate == ERRCODE_CANNOT_CONNECT_NOW || sqlstate == ERRCODE_IDLE_SESSION_TIMEOUT;
}

/* libpq puts the severity in front of an error; the error that is made of it has one, too. */
static const char *
without_severity(const char *message)
{
	const char *end = strstr(message, ":  ");

	if (end && strcspn(message, " \n") > end - message)
		return end + 3;
	return message;
}

/* Returns the session's answer, which may be an error. */
static RemoteAnswer
ask(const char *command, WalRcvExecStatus expected, int columns)
{
	RemoteAnswer answer;

	if (the_link.conn == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_DOES_NOT_EXIST),
				 errmsg("the connection to %s is lost", purpose())));
	answer = remote_query(the_link.conn, NULL, command, expected, columns);
	the_link.next_ping = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), PING_INTERVAL);
	return answer;
}

/* Fails if the answer is an error. */
static void
check_answer(const RemoteAnswer *answer)
{
	int			sqlstate = answer->sqlstate;

	if (answer->problem == NULL)
		return;
	if (is_lost(sqlstate))
	{
		link_close();
		sqlstate = ERRCODE_CONNECTION_FAILURE;
	}
	ereport(ERROR,
			(errcode(sqlstate),
			 errmsg("%s: %s", purpose(), without_severity(answer->problem))));
}

static RemoteAnswer
execute(const char *command, WalRcvExecStatus expected, int columns)
{
	RemoteAnswer answer = ask(command, expected, columns);

	check_answer(&answer);
	return answer;
}

/*
 * Takes the lock there.  A session that was cut off may still hold it, until the server
 * notices.
 */
static void
lock_there(TimestampTz deadline)
{
	char	   *query = psprintf("SELECT pg_catalog.pg_try_advisory_lock(%d, %d)",
								 SWITCH_LOCK_CLASS, SWITCH_LOCK_OBJECT);

	for (;;)
	{
		char	   *taken = link_value(query);

		if (taken != NULL && strcmp(taken, "t") == 0)
			return;
		if (GetCurrentTimestamp() >= deadline)
		{
			char	   *holder = link_value(link_lock_holder_query());

			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("another switch-over is in progress on %s", purpose()),
					 holder ? errdetail_internal("%s", holder) : 0,
					 errhint("If its caller is gone, or it is none, end that session there with pg_terminate_backend.")));
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LOCK_RETRY, wait_event_id(WEFT_WAIT_SWITCH));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

static void
connect_there(const Subscription *subscription, const char *connection)
{
	MemoryContext old;
	char	   *error = NULL;
	bool		own = connection == NULL;
	bool		must_use_password = own ?
		subscription->passwordrequired && !subscription->ownersuperuser : !superuser();

	load_file("libpqwalreceiver", false);
	if (!own)
		connection_string_check(connection, "the publisher", must_use_password);

	/* The connection outlives the transaction. */
	old = MemoryContextSwitchTo(TopMemoryContext);
	the_link.name = pstrdup(subscription->name);
	the_link.conn = walrcv_connect(own ? publisher_connection_string(subscription) : connection, false, false,
								   must_use_password, "weft switch-over", &error);
	MemoryContextSwitchTo(old);
	if (the_link.conn == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not connect to %s: %s", purpose(), error)));
}

/*
 * Opens the session, and takes the lock there, waiting for it up to the deadline.
 * "connection" is a connection string for it, or NULL for the subscription's own.
 */
void
link_open(const Subscription *subscription, const char *connection, TimestampTz deadline)
{
	link_close();
	connect_there(subscription, connection);
	PG_TRY();
	{
		(void) link_value(pinned_settings_query());
		link_run(session_settings);
		lock_there(deadline);
		the_link.pid = MemoryContextStrdup(TopMemoryContext,
										   link_value("SELECT pg_catalog.pg_backend_pid()"));
	}
	PG_CATCH();
	{
		link_close();
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/* Ends the session there, and with it its lock. */
void
link_close(void)
{
	WalReceiverConn *conn = the_link.conn;

	the_link.conn = NULL;
	if (conn != NULL)
		walrcv_disconnect(conn);
}

/* The same, and gives up the local lock. */
void
link_close_all(void)
{
	LOCKTAG		tag;

	link_close();
	if (!the_link.locked_here)
		return;
	the_link.locked_here = false;
	set_lock_tag(&tag);
	(void) LockRelease(&tag, ExclusiveLock, true);
}

bool
link_is_open(void)
{
	return the_link.conn != NULL;
}

/* Is the local lock held, by a switch-over of this session? */
bool
link_holds_lock_here(void)
{
	return the_link.locked_here;
}

WalReceiverConn *
link_connection(void)
{
	if (the_link.conn == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_DOES_NOT_EXIST),
				 errmsg("the connection to %s is lost", purpose())));
	return the_link.conn;
}

/* The server's version, such as 150004. */
int
link_version(void)
{
	return walrcv_server_version(link_connection());
}

/* Runs a command that returns nothing. */
void
link_run(const char *command)
{
	(void) execute(command, WALRCV_OK_COMMAND, 0);
}

/* Runs a query; returns its rows, of that many columns. */
List *
link_rows(const char *query, int columns)
{
	return execute(query, WALRCV_OK_TUPLES, columns).rows;
}

static char *
first_value(List *rows)
{
	return rows == NIL ? NULL : ((RemoteValue *) linitial(rows))[0];
}

/* Runs a query of one column; returns its first value, or NULL. */
char *
link_value(const char *query)
{
	return first_value(link_rows(query, 1));
}

/*
 * The same for a query that creates or advances a slot, and may be run several times.
 *
 * Such a query may wait for WAL to be flushed.  If the postmaster there is killed meanwhile,
 * then nobody flushes it any more, and the server's code does not notice: this session would
 * wait for an answer, and that server could not start again before somebody kills the
 * process.  Therefore the query is canceled after some time.  If the postmaster is gone, then
 * this ends the session there; if not, the query is run again, and gets twice the time.
 */
char *
link_slot_value(const char *query)
{
	for (int limit = SLOT_FIRST_LIMIT;; limit = Min(limit, INT_MAX / 2) * 2)
	{
		TimestampTz begin = GetCurrentTimestamp();
		RemoteAnswer answer;

		link_run(psprintf("SET statement_timeout = %d", limit));
		answer = ask(query, WALRCV_OK_TUPLES, 1);
		if (answer.sqlstate == ERRCODE_QUERY_CANCELED &&
			TimestampDifferenceExceeds(begin, GetCurrentTimestamp(), limit))
			continue;
		check_answer(&answer);
		link_run("RESET statement_timeout");
		return first_value(answer.rows);
	}
}

/* Runs a COPY FROM STDIN with this data, which neither views nor logs show. */
void
link_send(const char *copy, const char *line)
{
	TimeLineID	unused;

	(void) execute(copy, WALRCV_OK_COPY_IN, 0);
	walrcv_send(the_link.conn, line, strlen(line));
	walrcv_endstreaming(the_link.conn, &unused);
}

/*
 * Returns all data of a COPY TO STDOUT that has begun on another connection, and keeps the
 * session's alive.
 */
char *
link_read_copy(WalReceiverConn *conn)
{
	StringInfoData data;
	char	   *message;
	int			length;

	initStringInfo(&data);
	while ((length = remote_copy_receive(conn, &message, PING_INTERVAL, WEFT_WAIT_SWITCH)) >= 0)
	{
		if (length > 0)
			appendBinaryStringInfo(&data, message, length);
		else
			link_ping();
	}
	return data.data;
}

/*
 * Makes sure, every now and then, that the session and its lock are still there; to be called
 * in every loop that waits.
 */
void
link_ping(void)
{
	char	   *alive;

	if (GetCurrentTimestamp() < the_link.next_ping)
		return;
	alive = link_value(psprintf("SELECT pg_catalog.count(*) FROM pg_catalog.pg_locks"
								" WHERE locktype = 'advisory' AND granted AND classid = %d AND objid = %d"
								" AND objsubid = 2 AND pid = %s AND pid = pg_catalog.pg_backend_pid()",
								SWITCH_LOCK_CLASS, SWITCH_LOCK_OBJECT, the_link.pid));
	if (alive == NULL || strcmp(alive, "1") != 0)
	{
		link_close();
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the session on %s has lost its lock", purpose()),
				 errhint("Connect directly, not through a pooler.")));
	}
}

/*
 * Lets the other server end the session when it is idle for that long, in ms; 0: never, for
 * what this server does by itself and without calling link_ping().
 */
void
link_limit_idleness(int64 limit)
{
	(void) link_value(psprintf("SELECT pg_catalog.set_config('idle_session_timeout', '" INT64_FORMAT "', false)",
							   Min(limit, INT_MAX)));
}
