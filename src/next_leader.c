/*
 * next_leader.c
 *	  What a leader tells the next one of its subscription.
 *
 * A leader that meets a schema change where it cannot apply it restarts (receive/ddl_rows.c), since
 * the publisher then sends the transaction once more.  It leaves word how to do better:
 *
 *	 - Tables are being copied, and the beginning of the transaction is in the ring already: wait
 *	   before this transaction.
 *	 - There are no writers, and the transaction is streamed while it is in progress: do not ask for
 *	   that.  The next leader takes this once; the one after it asks for streams again.
 *
 * Every leader of a subscription between members of a group leaves word how far the publisher has sent
 * its WAL (node_copy.c).
 *
 * A subscription whose entry has been evicted, or forgotten by a restart of the server, finds the
 * schema change once more.
 */
#include "postgres.h"

#include "next_leader.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#define ENTRIES 64

typedef struct NextLeader
{
	Oid			subid;			/* InvalidOid while the entry is free */
	XLogRecPtr	wait;			/* end of the transaction that is to wait */
	bool		unstreamed;
	uint32		server;			/* a hash: of which server "sent" is */
	XLogRecPtr	sent;
} NextLeader;

typedef struct NextLeaders
{
	LWLock	   *lock;			/* protects the rest */
	int			next;			/* the entry to be evicted */
	NextLeader	entries[ENTRIES];
} NextLeaders;

static NextLeaders *shared = NULL;

/* Requests shared memory and a lock; called once, in the postmaster. */
void
next_leader_request(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(NextLeaders)));
	RequestNamedLWLockTranche("weft_next_leader", 1);
}

/* Creates the shared memory, or finds it. */
void
next_leader_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("weft next leaders", sizeof(NextLeaders), &found);
	if (!found)
	{
		memset(shared, 0, sizeof(NextLeaders));
		shared->lock = &GetNamedLWLockTranche("weft_next_leader")->lock;
	}
	LWLockRelease(AddinShmemInitLock);
}

/* Returns the entry of a subscription, or NULL. */
static NextLeader *
find(Oid subid)
{
	for (int i = 0; i < ENTRIES; i++)
		if (shared->entries[i].subid == subid)
			return &shared->entries[i];
	return NULL;
}

/* Returns the entry of a subscription, which may have to be made. */
static NextLeader *
find_or_make(Oid subid)
{
	NextLeader *entry = find(subid);

	if (entry != NULL)
		return entry;
	entry = &shared->entries[shared->next];
	shared->next = (shared->next + 1) % ENTRIES;
	memset(entry, 0, sizeof(NextLeader));
	entry->subid = subid;
	return entry;
}

/* A subscription's transaction is to wait until tables are copied; the previous one is forgotten. */
void
next_leader_tell_wait(Oid subid, XLogRecPtr final_lsn)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	find_or_make(subid)->wait = final_lsn;
	LWLockRelease(shared->lock);
}

/* Returns where the transaction ends that is to wait, or InvalidXLogRecPtr. */
XLogRecPtr
next_leader_wait(Oid subid)
{
	NextLeader *entry;
	XLogRecPtr	result;

	LWLockAcquire(shared->lock, LW_SHARED);
	entry = find(subid);
	result = entry ? entry->wait : InvalidXLogRecPtr;
	LWLockRelease(shared->lock);
	return result;
}

/* A subscription's next leader is not to ask for transactions that are in progress. */
void
next_leader_tell_unstreamed(Oid subid)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	find_or_make(subid)->unstreamed = true;
	LWLockRelease(shared->lock);
}

/* Has the previous leader said so?  Forgets it. */
bool
next_leader_take_unstreamed(Oid subid)
{
	NextLeader *entry;
	bool		result;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	entry = find(subid);
	result = entry != NULL && entry->unstreamed;
	if (entry != NULL)
		entry->unstreamed = false;
	LWLockRelease(shared->lock);
	return result;
}

/* A publisher, on the server with this hash, has sent its WAL up to "sent" to the subscription. */
void
next_leader_tell_sent(Oid subid, uint32 server, XLogRecPtr sent)
{
	NextLeader *entry;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	entry = find_or_make(subid);
	entry->sent = entry->server == server ? Max(entry->sent, sent) : sent;
	entry->server = server;
	LWLockRelease(shared->lock);
}

/* Returns how far that server has sent its WAL; InvalidXLogRecPtr if that is not known. */
XLogRecPtr
next_leader_sent(Oid subid, uint32 server)
{
	NextLeader *entry;
	XLogRecPtr	result;

	LWLockAcquire(shared->lock, LW_SHARED);
	entry = find(subid);
	result = entry && entry->server == server ? entry->sent : InvalidXLogRecPtr;
	LWLockRelease(shared->lock);
	return result;
}
