/*
 * remote.c
 *	  Connections to other members of a node group.
 *
 * They are made with libpqwalreceiver, as those of subscriptions are, and by the same rules:
 * a role that is not a superuser must give a password in the connection string, and the
 * other member must ask for it.
 *
 * A connection string may contain a password.  Therefore no error shows one, and none is
 * ever part of a command that is sent: others could read it on the other member, in
 * pg_stat_activity or in the log.  It goes as data, with remote_copy_in().
 *
 * A member may be frozen, or out of reach, without its connections being closed.  Who has a deadline gets an error
 * then.
 */
#include "postgres.h"

#include "connection_string.h"
#include "deadline.h"
#include "group/remote.h"
#include "miscadmin.h"
#include "pinned_settings.h"
#include "utils/memutils.h"

/* Calls a function, and fails when the deadline of the connection is over. */
static void
within_deadline(Remote *remote, DeadlineTask task, void *argument)
{
	if (remote->deadline == 0)
		task(argument);
	else if (!deadline_run(remote->deadline, task, argument))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("node \"%s\" does not answer", remote->node)));
}

typedef struct Connecting
{
	Remote	   *remote;
	const char *dsn;
	bool		replication;
	char	   *error;
} Connecting;

static void
wait_for_connection(void *argument)
{
	Connecting *connecting = argument;

	connecting->remote->conn = walrcv_connect(connecting->dsn, connecting->replication, connecting->replication,
											  !superuser(), "weft group", &connecting->error);
}

static Remote *
connect_node(const char *dsn, const char *node, bool replication, TimestampTz deadline)
{
	Remote	   *remote = palloc0(sizeof(Remote));
	Connecting	connecting = {remote, dsn, replication, NULL};

	connection_string_check(dsn, psprintf("node \"%s\"", node), !superuser());
	remote->node = pstrdup(node);
	remote->deadline = deadline;
	within_deadline(remote, wait_for_connection, &connecting);
	if (remote->conn == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not connect to node \"%s\": %s", node, connecting.error)));
	return remote;
}

/*
 * libpq puts the other server's word for the severity, in whatever language, a colon and
 * two spaces in front of an error.  The error that is made of it has such a word, too.
 */
static const char *
without_severity(const char *message)
{
	const char *severity_end = strstr(message, ":  ");

	if (severity_end && strcspn(message, " \n") > severity_end - message)
		return severity_end + 3;
	return message;
}

typedef struct Executing
{
	WalReceiverConn *conn;
	const char *command;
	WalRcvExecStatus expected;
	int			columns;
	RemoteAnswer answer;
} Executing;

static void
wait_for_answer(void *argument)
{
	Executing  *executing = argument;

	executing->answer = remote_query(executing->conn, NULL, executing->command, executing->expected,
									 executing->columns);
}

/* Runs a command or query; an error of the other member becomes one here. */
static RemoteAnswer
execute(Remote *remote, const char *command, WalRcvExecStatus expected, int columns)
{
	Executing	executing = {remote->conn, command, expected, columns};
	RemoteAnswer answer;

	within_deadline(remote, wait_for_answer, &executing);
	answer = executing.answer;
	if (answer.status == WALRCV_ERROR)
		ereport(ERROR,
				(errcode(answer.sqlstate ? answer.sqlstate : ERRCODE_CONNECTION_FAILURE),
				 errmsg("node \"%s\": %s", remote->node, without_severity(answer.problem))));
	if (answer.problem)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("unexpected answer from node \"%s\"", remote->node)));
	return answer;
}

/* Runs a command that returns nothing. */
void
remote_run(Remote *remote, const char *command)
{
	(void) execute(remote, command, WALRCV_OK_COMMAND, 0);
}

/*
 * Runs a query; returns the values of its first row as text, each NULL if it is
 * null, or NULL if there is no row.
 */
RemoteValue *
remote_row(Remote *remote, const char *query, int columns)
{
	List	   *rows = execute(remote, query, WALRCV_OK_TUPLES, columns).rows;

	return rows == NIL ? NULL : linitial(rows);
}

/* The same for one column. */
char *
remote_value(Remote *remote, const char *query)
{
	RemoteValue *values = remote_row(remote, query, 1);

	return values ? values[0] : NULL;
}

/* Runs a COPY FROM STDIN with the given data. */
void
remote_copy_in(Remote *remote, const char *command, const char *data)
{
	TimeLineID	unused;

	(void) execute(remote, command, WALRCV_OK_COPY_IN, 0);
	walrcv_send(remote->conn, data, strlen(data));
	walrcv_endstreaming(remote->conn, &unused);
}

/* Starts a COPY TO STDOUT; a CopyReader reads its data. */
void
remote_begin_copy_out(Remote *remote, const char *command)
{
	(void) execute(remote, command, WALRCV_OK_COPY_OUT, 0);
}

void
remote_close(Remote *remote)
{
	walrcv_disconnect(remote->conn);
	pfree(remote);
}

static Remote *
connect_pinned(const char *dsn, const char *node, bool replication, TimestampTz deadline)
{
	Remote	   *remote = connect_node(dsn, node, replication, deadline);

	PG_TRY();
	{
		remote_run(remote, pinned_settings_command());
	}
	PG_CATCH();
	{
		remote_close(remote);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return remote;
}

/*
 * Connects, or throws an error that names the node.  The text of values sent in either
 * direction does not depend on settings of a member (pinned_settings.c).
 */
Remote *
remote_connect(const char *dsn, const char *node, bool replication)
{
	return connect_pinned(dsn, node, replication, 0);
}

/* The same for a connection whose use fails when the deadline is over. */
Remote *
remote_connect_until(const char *dsn, const char *node, TimestampTz deadline)
{
	return connect_pinned(dsn, node, false, deadline);
}
