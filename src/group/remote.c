/*
 * remote.c
 *	  Connections to other members of a node group.
 *
 * They are made with libpqwalreceiver, as those of subscriptions are, and by the
 * same rules: whoever is no superuser must give a password in the connection
 * string, and be asked for it.
 *
 * A connection string may hold a password.  So no error shows one, and none is
 * ever part of a command that is sent: others could read it there, in
 * pg_stat_activity or in the log.  It goes as data, with remote_copy_in().
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "group/remote.h"
#include "miscadmin.h"
#include "pinned_settings.h"
#include "query_result.h"
#include "utils/memutils.h"

#define MAX_COLUMNS 4

/*
 * Checks the form of a connection string.  libpq's own message about a wrong one
 * may quote any part of it.
 */
void
remote_check_dsn(const char *dsn, const char *node)
{
	MemoryContext old = CurrentMemoryContext;

	load_file("libpqwalreceiver", false);
	PG_TRY();
	{
		walrcv_check_conninfo(dsn, !superuser());
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_SYNTAX_ERROR)
			PG_RE_THROW();
		MemoryContextSwitchTo(old);
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("invalid connection string for node \"%s\"", node),
				 errhint("Use keywords and values, as in \"host=... dbname=...\", or a URI.")));
	}
	PG_END_TRY();
}

static Remote *
connect_node(const char *dsn, const char *node, bool replication)
{
	Remote	   *remote = palloc0(sizeof(Remote));
	char	   *error = NULL;

	remote_check_dsn(dsn, node);
	remote->node = pstrdup(node);
	remote->conn = walrcv_connect(dsn, replication, replication, !superuser(), "weft group", &error);
	if (remote->conn == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not connect to node \"%s\": %s", node, error)));
	return remote;
}

static WalRcvExecResult *
execute(Remote *remote, const char *command, WalRcvExecStatus expected, int columns)
{
	Oid			types[MAX_COLUMNS] = {TEXTOID, TEXTOID, TEXTOID, TEXTOID};
	WalRcvExecResult *result;

	Assert(columns <= MAX_COLUMNS);
	result = walrcv_exec(remote->conn, command, columns, types);
	if (result->status == WALRCV_ERROR)
	{
		const char *message = result->err;
		const char *severity_end = strstr(message, ":  ");

		/*
		 * What is said in its turn is an error already, in whatever language:
		 * libpq puts that word, a colon and two spaces in front.
		 */
		if (severity_end && strcspn(message, " \n") > severity_end - message)
			message = severity_end + 3;
		ereport(ERROR,
				(errcode(result->sqlstate ? result->sqlstate : ERRCODE_CONNECTION_FAILURE),
				 errmsg("node \"%s\": %s", remote->node, message)));
	}
	if (result->status != expected)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("unexpected answer from node \"%s\"", remote->node)));
	return result;
}

/* Runs a command that returns nothing. */
void
remote_run(Remote *remote, const char *command)
{
	walrcv_clear_result(execute(remote, command, WALRCV_OK_COMMAND, 0));
}

/*
 * Runs a query; returns the values of its first row as text, each NULL if it is
 * null, or NULL if there is no row.
 */
char	  **
remote_row(Remote *remote, const char *query, int columns)
{
	WalRcvExecResult *result = execute(remote, query, WALRCV_OK_TUPLES, columns);
	char	  **values = query_result_row(result, columns);

	walrcv_clear_result(result);
	return values;
}

/* The same for one column. */
char *
remote_value(Remote *remote, const char *query)
{
	char	  **values = remote_row(remote, query, 1);

	return values ? values[0] : NULL;
}

/* Runs a COPY FROM STDIN, with this as its data. */
void
remote_copy_in(Remote *remote, const char *command, const char *data)
{
	TimeLineID	unused;

	walrcv_clear_result(execute(remote, command, WALRCV_OK_COPY_IN, 0));
	walrcv_send(remote->conn, data, strlen(data));
	walrcv_endstreaming(remote->conn, &unused);
}

/* Begins a COPY TO STDOUT; its data is to be read with walrcv_receive(). */
void
remote_begin_copy_out(Remote *remote, const char *command)
{
	walrcv_clear_result(execute(remote, command, WALRCV_OK_COPY_OUT, 0));
}

void
remote_close(Remote *remote)
{
	walrcv_disconnect(remote->conn);
	pfree(remote);
}

/*
 * Connects, or fails with an error that names the node.  What is sent there and back
 * depends on no settings of either member (pinned_settings.c).
 */
Remote *
remote_connect(const char *dsn, const char *node, bool replication)
{
	Remote	   *remote = connect_node(dsn, node, replication);

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
