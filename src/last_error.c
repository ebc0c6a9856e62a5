/*
 * last_error.c
 *	  The last error of every subscription's apply worker.
 *
 * The server writes an error only to its log.  This module keeps its message, without
 * details, until the server restarts.  The table has a fixed size, and a new entry evicts the
 * oldest one.  An apply worker enters its own error while it reports it; writers hand theirs to
 * it (ring/failure.c).
 *
 * A message may quote values of rows, but not a connection string's password: neither the server
 * nor libpq shows it.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_subscription.h"
#include "fmgr.h"
#include "funcapi.h"
#include "last_error.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "result_rows.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "totals.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#define ENTRIES 128
#define COLUMNS 6
#define MESSAGE_LEN 256

/* An error that comes again after a longer time than this is not counted as a repetition. */
#define REPEAT_TIME (10 * 60 * 1000)	/* ms */

typedef struct LastError
{
	Oid			subid;			/* InvalidOid while the entry is free */
	TimestampTz time;
	XLogRecPtr	lsn;			/* what the error is about; may be invalid */
	int			repeats;		/* errors with the same message and LSN, in a
								 * row */
	bool		overcome;		/* has apply gone on since? */
	char		message[MESSAGE_LEN];
} LastError;

typedef struct LastErrors
{
	LWLock	   *lock;			/* protects all entries */
	LastError	entries[ENTRIES];
} LastErrors;

/* Globals, since the hook below has no other way to them. */
static LastErrors *shared = NULL;
static emit_log_hook_type previous_emit_log_hook = NULL;
static XLogRecPtr subject = InvalidXLogRecPtr;

PG_FUNCTION_INFO_V1(weft_stat_get_last_error);

/* Requests shared memory and a lock; called once, in the postmaster. */
void
last_error_request(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(LastErrors)));
	RequestNamedLWLockTranche("weft_last_error", 1);
}

/* Creates the shared memory, or finds it. */
void
last_error_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("weft last errors", sizeof(LastErrors), &found);
	if (!found)
	{
		memset(shared, 0, sizeof(LastErrors));
		shared->lock = &GetNamedLWLockTranche("weft_last_error")->lock;
	}
	LWLockRelease(AddinShmemInitLock);
}

/* Returns the subscription's entry, or the one to be used for it. */
static LastError *
find_entry(Oid subid)
{
	LastError  *oldest = &shared->entries[0];

	for (int i = 0; i < ENTRIES; i++)
	{
		LastError  *entry = &shared->entries[i];

		if (entry->subid == subid)
			return entry;
		if (entry->time < oldest->time)
			oldest = entry;
	}
	return oldest;
}

/*
 * Is this process an apply worker or one of its writers, in a state in which it may take a
 * lock?  Whoever holds the lock of this module waits for nothing else.
 */
static bool
may_keep(void)
{
	return shared != NULL && MyProc != NULL && CritSectionCount == 0 &&
		MyLogicalRepWorker != NULL && MyLogicalRepWorker->in_use &&
		am_leader_apply_worker() && !LWLockHeldByMe(shared->lock);
}

/*
 * From now on, errors of this process are about the remote transaction that finishes there: the
 * LSN that ALTER SUBSCRIPTION ... SKIP wants.  If that is invalid, about none.
 */
void
last_error_set_subject(XLogRecPtr lsn)
{
	subject = lsn;
}

static void
keep_error(ErrorData *edata)
{
	const Totals one_error = {.errors = 1};

	if (previous_emit_log_hook)
		previous_emit_log_hook(edata);

	if (edata->elevel < ERROR || edata->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN ||
		edata->message == NULL || !may_keep())
		return;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	{
		LastError  *entry = find_entry(MyLogicalRepWorker->subid);
		int			len = pg_mbcliplen(edata->message, strlen(edata->message), MESSAGE_LEN - 1);
		TimestampTz now = GetCurrentTimestamp();
		bool		again = entry->subid == MyLogicalRepWorker->subid && entry->lsn == subject &&
			strncmp(entry->message, edata->message, len) == 0 && entry->message[len] == '\0' &&
			!TimestampDifferenceExceeds(entry->time, now, REPEAT_TIME);

		entry->repeats = again ? entry->repeats + 1 : 1;
		entry->subid = MyLogicalRepWorker->subid;
		entry->time = now;
		entry->lsn = subject;
		entry->overcome = false;
		memcpy(entry->message, edata->message, len);
		entry->message[len] = '\0';
	}
	LWLockRelease(shared->lock);
	totals_add(MyLogicalRepWorker->subid, &one_error);
}

/* Hooks into the reporting of errors; called once, while the postmaster loads Weft. */
void
last_error_install(void)
{
	previous_emit_log_hook = emit_log_hook;
	emit_log_hook = keep_error;
}

/*
 * Called by an apply worker that has applied everything up to "applied": notes it if that is beyond
 * the last error of an earlier one.  Returns whether there is none that was not overcome.
 */
bool
last_error_overcome(Oid subid, XLogRecPtr applied)
{
	LastError  *entry;
	bool		result;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	entry = find_entry(subid);
	if (entry->subid == subid && entry->time < MyStartTimestamp &&
		!XLogRecPtrIsInvalid(applied) && applied > entry->lsn)
		entry->overcome = true;
	result = entry->subid != subid || entry->overcome;
	LWLockRelease(shared->lock);
	return result;
}

/*
 * Returns the last error as a line of a detail, or an empty string.  The caller makes sure
 * that the user may see it.
 */
char *
last_error_describe(Oid subid)
{
	LastError	copy;

	LWLockAcquire(shared->lock, LW_SHARED);
	copy = *find_entry(subid);
	LWLockRelease(shared->lock);
	if (copy.subid != subid)
		return "";
	return psprintf("\nThe last error of its apply worker, at %s: %s",
					timestamptz_to_str(copy.time), copy.message);
}

/* A message may quote what was to be applied, so not everybody may see it. */
static bool
may_see(Oid subid)
{
	HeapTuple	tuple = SearchSysCache1(SUBSCRIPTIONOID, ObjectIdGetDatum(subid));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = has_privs_of_role(GetUserId(), ((Form_pg_subscription) GETSTRUCT(tuple))->subowner) ||
		has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	ReleaseSysCache(tuple);
	return result;
}

/*
 * One row for every subscription whose apply worker has failed since the server
 * started, if the user owns it or has the rights of pg_read_all_stats.
 */
Datum
weft_stat_get_last_error(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	LastError  *copy = palloc(sizeof(LastError) * ENTRIES);

	shmem_require();
	result_rows_begin(fcinfo, COLUMNS);
	LWLockAcquire(shared->lock, LW_SHARED);
	memcpy(copy, shared->entries, sizeof(LastError) * ENTRIES);
	LWLockRelease(shared->lock);

	for (int i = 0; i < ENTRIES; i++)
	{
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};

		if (!OidIsValid(copy[i].subid) || !may_see(copy[i].subid))
			continue;
		values[0] = ObjectIdGetDatum(copy[i].subid);
		values[1] = TimestampTzGetDatum(copy[i].time);
		values[2] = LSNGetDatum(copy[i].lsn);
		nulls[2] = copy[i].lsn == InvalidXLogRecPtr;
		values[3] = CStringGetTextDatum(copy[i].message);
		values[4] = Int32GetDatum(copy[i].repeats);
		values[5] = BoolGetDatum(copy[i].overcome);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
