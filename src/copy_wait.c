/*
 * copy_wait.c
 *	  Transactions that wait until tables are copied.
 *
 * A leader that finds a schema change in the middle of a transaction cannot wait any more: it
 * restarts (receive/ddl_rows.c).  This module tells the next leader before which transaction to wait.
 * A subscription whose entry has been evicted, or forgotten by a restart of the server, finds the
 * schema change once more.
 */
#include "postgres.h"

#include "copy_wait.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#define ENTRIES 64

typedef struct CopyWait
{
	Oid			subid;			/* InvalidOid while the entry is free */
	XLogRecPtr	final_lsn;		/* where the transaction ends */
} CopyWait;

typedef struct CopyWaits
{
	LWLock	   *lock;			/* protects the rest */
	int			next;			/* the entry to be evicted */
	CopyWait	entries[ENTRIES];
} CopyWaits;

static CopyWaits *shared = NULL;

/* Requests shared memory and a lock; called once, in the postmaster. */
void
copy_wait_request(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(CopyWaits)));
	RequestNamedLWLockTranche("weft_copy_wait", 1);
}

/* Creates the shared memory, or finds it. */
void
copy_wait_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("weft copy waits", sizeof(CopyWaits), &found);
	if (!found)
	{
		memset(shared, 0, sizeof(CopyWaits));
		shared->lock = &GetNamedLWLockTranche("weft_copy_wait")->lock;
	}
	LWLockRelease(AddinShmemInitLock);
}

/* Returns the entry of a subscription, or NULL. */
static CopyWait *
find(Oid subid)
{
	for (int i = 0; i < ENTRIES; i++)
		if (shared->entries[i].subid == subid)
			return &shared->entries[i];
	return NULL;
}

/* A subscription's transaction is to wait; the previous one is forgotten. */
void
copy_wait_set(Oid subid, XLogRecPtr final_lsn)
{
	CopyWait   *entry;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	entry = find(subid);
	if (entry == NULL)
	{
		entry = &shared->entries[shared->next];
		shared->next = (shared->next + 1) % ENTRIES;
	}
	entry->subid = subid;
	entry->final_lsn = final_lsn;
	LWLockRelease(shared->lock);
}

/* Returns where the transaction ends that is to wait, or InvalidXLogRecPtr. */
XLogRecPtr
copy_wait_get(Oid subid)
{
	CopyWait   *entry;
	XLogRecPtr	result;

	LWLockAcquire(shared->lock, LW_SHARED);
	entry = find(subid);
	result = entry ? entry->final_lsn : InvalidXLogRecPtr;
	LWLockRelease(shared->lock);
	return result;
}
