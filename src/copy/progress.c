/*
 * progress.c
 *	  The tables that are being copied, in shared memory.
 */
#include "postgres.h"

#include "copy/progress.h"
#include "guc.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "replication/logicallauncher.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

typedef struct CopyRoot
{
	LWLock	   *lock;
	pg_atomic_uint32 slots_left;	/* counted up when a worker leaves one */
	int			num_entries;
	CopyProgress entries[FLEXIBLE_ARRAY_MEMBER];
} CopyRoot;

static CopyRoot *root = NULL;

/*
 * Each table that is being copied occupies one of the server's logical replication workers;
 * the errors of as many further tables may be remembered.
 */
static int
num_entries(void)
{
	return 2 * Max(max_logical_replication_workers, 1);
}

static Size
shmem_size(void)
{
	return add_size(offsetof(CopyRoot, entries),
					mul_size(num_entries(), sizeof(CopyProgress)));
}

/* Requests space in the main shared memory. */
void
copy_progress_request(void)
{
	RequestAddinShmemSpace(shmem_size());
	RequestNamedLWLockTranche("weft copy", 1);
}

static void
reset(CopyProgress *entry)
{
	entry->reserved = 0;
	entry->verdict = COPY_ALLOWED;
	entry->alone = false;
	entry->last_error[0] = '\0';
	pg_atomic_init_u32(&entry->phase, COPY_COPYING);
	pg_atomic_init_u32(&entry->helpers, 0);
	pg_atomic_init_u32(&entry->helpers_used, 0);
	pg_atomic_init_u32(&entry->indexes, 0);
	pg_atomic_init_u32(&entry->indexes_done, 0);
	pg_atomic_init_u64(&entry->rows, 0);
	pg_atomic_init_u64(&entry->bytes, 0);
	pg_atomic_init_u64(&entry->table_bytes, 0);
	pg_atomic_init_u64(&entry->blocks, 0);
	pg_atomic_init_u64(&entry->blocks_done, 0);
	pg_atomic_init_u64(&entry->copied_at, 0);
}

/* Creates the entries, or attaches to them. */
void
copy_progress_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	root = ShmemInitStruct("weft copy", shmem_size(), &found);
	if (!found)
	{
		memset(root, 0, shmem_size());
		root->lock = &GetNamedLWLockTranche("weft copy")->lock;
		pg_atomic_init_u32(&root->slots_left, 0);
		root->num_entries = num_entries();
		for (int i = 0; i < root->num_entries; i++)
			reset(&root->entries[i]);
	}
	LWLockRelease(AddinShmemInitLock);
}

/* The owner of an entry ends. */
static void
release(int code, Datum arg)
{
	CopyProgress *entry = (CopyProgress *) DatumGetPointer(arg);

	LWLockAcquire(root->lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&entry->phase) != COPY_DONE)
		pg_atomic_write_u32(&entry->phase, COPY_FAILED);
	pg_atomic_write_u32(&entry->helpers, 0);
	entry->reserved = 0;
	entry->pid = 0;
	LWLockRelease(root->lock);
}

/* Returns the entry of the table, else a free one, else the oldest without an owner. */
static CopyProgress *
choose(Oid subid, Oid relid)
{
	CopyProgress *result = NULL;

	for (int i = 0; i < root->num_entries; i++)
	{
		CopyProgress *entry = &root->entries[i];

		if (entry->pid != 0)
			continue;
		if (entry->dbid == MyDatabaseId && entry->subid == subid && entry->relid == relid)
			return entry;
		if (result == NULL ||
			(OidIsValid(result->dbid) &&
			 (!OidIsValid(entry->dbid) || entry->started_at < result->started_at)))
			result = entry;
	}
	return result;
}

/*
 * Gives the calling process an entry for a table, until it ends or copies another one.  What
 * an earlier attempt has left for the next one stays: its error, and what it forbids.
 */
CopyProgress *
copy_progress_claim(Oid subid, Oid relid)
{
	static CopyProgress *mine = NULL;
	CopyProgress *entry;

	LWLockAcquire(root->lock, LW_EXCLUSIVE);
	entry = mine ? mine : choose(subid, relid);
	if (entry)
	{
		char		last_error[COPY_ERROR_LEN] = "";
		bool		alone = false;
		CopyVerdict verdict = COPY_ALLOWED;

		if (entry->dbid == MyDatabaseId && entry->subid == subid && entry->relid == relid)
		{
			strlcpy(last_error, entry->last_error, sizeof(last_error));
			alone = entry->alone;
			verdict = entry->verdict;
		}
		reset(entry);
		strlcpy(entry->last_error, last_error, sizeof(last_error));
		entry->alone = alone;
		entry->verdict = verdict;
		entry->dbid = MyDatabaseId;
		entry->subid = subid;
		entry->relid = relid;
		entry->pid = MyProcPid;
		entry->started_at = GetCurrentTimestamp();
	}
	LWLockRelease(root->lock);
	if (entry == NULL)
		elog(ERROR, "no entry is left for a table to be copied");
	if (mine == NULL)
		on_shmem_exit(release, PointerGetDatum(entry));
	return mine = entry;
}

/* Returns how many helpers the entry's owner may start, up to "helpers". */
int
copy_progress_reserve(CopyProgress *entry, int helpers)
{
	int			others = 0;

	LWLockAcquire(root->lock, LW_EXCLUSIVE);
	for (int i = 0; i < root->num_entries; i++)
		if (&root->entries[i] != entry)
			others += root->entries[i].reserved;
	helpers = Max(Min(helpers, weft_max_copy_workers - others), 0);
	entry->reserved = helpers;
	LWLockRelease(root->lock);
	return helpers;
}

void
copy_progress_release_helpers(CopyProgress *entry)
{
	(void) copy_progress_reserve(entry, 0);
}

/*
 * Did building the indexes fail for another reason than the rows, or somebody's request?
 * Then it might fail forever, while the memory and disk space may suffice for the server's
 * own copy.
 */
static bool
cannot_index(const CopyProgress *entry, const ErrorData *error)
{
	int			category = ERRCODE_TO_CATEGORY(error->sqlerrcode);

	return pg_atomic_read_u32(&unconstify(CopyProgress *, entry)->phase) == COPY_INDEXING &&
		category != ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION &&
		category != ERRCODE_OPERATOR_INTERVENTION;
}

/* Remembers why a copy has failed. */
void
copy_progress_failed(CopyProgress *entry, const ErrorData *error)
{
	LWLockAcquire(root->lock, LW_EXCLUSIVE);
	strlcpy(entry->last_error, error->message ? error->message : "unknown error",
			COPY_ERROR_LEN);
	if (error->sqlerrcode == ERRCODE_INVALID_TRANSACTION_STATE)
		entry->verdict = COPY_UNSAFE;
	else if (cannot_index(entry, error))
		entry->verdict = COPY_UNINDEXED;
	LWLockRelease(root->lock);
	pg_atomic_write_u32(&entry->phase, COPY_FAILED);
}

/* From now on only one process may copy the table. */
void
copy_progress_set_alone(CopyProgress *entry)
{
	LWLockAcquire(root->lock, LW_EXCLUSIVE);
	entry->alone = true;
	LWLockRelease(root->lock);
}

/* Returns what the last copy of a table says about the next one. */
CopyVerdict
copy_progress_verdict(Oid subid, Oid relid)
{
	CopyVerdict result = COPY_ALLOWED;

	LWLockAcquire(root->lock, LW_SHARED);
	for (int i = 0; i < root->num_entries && result == COPY_ALLOWED; i++)
	{
		CopyProgress *entry = &root->entries[i];

		if (entry->dbid == MyDatabaseId && entry->subid == subid && entry->relid == relid)
			result = entry->verdict;
	}
	LWLockRelease(root->lock);
	return result;
}

int
copy_progress_index(const CopyProgress *entry)
{
	return entry - root->entries;
}

CopyProgress *
copy_progress_get(int index)
{
	Assert(index >= 0 && index < root->num_entries);
	return &root->entries[index];
}

/* Copies all entries of this database; returns their number. */
int
copy_progress_read(CopyProgress **entries)
{
	int			count = 0;

	*entries = palloc(root->num_entries * sizeof(CopyProgress));
	LWLockAcquire(root->lock, LW_SHARED);
	for (int i = 0; i < root->num_entries; i++)
		if (root->entries[i].dbid == MyDatabaseId)
			(*entries)[count++] = root->entries[i];
	LWLockRelease(root->lock);
	return count;
}

/*
 * Returns how much of a table has been copied, from 0 to 1.  The publisher's blocks do not
 * all hold the same amount, but there are many of them.
 */
double
copy_progress_fraction(const CopyProgress *entry)
{
	double		blocks = pg_atomic_read_u64(&unconstify(CopyProgress *, entry)->blocks);
	double		done = pg_atomic_read_u64(&unconstify(CopyProgress *, entry)->blocks_done);

	if (pg_atomic_read_u64(&unconstify(CopyProgress *, entry)->copied_at) != 0)
		return 1;
	return blocks > 0 ? Min(done / blocks, 1) : 0;
}

/* A table synchronization worker ends without having dropped its slot (slots.c). */
void
copy_progress_leave_slot(void)
{
	pg_atomic_fetch_add_u32(&root->slots_left, 1);
}

/* Returns a number that changes whenever that has happened. */
uint32
copy_progress_slots_left(void)
{
	return pg_atomic_read_u32(&root->slots_left);
}
