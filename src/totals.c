/*
 * totals.c
 *	  What was counted for each subscription, over all of its apply workers.
 *
 * The counters of SubscriptionShared begin at zero with each apply worker.  What they reach is
 * added up here, a few times a second, in a table of fixed size; a new entry evicts the one that
 * was not used for the longest time.
 *
 * The table is in plain shared memory, and lasts until the server stops.  It is no custom
 * statistics kind of PostgreSQL 18: a server that starts without the library discards its whole
 * file of statistics, those of all tables included, because it finds an unknown kind there; and
 * two libraries with the same number of a kind prevent it from starting.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "lock_tranche.h"
#include "result_rows.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "totals.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#define ENTRIES 128
#define TRANCHE "WeftTotals"
#define COLUMNS 5

typedef struct TotalsEntry
{
	Oid			subid;			/* InvalidOid while the entry is free */
	TimestampTz used;
	Totals		totals;
} TotalsEntry;

typedef struct SharedTotals
{
	LWLock		lock;			/* protects all entries */
	TotalsEntry entries[ENTRIES];
} SharedTotals;

PG_FUNCTION_INFO_V1(weft_stat_get_totals);

static SharedTotals *shared = NULL;

/* Requests shared memory; called once, in the postmaster. */
void
totals_request(void)
{
	lock_tranche_request(TRANCHE);
	RequestAddinShmemSpace(MAXALIGN(sizeof(SharedTotals)));
}

/* Creates the shared memory, or finds it. */
void
totals_startup(void)
{
	int			tranche = lock_tranche_startup(TRANCHE);
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("weft totals", sizeof(SharedTotals), &found);
	if (!found)
	{
		memset(shared, 0, sizeof(SharedTotals));
		LWLockInitialize(&shared->lock, tranche);
	}
	LWLockRelease(AddinShmemInitLock);
}

/* Returns the subscription's entry, or makes one for it.  The caller holds the lock. */
static TotalsEntry *
find_entry(Oid subid)
{
	TotalsEntry *oldest = &shared->entries[0];

	for (int i = 0; i < ENTRIES; i++)
	{
		TotalsEntry *entry = &shared->entries[i];

		if (entry->subid == subid)
			return entry;
		if (entry->used < oldest->used)
			oldest = entry;
	}
	memset(oldest, 0, sizeof(TotalsEntry));
	oldest->subid = subid;
	return oldest;
}

/* Adds to a subscription's totals.  May be called while an error is being reported. */
void
totals_add(Oid subid, const Totals *amount)
{
	TotalsEntry *entry;

	if (LWLockHeldByMe(&shared->lock))
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	entry = find_entry(subid);
	entry->used = GetCurrentTimestamp();
	entry->totals.transactions += amount->transactions;
	entry->totals.changes += amount->changes;
	entry->totals.worker_starts += amount->worker_starts;
	entry->totals.errors += amount->errors;
	LWLockRelease(&shared->lock);
}

/* Returns a row for each subscription of which something was counted. */
Datum
weft_stat_get_totals(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TotalsEntry *copy = palloc(sizeof(TotalsEntry) * ENTRIES);

	shmem_require();
	result_rows_begin(fcinfo, COLUMNS);
	LWLockAcquire(&shared->lock, LW_SHARED);
	memcpy(copy, shared->entries, sizeof(shared->entries));
	LWLockRelease(&shared->lock);

	for (int i = 0; i < ENTRIES; i++)
	{
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};

		if (!OidIsValid(copy[i].subid))
			continue;
		values[0] = ObjectIdGetDatum(copy[i].subid);
		values[1] = Int64GetDatum((int64) copy[i].totals.transactions);
		values[2] = Int64GetDatum((int64) copy[i].totals.changes);
		values[3] = Int64GetDatum((int64) copy[i].totals.worker_starts);
		values[4] = Int64GetDatum((int64) copy[i].totals.errors);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
