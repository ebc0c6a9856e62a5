/*
 * wait_for_subscription.c
 *	  weft.wait_for_subscription(): waits until a subscription has caught up.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlogdefs.h"
#include "api/copy_report.h"
#include "applied_position.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "compat.h"
#include "deadline.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "last_error.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "publisher_connection.h"
#include "remote_query.h"
#include "replication/walreceiver.h"
#include "shmem.h"
#include "storage/latch.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "wait_event.h"
#include "wal_end.h"

PG_FUNCTION_INFO_V1(weft_wait_for_subscription);

/* Time between two looks at the progress, in milliseconds. */
#define POLL_INTERVAL 10

/* The publisher has this time to answer, even if the timeout is shorter; in milliseconds. */
#define PATIENCE 10000

/* No timeout is longer: a hundred years, in milliseconds. */
#define LONGEST_TIMEOUT (INT64CONST(36525) * SECS_PER_DAY * 1000)

/* Where the publisher's WAL ends now, up to where it is flushed, and the size of its pages. */
static const char publisher_position[] =
"SELECT CASE WHEN recovers THEN pg_catalog.pg_last_wal_replay_lsn()"
" ELSE pg_catalog.pg_current_wal_insert_lsn() END,"
" CASE WHEN recovers THEN pg_catalog.pg_last_wal_replay_lsn()"
" ELSE pg_catalog.pg_current_wal_flush_lsn() END,"
" pg_catalog.current_setting('wal_block_size')::pg_catalog.int4"
" FROM pg_catalog.pg_is_in_recovery() recovers";

static XLogRecPtr
ask_publisher(WalReceiverConn *conn, const char *subscription)
{
	char	   *purpose = psprintf("read the WAL position of the publisher of subscription \"%s\"",
								   subscription);
	RemoteValue *row = remote_query_row(conn, purpose, publisher_position, 3);
	WalEndAnswer answer = {.insert_lsn = row[0],.flush_lsn = row[1],.block_size = row[2]};
	WalEnd		end = wal_end_get(&answer);

	/*
	 * As long as no transaction commits, the records of one in progress may
	 * stay unflushed, and are not sent.
	 */
	if (!end.flushed)
		(void) remote_query_row(conn, purpose, WAL_END_FLUSH_QUERY, 1);
	return end.lsn;
}

typedef struct Question
{
	Subscription *subscription;
	XLogRecPtr	answer;
} Question;

/* Connects to the publisher and asks where its WAL ends now. */
static void
connect_and_ask(void *argument)
{
	Question   *question = argument;
	WalReceiverConn *conn = publisher_connection_open(question->subscription, false);

	PG_TRY();
	{
		question->answer = ask_publisher(conn, question->subscription->name);
	}
	PG_FINALLY();
	{
		walrcv_disconnect(conn);
	}
	PG_END_TRY();
}

/* Returns where the publisher's WAL ends now, or fails. */
static XLogRecPtr
get_publisher_lsn(Subscription *subscription, TimestampTz end)
{
	Question	question = {.subscription = subscription};
	TimestampTz deadline = Max(end, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), PATIENCE));

	if (!deadline_run(deadline, connect_and_ask, &question))
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("timed out while waiting for subscription \"%s\"", subscription->name),
				 errdetail("Its publisher does not answer.")));
	return question.answer;
}

/* Fails if the subscription is not applied, because it is disabled or has been dropped. */
static void
check_enabled(const Subscription *subscription)
{
	HeapTuple	tuple = SearchSysCache1(SUBSCRIPTIONOID, ObjectIdGetDatum(subscription->oid));
	bool		enabled;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("subscription \"%s\" does not exist", subscription->name)));
	enabled = ((Form_pg_subscription) GETSTRUCT(tuple))->subenabled;
	ReleaseSysCache(tuple);
	if (!enabled)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" is disabled", subscription->name),
				 errdetail("A disabled subscription does not catch up.%s", last_error_describe(subscription->oid)),
				 errhint("Run ALTER SUBSCRIPTION ... ENABLE.")));
}

static void
report_timeout(Subscription *subscription, int tables, XLogRecPtr applied, XLogRecPtr target)
{
	char	   *error = last_error_describe(subscription->oid);

	ereport(ERROR,
			(errcode(ERRCODE_QUERY_CANCELED),
			 errmsg("timed out while waiting for subscription \"%s\"", subscription->name),
			 tables > 0 ?
			 errdetail_plural("%d table is not synchronized yet; applied up to LSN " compat_lsn_format " of " compat_lsn_format ".%s%s",
							  "%d tables are not synchronized yet; applied up to LSN " compat_lsn_format " of " compat_lsn_format ".%s%s",
							  tables, tables,
							  LSN_FORMAT_ARGS(applied), LSN_FORMAT_ARGS(target),
							  copy_report_describe(subscription->oid), error) :
			 errdetail("All tables are synchronized; applied up to LSN " compat_lsn_format " of " compat_lsn_format ".%s",
					   LSN_FORMAT_ARGS(applied), LSN_FORMAT_ARGS(target), error),
			 errhint("See the server log and \"weft.stat_subscription\" for the cause.")));
}

/* Milliseconds in an interval, from zero to LONGEST_TIMEOUT; months count as 30 days. */
static int64
interval_milliseconds(Interval *interval)
{
	int64		days = (int64) interval->month * DAYS_PER_MONTH + interval->day;
	int64		result = days * SECS_PER_DAY * 1000 + interval->time / 1000;

	return Min(Max(result, 0), LONGEST_TIMEOUT);
}

/*
 * weft.wait_for_subscription(subscription name, timeout interval)
 *
 * Returns when all tables of the subscription are synchronized, and everything that had
 * been committed on the publisher when the function was called is applied here.  Fails if
 * this takes longer than the timeout, if the publisher cannot be reached or does not answer
 * within the timeout (or ten seconds, if that is longer), if the subscription is or becomes
 * disabled, or if the caller does not own it.
 */
Datum
weft_wait_for_subscription(PG_FUNCTION_ARGS)
{
	char	   *name = NameStr(*PG_GETARG_NAME(0));
	int64		timeout = interval_milliseconds(PG_GETARG_INTERVAL_P(1));
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout);
	Oid			subid = get_subscription_oid(name, false);
	Subscription *subscription;
	XLogRecPtr	target;

	shmem_require();
	if (!object_ownercheck(SubscriptionRelationId, subid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_SUBSCRIPTION, name);

	subscription = GetSubscription(subid, false);
	check_enabled(subscription);
	target = get_publisher_lsn(subscription, end);

	for (;;)
	{
		XLogRecPtr	applied = applied_position(subid);
		int			tables;

		AcceptInvalidationMessages();
		check_enabled(subscription);
		tables = list_length(compat_subscription_tables(subid, true));
		if (tables == 0 && applied >= target)
			break;
		if (GetCurrentTimestamp() >= end)
			report_timeout(subscription, tables, applied, target);

		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 POLL_INTERVAL, wait_event_id(WEFT_WAIT_SUBSCRIPTION));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	PG_RETURN_VOID();
}
