/*
 * compare_progress.c
 *	  The comparisons that are running, in shared memory.
 *
 * The session that runs a comparison owns an entry.  An entry also excludes a second session
 * from the same comparison.  The session gives it back when the procedure ends, by whatever
 * error, or when the process exits; if a process is killed, then the server starts anew, with
 * empty entries.
 */
#include "postgres.h"

#include "compat.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "result_rows.h"
#include "storage/dsm_registry.h"
#include "storage/ipc.h"
#include "storage/spin.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "verify/compare_progress.h"

PG_FUNCTION_INFO_V1(weft_stat_get_comparison);

/* How many comparisons can run at a time, in all databases. */
#define NUM_ENTRIES 64

#define COLUMNS 6

typedef struct CompareRoot
{
	slock_t		mutex;			/* protects what is not atomic in the entries */
	CompareProgress entries[NUM_ENTRIES];
} CompareRoot;

/* The entry of this session.  Static because it is released when the process exits. */
static CompareProgress *owned = NULL;

static void
initialize(COMPAT_SEGMENT_ARGUMENTS)
{
	CompareRoot *root = pointer;

	memset(root, 0, sizeof(CompareRoot));
	SpinLockInit(&root->mutex);
	for (int i = 0; i < NUM_ENTRIES; i++)
	{
		pg_atomic_init_u32(&root->entries[i].jobs, 0);
		pg_atomic_init_u64(&root->entries[i].rows, 0);
		pg_atomic_init_u64(&root->entries[i].rows_estimated, 0);
		pg_atomic_init_u64(&root->entries[i].snapshot_since, 0);
	}
}

static CompareRoot *
get_root(void)
{
	static CompareRoot *root = NULL;
	bool		found;

	if (root == NULL)
		root = compat_named_segment("weft comparisons", sizeof(CompareRoot), initialize, &found);
	return root;
}

static void
release_at_exit(int code, Datum unused)
{
	if (owned != NULL)
		compare_progress_release(owned);
}

/* Finds a free entry, or NULL; reports in *pid who runs the comparison, or zero. */
static CompareProgress *
take_entry(CompareRoot *root, int64 comparison, int *pid)
{
	CompareProgress *entry = NULL;

	*pid = 0;
	SpinLockAcquire(&root->mutex);
	for (int i = 0; i < NUM_ENTRIES; i++)
	{
		if (root->entries[i].comparison == 0 && entry == NULL)
			entry = &root->entries[i];
		else if (root->entries[i].comparison == comparison && root->entries[i].dbid == MyDatabaseId)
			*pid = root->entries[i].pid;
	}
	if (entry != NULL && *pid == 0)
	{
		entry->comparison = comparison;
		entry->dbid = MyDatabaseId;
		entry->pid = MyProcPid;
	}
	SpinLockRelease(&root->mutex);
	return entry;
}

/*
 * Takes an entry for a comparison.  Fails if another session runs this comparison.  The caller
 * must release the entry, after errors, too.
 */
CompareProgress *
compare_progress_claim(int64 comparison)
{
	int			pid;
	CompareProgress *entry = take_entry(get_root(), comparison, &pid);
	static bool registered = false;

	if (pid != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("comparison %lld is running", (long long) comparison),
				 errdetail("The process with PID %d runs it.", pid)));
	if (entry == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many comparisons are running"),
				 errdetail("At most %d can run at a time.", NUM_ENTRIES),
				 errhint("Wait until others have ended.")));
	pg_atomic_write_u32(&entry->jobs, 0);
	pg_atomic_write_u64(&entry->rows, 0);
	pg_atomic_write_u64(&entry->rows_estimated, 0);
	pg_atomic_write_u64(&entry->snapshot_since, 0);
	owned = entry;
	if (!registered)
		before_shmem_exit(release_at_exit, (Datum) 0);
	registered = true;
	return entry;
}

void
compare_progress_release(CompareProgress *entry)
{
	CompareRoot *root = get_root();

	owned = NULL;
	SpinLockAcquire(&root->mutex);
	entry->comparison = 0;
	entry->pid = 0;
	SpinLockRelease(&root->mutex);
}

int
compare_progress_index(const CompareProgress *entry)
{
	return entry - get_root()->entries;
}

/* Returns an entry by its index, for other processes of the comparison. */
CompareProgress *
compare_progress_get(int index)
{
	return &get_root()->entries[index];
}

static void
put(ReturnSetInfo *rsinfo, CompareProgress *entry, int64 comparison, int pid)
{
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS] = {0};
	TimestampTz since = pg_atomic_read_u64(&entry->snapshot_since);
	Interval	age = {0};

	age.time = Max(GetCurrentTimestamp() - since, 0);
	values[0] = Int64GetDatum(comparison);
	values[1] = Int32GetDatum(pid);
	values[2] = Int32GetDatum(pg_atomic_read_u32(&entry->jobs));
	values[3] = Int64GetDatum(pg_atomic_read_u64(&entry->rows));
	values[4] = Int64GetDatum(pg_atomic_read_u64(&entry->rows_estimated));
	nulls[4] = pg_atomic_read_u64(&entry->rows_estimated) == 0;
	values[5] = IntervalPGetDatum(&age);
	nulls[5] = since == 0;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* weft.stat_get_comparison(): one row for each comparison that runs in this database. */
Datum
weft_stat_get_comparison(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	CompareRoot *root = get_root();

	result_rows_begin(fcinfo, COLUMNS);
	for (int i = 0; i < NUM_ENTRIES; i++)
	{
		CompareProgress *entry = &root->entries[i];
		int64		comparison;
		int			pid;
		Oid			dbid;

		SpinLockAcquire(&root->mutex);
		comparison = entry->comparison;
		pid = entry->pid;
		dbid = entry->dbid;
		SpinLockRelease(&root->mutex);
		if (comparison != 0 && dbid == MyDatabaseId)
			put(rsinfo, entry, comparison, pid);
	}
	return (Datum) 0;
}
