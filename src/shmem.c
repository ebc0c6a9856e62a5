/*
 * shmem.c
 *	  The shared root: one entry for every subscription that is being applied.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "replication/logicallauncher.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

typedef struct SharedRoot
{
	LWLock	   *lock;			/* held while an entry is claimed or released */
	pg_atomic_uint32 origin_users;	/* processes, writers not among them, that
									 * use the origin of a leader */
	int			num_entries;
	SubscriptionShared entries[FLEXIBLE_ARRAY_MEMBER];
} SharedRoot;

static SharedRoot *root = NULL;

/*
 * Every leader is one of the server's logical replication workers, so there are never
 * more leaders than this.
 */
static int
shmem_num_entries(void)
{
	return Max(max_logical_replication_workers, 1);
}

static Size
shmem_size(void)
{
	return add_size(offsetof(SharedRoot, entries),
					mul_size(shmem_num_entries(), sizeof(SubscriptionShared)));
}

/* Requests space in the main shared memory. */
void
shmem_request(void)
{
	RequestAddinShmemSpace(shmem_size());
	RequestNamedLWLockTranche("weft", 1);
}

/*
 * Returns the seq of a writer's transaction, or zero.  A streamed transaction that has not
 * ended has no seq yet; it comes after all others.
 */
uint64
shmem_writer_seq(SubscriptionShared *entry, int number)
{
	WriterShared *writer = &entry->writers[number];
	uint32		stream;
	uint64		seq;

	if (number < WEFT_MAX_WRITERS)
		return pg_atomic_read_u64(&writer->seq);
	stream = pg_atomic_read_u32(&writer->stream);
	if (stream == 0 || stream == STREAM_WRITER_LEAVES)
		return 0;
	seq = pg_atomic_read_u64(&entry->streams[stream - 1].seq);
	return seq == 0 ? PG_UINT64_MAX : seq;
}

/* Returns how many transactions were applied since the leader started. */
uint64
shmem_transactions(SubscriptionShared *entry)
{
	uint64		result = pg_atomic_read_u64(&entry->native_transactions);

	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
		result += pg_atomic_read_u64(&entry->writers[i].transactions);
	return result;
}

/* Returns how many changes writers have applied since the leader started. */
uint64
shmem_changes(SubscriptionShared *entry)
{
	uint64		result = 0;

	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
		result += pg_atomic_read_u64(&entry->writers[i].changes);
	return result;
}

/* Resets what an earlier set of writers has left behind. */
void
shmem_reset_writers(SubscriptionShared *entry)
{
	pg_atomic_write_u32(&entry->writers_gone, 0);
	pg_atomic_write_u32(&entry->schema_waits, 0);
	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
		writer_shared_reset(&entry->writers[i]);
	for (int i = 0; i < NUM_STREAMS; i++)
		pg_atomic_write_u32(&entry->streams[i].state, STREAM_FREE);
}

static void
shmem_reset_counters(SubscriptionShared *entry)
{
	pg_atomic_write_u32(&entry->batches, 0);
	pg_atomic_write_u32(&entry->compression, COMPRESSION_OFF);
	pg_atomic_write_u32(&entry->concurrent_ddl, 0);
	pg_atomic_write_u64(&entry->received_lsn, 0);
	pg_atomic_write_u64(&entry->applied_lsn, 0);
	pg_atomic_write_u64(&entry->applied_time, 0);
	pg_atomic_write_u64(&entry->native_transactions, 0);
	pg_atomic_write_u64(&entry->barriers, 0);
	for (int i = 0; i < NUM_CONFLICT_KINDS; i++)
		pg_atomic_write_u64(&entry->conflicts[i], 0);
	pg_atomic_write_u64(&entry->ring_size, 0);
	pg_atomic_write_u64(&entry->ring_used, 0);
	for (int i = 0; i < WEFT_MAX_PROCESSES; i++)
		writer_shared_reset_counters(&entry->writers[i]);
}

/* Creates the shared root, or attaches to it. */
void
shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	root = ShmemInitStruct("weft", shmem_size(), &found);
	if (!found)
	{
		memset(root, 0, shmem_size());
		root->lock = &GetNamedLWLockTranche("weft")->lock;
		pg_atomic_init_u32(&root->origin_users, 0);
		root->num_entries = shmem_num_entries();
		for (int i = 0; i < root->num_entries; i++)
		{
			SpinLockInit(&root->entries[i].mutex);
			cut_request_init(&root->entries[i].cut);
			shmem_reset_writers(&root->entries[i]);
			shmem_reset_counters(&root->entries[i]);
		}
	}
	LWLockRelease(AddinShmemInitLock);
}

void
shmem_require(void)
{
	if (root == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("weft is not loaded"),
				 errhint("Add \"weft\" to \"shared_preload_libraries\" and restart the server.")));
}

int
shmem_count(void)
{
	return root ? root->num_entries : 0;
}

SubscriptionShared *
shmem_get(int index)
{
	Assert(index >= 0 && index < root->num_entries);
	return &root->entries[index];
}

int
shmem_index(const SubscriptionShared *entry)
{
	return entry - root->entries;
}

/* Returns the entry of the subscription, or NULL if it has no leader now. */
SubscriptionShared *
shmem_find(Oid subid)
{
	SubscriptionShared *result = NULL;

	LWLockAcquire(root->lock, LW_SHARED);
	for (int i = 0; i < root->num_entries && result == NULL; i++)
		if (root->entries[i].subid == subid)
			result = &root->entries[i];
	LWLockRelease(root->lock);
	return result;
}

/*
 * Gives the calling leader an entry for its subscription, with all counters at zero.
 * Returns NULL if no entry is free.
 */
SubscriptionShared *
shmem_claim(Oid subid)
{
	SubscriptionShared *result = NULL;

	LWLockAcquire(root->lock, LW_EXCLUSIVE);
	for (int i = 0; i < root->num_entries; i++)
	{
		SubscriptionShared *entry = &root->entries[i];

		if (!OidIsValid(entry->subid))
		{
			result = entry;
			break;
		}
	}
	if (result)
	{
		shmem_reset_writers(result);
		shmem_reset_counters(result);
		SpinLockAcquire(&result->mutex);
		result->subid = subid;
		result->dbid = MyDatabaseId;
		result->leader_pid = MyProcPid;
		result->num_writers = 0;
		result->wanted_writers = 0;
		result->ring = DSM_HANDLE_INVALID;
		result->statistics_area = DSA_HANDLE_INVALID;
		result->native_reason[0] = '\0';
		result->asked_time = 0;
		result->asked_lsn = InvalidXLogRecPtr;
		pace_reset(&result->pace);
		memset(&result->confirmation, 0, sizeof(result->confirmation));
		SpinLockRelease(&result->mutex);
		cut_request_lead(&result->cut);
	}
	LWLockRelease(root->lock);
	return result;
}

/* Releases an entry, of which no writer may be running any more. */
void
shmem_release(SubscriptionShared *entry)
{
	cut_request_abandon(&entry->cut);
	LWLockAcquire(root->lock, LW_EXCLUSIVE);
	SpinLockAcquire(&entry->mutex);
	entry->subid = InvalidOid;
	entry->leader_pid = 0;
	entry->num_writers = 0;
	entry->ring = DSM_HANDLE_INVALID;
	entry->statistics_area = DSA_HANDLE_INVALID;
	SpinLockRelease(&entry->mutex);
	LWLockRelease(root->lock);
}

/* Keeps entries from being claimed or released, until shmem_let_entries_go(). */
void
shmem_keep_entries(void)
{
	LWLockAcquire(root->lock, LW_SHARED);
}

void
shmem_let_entries_go(void)
{
	LWLockRelease(root->lock);
}

static void
origin_released(int code, Datum arg)
{
	pg_atomic_fetch_sub_u32(&root->origin_users, 1);
}

/*
 * This process is about to use the origin of a leader until it ends.  Called before it does, so
 * that the server releases the origin before this is undone.
 */
void
shmem_share_origin(void)
{
	pg_atomic_fetch_add_u32(&root->origin_users, 1);
	on_shmem_exit(origin_released, (Datum) 0);
}

/* Does any process that is no writer use the origin of any leader? */
bool
shmem_origin_shared(void)
{
	return pg_atomic_read_u32(&root->origin_users) > 0;
}
