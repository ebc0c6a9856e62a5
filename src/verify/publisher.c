/*
 * publisher.c
 *	  Connections to the publisher of a subscription, for callers who own the subscription.
 */
#include "postgres.h"

#include "compat.h"
#include "miscadmin.h"
#include "pinned_settings.h"
#include "publisher_connection.h"
#include "remote_query.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "verify/publisher.h"

#define OLDEST_PUBLISHER 150000

/* What is not among the pinned settings.  A reader never writes. */
static const char reader_settings[] =
"SET row_security = off; SET default_transaction_read_only = on; SET lock_timeout = 0;"
" SET idle_session_timeout = 0";

static const char server_query[] =
"SELECT pg_catalog.current_setting('server_version_num'),"
" pg_catalog.pg_is_in_recovery()::pg_catalog.text";

Subscription *
publisher_subscription_by_oid(Oid subid)
{
	Subscription *subscription = GetSubscription(subid, false);

	if (!object_ownercheck(SubscriptionRelationId, subid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_SUBSCRIPTION, subscription->name);
	return subscription;
}

Subscription *
publisher_subscription(const char *name)
{
	return publisher_subscription_by_oid(get_subscription_oid(name, false));
}

static void
set_up(WalReceiverConn *conn, const Subscription *subscription)
{
	char	   *purpose = psprintf("set up the connection to the publisher of subscription \"%s\"",
								   subscription->name);
	RemoteValue *server;

	(void) remote_query_row(conn, purpose, pinned_settings_query(), 1);
	remote_command(conn, purpose, reader_settings);
	server = remote_query_row(conn, purpose, server_query, 2);
	if (server[0] == NULL || pg_strtoint32(server[0]) < OLDEST_PUBLISHER)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the publisher of subscription \"%s\" is older than PostgreSQL 15",
						subscription->name)));
	if (server[1] == NULL || strcmp(server[1], "false") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the publisher of subscription \"%s\" is a standby server",
						subscription->name),
				 errhint("Let the subscription connect to the primary server.")));
}

static WalReceiverConn *
set_up_or_disconnect(WalReceiverConn *conn, const Subscription *subscription)
{
	PG_TRY();
	{
		set_up(conn, subscription);
	}
	PG_CATCH();
	{
		walrcv_disconnect(conn);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return conn;
}

WalReceiverConn *
publisher_connect(const Subscription *subscription)
{
	return set_up_or_disconnect(publisher_connection_open(subscription, false), subscription);
}

WalReceiverConn *
publisher_connect_by(const Subscription *subscription, const char *connection)
{
	return set_up_or_disconnect(publisher_connection_open_by(subscription, connection),
								subscription);
}

void
publisher_import(WalReceiverConn *conn, const Subscription *subscription, const char *snapshot)
{
	char	   *purpose = psprintf("use a snapshot of the publisher of subscription \"%s\"",
								   subscription->name);

	remote_command(conn, purpose,
				   psprintf("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT %s",
							quote_literal_cstr(snapshot)));
}
