/*
 * totals.c
 *	  What was counted for each subscription, over all of its apply workers.
 *
 * The counters of SubscriptionShared begin at zero with each apply worker.  What they reach is
 * added up here, a few times a second, in a table of fixed size; a new entry evicts the one that
 * was not used for the longest time.
 *
 * Where the server has custom statistics (18), the table is one: the server writes it to its
 * file when it stops, reads it when it starts, and resets it after a crash.  Before, the table
 * is in plain shared memory, and lasts until the server stops.
 *
 * A server that starts without Weft finds statistics in the file that it does not know.  It then
 * discards the whole file, as with every library that has custom statistics.  The layout of
 * TotalsEntry must not change between versions of Weft for the same reason, unless the
 * kind's number changes, too.
 */
#include "postgres.h"

#include "compat.h"
#include "fmgr.h"
#include "funcapi.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "totals.h"
#include "utils/timestamp.h"

#if HAVE_CUSTOM_STATISTICS
#include "utils/pgstat_internal.h"
#endif

#define ENTRIES 128

typedef struct TotalsEntry
{
	Oid			subid;			/* InvalidOid while the entry is free */
	TimestampTz used;
	Totals		totals;
} TotalsEntry;

StaticAssertDecl(sizeof(TotalsEntry) == 48, "as in the statistics file");

typedef struct SharedTotals
{
	LWLock		lock;			/* protects all entries */
	TotalsEntry entries[ENTRIES];
} SharedTotals;

PG_FUNCTION_INFO_V1(weft_stat_get_totals);

static void
init_shared(void *memory)
{
	SharedTotals *totals = memory;

	memset(totals, 0, sizeof(SharedTotals));
	LWLockInitialize(&totals->lock, LWTRANCHE_PGSTATS_DATA);
}

#if HAVE_CUSTOM_STATISTICS

/* There are nine numbers for all extensions; this one is not reserved on the server's wiki. */
#define STATISTICS_KIND 31

static SharedTotals *
shared_totals(void)
{
	return pgstat_get_custom_shmem_data(STATISTICS_KIND);
}

static void
reset_statistics(TimestampTz now)
{
	SharedTotals *totals = shared_totals();

	LWLockAcquire(&totals->lock, LW_EXCLUSIVE);
	memset(totals->entries, 0, sizeof(totals->entries));
	LWLockRelease(&totals->lock);
}

/* The server writes this copy to its file. */
static void
copy_statistics(void)
{
	SharedTotals *totals = shared_totals();

	LWLockAcquire(&totals->lock, LW_SHARED);
	memcpy(pgstat_get_custom_snapshot_data(STATISTICS_KIND), totals->entries,
		   sizeof(totals->entries));
	LWLockRelease(&totals->lock);
}

static const PgStat_KindInfo statistics_kind = {
	.name = "weft_subscription",
	.fixed_amount = true,
	.write_to_file = true,
	.shared_size = sizeof(SharedTotals),
	.shared_data_off = offsetof(SharedTotals, entries),
	.shared_data_len = sizeof(((SharedTotals *) 0)->entries),
	.init_shmem_cb = init_shared,
	.reset_all_cb = reset_statistics,
	.snapshot_cb = copy_statistics,
};

/* Called once, while the postmaster loads Weft. */
void
totals_install(void)
{
	pgstat_register_kind(STATISTICS_KIND, &statistics_kind);
}

/* The server provides the memory. */
void
totals_request(void)
{
}

void
totals_startup(void)
{
}

#else

static SharedTotals *plain_memory = NULL;

static SharedTotals *
shared_totals(void)
{
	return plain_memory;
}

/* There is nothing to register. */
void
totals_install(void)
{
}

/* Requests shared memory; called once, in the postmaster. */
void
totals_request(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(SharedTotals)));
}

/* Creates the shared memory, or finds it. */
void
totals_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	plain_memory = ShmemInitStruct("weft totals", sizeof(SharedTotals), &found);
	if (!found)
		init_shared(plain_memory);
	LWLockRelease(AddinShmemInitLock);
}

#endif

/* Returns the subscription's entry, or makes one for it.  The caller holds the lock. */
static TotalsEntry *
find_entry(SharedTotals *totals, Oid subid)
{
	TotalsEntry *oldest = &totals->entries[0];

	for (int i = 0; i < ENTRIES; i++)
	{
		TotalsEntry *entry = &totals->entries[i];

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
	SharedTotals *totals = shared_totals();
	TotalsEntry *entry;

	if (LWLockHeldByMe(&totals->lock))
		return;
	LWLockAcquire(&totals->lock, LW_EXCLUSIVE);
	entry = find_entry(totals, subid);
	entry->used = GetCurrentTimestamp();
	entry->totals.transactions += amount->transactions;
	entry->totals.changes += amount->changes;
	entry->totals.worker_starts += amount->worker_starts;
	entry->totals.errors += amount->errors;
	LWLockRelease(&totals->lock);
}

/* Returns a row for each subscription of which something was counted. */
Datum
weft_stat_get_totals(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TotalsEntry *copy = palloc(sizeof(TotalsEntry) * ENTRIES);
	SharedTotals *totals;

	shmem_require();
	InitMaterializedSRF(fcinfo, 0);
	totals = shared_totals();
	LWLockAcquire(&totals->lock, LW_SHARED);
	memcpy(copy, totals->entries, sizeof(totals->entries));
	LWLockRelease(&totals->lock);

	for (int i = 0; i < ENTRIES; i++)
	{
		Datum		values[5];
		bool		nulls[5] = {0};

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
