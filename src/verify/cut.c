/*
 * cut.c
 *	  A cut, as its requester sees it.
 *
 * receive/hold.c has the whole protocol, cut_request.h the states of a request.
 *
 * The requester has two connections to the publisher.  One exports snapshots, in a READ
 * COMMITTED transaction that does nothing else: each query of it has a new snapshot, and all
 * remain until it ends.  Therefore many snapshots can be tried while the leader holds.
 * Those who read at the cut import the snapshot in connections of their own.  The other
 * connection flushes the publisher's WAL if its tail is not flushed, and therefore not sent: it
 * writes a transactional message, which no subscription asks for, and commits.  Who may not
 * do that assigns a transaction ID instead; then the publisher's WAL writer flushes.
 *
 * An attempt is over when apply has stood still for too long.  The next one may take longer, in
 * case the publisher is far away.
 *
 * A request is released by a callback at the end of the transaction, and at the end of
 * the process, which also runs if the process is terminated.  If it crashes, the server
 * restarts.  A request that is pinned is released after the commit is visible.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_subscription.h"
#include "compat.h"
#include "cut_request.h"
#include "last_error.h"
#include "miscadmin.h"
#include "remote_query.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "verify/cut.h"
#include "verify/publisher.h"
#include "wait_event.h"
#include "wal_end.h"

#define DEFAULT_TIMEOUT 60000	/* ms */
#define DEFAULT_STAND 1000		/* ms */

/*
 * Apply may stand still for this time without a cut, in milliseconds: at first, or for this
 * number of answers of the publisher; and at last.
 */
#define FIRST_STILL 30
#define STILL_ANSWERS 8
#define LAST_STILL 2000

/* Time between two attempts, in milliseconds: at first, and at last. */
#define FIRST_REST 10
#define LAST_REST 200

/* How often a wait looks for itself, in milliseconds. */
#define POLL_INTERVAL 10

struct Cut
{
	MemoryContext context;		/* of all of this */
	Subscription *subscription;
	CutOptions	options;
	char	   *purpose;
	TimestampTz deadline;
	WalReceiverConn *exporter;
	WalReceiverConn *flusher;
	bool		exporting;		/* is the exporter's transaction open? */
	CutLimits	limits;

	SubscriptionShared *entry;	/* NULL: no request */
	uint64		request;

	char	   *snapshot;		/* name of the last one */
	CutSnapshot *seen;			/* what it sees */
	bool		unflushed;		/* is its end of WAL not flushed? */
	int			attempts;

	/* Why the last attempt failed, for a message. */
	CutLoss		loss;
	TransactionId doubtful;
	bool		no_leader;
	bool		given;
};

static Cut *active = NULL;		/* of this process */

static const char export_query[] =
"SELECT pg_catalog.pg_export_snapshot(),"
" pg_catalog.pg_current_snapshot()::pg_catalog.text,"
" pg_catalog.pg_current_wal_insert_lsn()::pg_catalog.text,"
" pg_catalog.pg_current_wal_flush_lsn()::pg_catalog.text,"
" pg_catalog.current_setting('wal_block_size'),"
" (pg_catalog.current_setting('synchronous_standby_names') <> '')::pg_catalog.text";

static CutRequest *
request_of(const Cut *cut)
{
	return &cut->entry->cut;
}

/* Releases the request, if there is one; returns true if the leader stood. */
static bool
release_request(Cut *cut)
{
	SubscriptionShared *entry = cut->entry;

	cut->entry = NULL;
	return entry != NULL && cut_request_release(&entry->cut, cut->request);
}

static void
at_transaction_end(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			if (active)
				cut_end(active);
			break;
		default:
			break;
	}
}

static void
at_process_end(int code, Datum arg)
{
	if (active)
		(void) release_request(active);
}

static void
register_callbacks(void)
{
	static bool registered = false;

	if (registered)
		return;
	RegisterXactCallback(at_transaction_end, NULL);
	before_shmem_exit(at_process_end, (Datum) 0);
	registered = true;
}

/* Fails if the subscription is not applied, because it is disabled or has been dropped. */
static void
check_enabled(const Cut *cut)
{
	HeapTuple	tuple;
	bool		enabled;

	AcceptInvalidationMessages();
	tuple = SearchSysCache1(SUBSCRIPTIONOID, ObjectIdGetDatum(cut->subscription->oid));
	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("subscription \"%s\" does not exist", cut->subscription->name)));
	enabled = ((Form_pg_subscription) GETSTRUCT(tuple))->subenabled;
	ReleaseSysCache(tuple);
	if (!enabled)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" is disabled", cut->subscription->name),
				 errdetail("A disabled subscription cannot be brought to the same state as its publisher.%s",
						   last_error_describe(cut->subscription->oid)),
				 errhint("Run ALTER SUBSCRIPTION ... ENABLE.")));
}

static char *
describe_failure(const Cut *cut)
{
	if (cut->no_leader)
		return "It has no apply worker at the moment.";
	if (TransactionIdIsValid(cut->doubtful))
		return psprintf("Transaction %u of the publisher is in progress, and may be waiting for a synchronous standby.",
						cut->doubtful);
	switch (cut->loss)
	{
		case CUT_LOSS_STILL:
			return psprintf("None of %d snapshots of the publisher was at the end of an applied transaction in time.",
							cut->attempts);
		case CUT_LOSS_MEMORY:
			return "The publisher sent too much while apply was held.";
		case CUT_LOSS_LEADER:
			return "Its apply worker has ended.";
		case CUT_LOSS_NONE:
		case CUT_LOSS_DEADLINE:
			break;
	}
	if (cut->given)
		return psprintf("It has not applied everything that the publisher had at LSN " compat_lsn_format ".",
						LSN_FORMAT_ARGS(cut->seen->lsn));
	return "Its apply worker did not come to the end of a transaction.";
}

pg_noreturn static void
report_timeout(const Cut *cut)
{
	ereport(ERROR,
			(errcode(ERRCODE_QUERY_CANCELED),
			 errmsg("timed out while bringing subscription \"%s\" and its publisher to the same state",
					cut->subscription->name),
			 errdetail("%s%s", describe_failure(cut), last_error_describe(cut->subscription->oid)),
			 TransactionIdIsValid(cut->doubtful) ?
			 errhint("Wait until that transaction has ended.") :
			 errhint("See the server log and \"weft.stat_subscription\" for the cause.")));
}

/* Waits for a while, or until the latch is set.  Fails after the deadline. */
static void
wait_a_little(const Cut *cut, long timeout)
{
	if (GetCurrentTimestamp() >= cut->deadline)
		report_timeout(cut);
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, timeout,
					 wait_event_id(WEFT_WAIT_CUT));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

static void
rest(const Cut *cut, long duration)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), duration);
	long		left;

	while ((left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end)) > 0)
		wait_a_little(cut, left);
}

/* Reads "xmin:xmax:xid,xid,...". */
static void
parse_snapshot(const Cut *cut, const char *text, CutSnapshot *snapshot)
{
	char	   *next;

	snapshot->xmin = FullTransactionIdFromU64(strtou64(text, &next, 10));
	if (*next == ':')
		next++;
	snapshot->xmax = FullTransactionIdFromU64(strtou64(next, &next, 10));
	if (*next == ':')
		next++;
	snapshot->num_in_progress = 0;
	while (*next != '\0')
	{
		char	   *start = next;

		if (snapshot->num_in_progress == CUT_MAX_IN_PROGRESS)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("the publisher of subscription \"%s\" has more than %d transactions in progress",
							cut->subscription->name, CUT_MAX_IN_PROGRESS)));
		snapshot->in_progress[snapshot->num_in_progress++] =
			(TransactionId) strtou64(start, &next, 10);
		if (next == start)
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("could not %s: invalid snapshot \"%s\"", cut->purpose, text)));
		if (*next == ',')
			next++;
	}
}

/* Takes a snapshot of the publisher. */
static void
export_snapshot(Cut *cut)
{
	RemoteValue *row = remote_query_row(cut->exporter, cut->purpose, export_query, 6);
	WalEndAnswer answer;
	WalEnd		end;

	for (int i = 0; i < 6; i++)
		if (row[i] == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("could not %s: unexpected answer", cut->purpose)));
	cut->snapshot = MemoryContextStrdup(cut->context, row[0]);
	parse_snapshot(cut, row[1], cut->seen);
	answer = (WalEndAnswer)
	{
		.insert_lsn = row[2],.flush_lsn = row[3],.block_size = row[4]
	};
	end = wal_end_get(&answer);
	cut->seen->lsn = end.lsn;
	cut->seen->synchronous = strcmp(row[5], "true") == 0;
	cut->unflushed = !end.flushed;
	cut->attempts++;
}

/* Flushes the publisher's WAL. */
static void
flush_publisher(Cut *cut)
{
	RemoteAnswer answer;

	answer = remote_query(cut->flusher, NULL,
						  "SELECT pg_catalog.pg_logical_emit_message(true, 'weft', '')::pg_catalog.text",
						  WALRCV_OK_TUPLES, 1);
	if (answer.problem != NULL)
		(void) remote_query_row(cut->flusher, cut->purpose, WAL_END_FLUSH_QUERY, 1);
}

/*
 * Waits until the request has left a state, and returns the new one; CUT_FREE or CUT_LOST if the
 * leader does not serve it any longer.
 */
static CutState
wait_for_leader(Cut *cut, CutState state)
{
	CutState	result;

	while ((result = cut_request_state(request_of(cut), cut->request)) == state)
		wait_a_little(cut, POLL_INTERVAL);
	cut->loss = result == CUT_FREE ? CUT_LOSS_LEADER :
		result == CUT_LOST ? request_of(cut)->loss : CUT_LOSS_NONE;
	cut->doubtful = request_of(cut)->doubtful;
	return result;
}

/* Finds the entry of the leader, and waits until no other process uses its request. */
static SubscriptionShared *
wait_for_entry(Cut *cut)
{
	for (;;)
	{
		SubscriptionShared *entry = shmem_find(cut->subscription->oid);

		cut->no_leader = entry == NULL;
		if (entry != NULL && !cut_request_exists(&entry->cut))
			return entry;
		wait_a_little(cut, POLL_INTERVAL);
		check_enabled(cut);
	}
}

static void
begin_export(Cut *cut)
{
	remote_command(cut->exporter, cut->purpose,
				   "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY");
	cut->exporting = true;
	if (cut->options.publisher_commands)
		remote_command(cut->exporter, cut->purpose, cut->options.publisher_commands);
}

static void
end_export(Cut *cut)
{
	if (cut->exporting)
		remote_command(cut->exporter, cut->purpose, "ROLLBACK");
	cut->exporting = false;
}

/* Registers a request, and tries snapshots; returns true if the leader stands. */
static bool
try(Cut *cut)
{
	SubscriptionShared *entry = wait_for_entry(cut);
	CutState	state;

	begin_export(cut);
	if (!cut_request_register(&entry->cut, cut->deadline, &cut->limits, &cut->request))
		return false;
	cut->entry = entry;
	if (entry->subid != cut->subscription->oid)
		return false;

	cut->given = false;
	state = wait_for_leader(cut, CUT_WANTED);
	while (state == CUT_HELD)
	{
		compat_injection_point("weft-cut-held");
		export_snapshot(cut);
		if (!cut_request_give(request_of(cut), cut->request, cut->seen))
			break;
		cut->given = true;
		compat_injection_point("weft-cut-given");
		if (cut->unflushed)
			flush_publisher(cut);
		state = wait_for_leader(cut, CUT_GIVEN);
	}
	return state == CUT_STANDING;
}

static void
open_connections(Cut *cut)
{
	MemoryContext old = MemoryContextSwitchTo(cut->context);
	TimestampTz start;

	cut->exporter = publisher_connect(cut->subscription);
	cut->flusher = publisher_connect(cut->subscription);
	/* It must not wait for standbys: this subscription may be one. */
	remote_command(cut->flusher, cut->purpose, "SET synchronous_commit = local");
	start = GetCurrentTimestamp();
	(void) remote_query_row(cut->flusher, cut->purpose, "SELECT ''", 1);
	cut->limits.attempt = FIRST_STILL +
		STILL_ANSWERS * TimestampDifferenceMilliseconds(start, GetCurrentTimestamp());
	cut->limits.stand = cut->options.stand > 0 ? cut->options.stand : DEFAULT_STAND;
	MemoryContextSwitchTo(old);
}

static Cut *
create(const Subscription *subscription, const CutOptions *options)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "weft cut",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Cut		   *cut = palloc0(sizeof(Cut));

	cut->context = context;
	active = cut;
	cut->options = *options;
	if (options->publisher_commands)
		cut->options.publisher_commands = pstrdup(options->publisher_commands);
	cut->subscription = GetSubscription(subscription->oid, false);
	cut->purpose = psprintf("take a snapshot of the publisher of subscription \"%s\"",
							cut->subscription->name);
	cut->seen = palloc(sizeof(CutSnapshot));
	cut->deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												options->timeout > 0 ? options->timeout :
												DEFAULT_TIMEOUT);
	MemoryContextSwitchTo(old);
	return cut;
}

Cut *
cut_begin(const Subscription *subscription, const CutOptions *options)
{
	Cut		   *cut;
	long		duration = FIRST_REST;

	shmem_require();
	if (active)
		elog(ERROR, "this process has a cut already");
	if (IsolationUsesXactSnapshot() && FirstSnapshotSet)
		elog(ERROR, "a cut must be begun before the transaction has a snapshot");
	register_callbacks();
	cut = create(subscription, options);
	check_enabled(cut);
	open_connections(cut);
	while (!try(cut))
	{
		(void) release_request(cut);
		end_export(cut);
		if (cut->loss == CUT_LOSS_STILL)
			cut->limits.attempt = Min(cut->limits.attempt * 3 / 2, LAST_STILL);
		rest(cut, duration);
		duration = Min(duration * 2, LAST_REST);
		check_enabled(cut);
	}
	return cut;
}

bool
cut_release(Cut *cut)
{
	return release_request(cut);
}

bool
cut_stands(const Cut *cut)
{
	CutState	state = CUT_FREE;

	if (cut->entry)
		state = cut_request_state(request_of(cut), cut->request);
	return state == CUT_STANDING || state == CUT_PINNED;
}

bool
cut_pin(Cut *cut)
{
	return cut->entry != NULL && cut_request_pin(request_of(cut), cut->request);
}

void
cut_end(Cut *cut)
{
	Assert(cut == active);
	active = NULL;
	(void) release_request(cut);
	if (cut->exporter)
		walrcv_disconnect(cut->exporter);
	if (cut->flusher)
		walrcv_disconnect(cut->flusher);
	MemoryContextDelete(cut->context);
}

XLogRecPtr
cut_lsn(const Cut *cut)
{
	return cut->seen->lsn;
}

const char *
cut_snapshot(const Cut *cut)
{
	return cut->snapshot;
}

int
cut_attempts(const Cut *cut)
{
	return cut->attempts;
}
