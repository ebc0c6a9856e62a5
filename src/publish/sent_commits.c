/*
 * sent_commits.c
 *	  The transactions that were sent last through each slot.
 *
 * A slot's confirmed position is seldom the end of a transaction that was sent: while nothing is
 * published, the subscriber confirms keepalives.  When a subscriber comes back that has less than it
 * had confirmed, because it is a standby that was promoted, somebody has to know whether there was a
 * transaction in between.  The walsender notes here where each transaction ends that it sends.
 *
 * A slot's entry has a few of them, and the last one that is known to be confirmed.  If more are in
 * flight than there is room for, the walsender keeps the oldest of them and the newest, and
 * remembers between which positions there are others.  Of a position there, nobody knows which
 * transaction it follows.  Then it counts as the end of one: it is better to report what is not lost
 * than to be silent about what is.
 *
 * Only the walsender that has acquired the slot writes its entry.  Any process may read it, under the
 * mutex.  The contents are lost when the server restarts; then nothing is known (zero).
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "publish/sent_commits.h"
#include "replication/slot.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/pg_lsn.h"

/* Enough for what a subscriber confirms in one message, as a rule. */
#define RECENT 64

typedef struct SentCommits
{
	slock_t		mutex;
	NameData	slot;			/* whose entry this is; slots come and go */
	XLogRecPtr	confirmed;		/* the last one that was confirmed, or zero */
	int			count;
	XLogRecPtr	recent[RECENT]; /* later ones, in order */
	XLogRecPtr	gap_start;		/* others end after this and before gap_end */
	XLogRecPtr	gap_end;		/* zero: there is no gap */
} SentCommits;

static SentCommits *entries = NULL;

PG_FUNCTION_INFO_V1(weft_sent_commit);

static Size
sent_commits_size(void)
{
	return mul_size(Max(max_replication_slots, 1), sizeof(SentCommits));
}

/* Requests shared memory; called once, in the postmaster. */
void
sent_commits_request(void)
{
	RequestAddinShmemSpace(sent_commits_size());
}

/* Creates the shared memory, or finds it. */
void
sent_commits_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	entries = ShmemInitStruct("weft sent commits", sent_commits_size(), &found);
	if (!found)
	{
		memset(entries, 0, sent_commits_size());
		for (int i = 0; i < max_replication_slots; i++)
			SpinLockInit(&entries[i].mutex);
	}
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Returns the last transaction that ends at or before a position, or zero; the position itself if a
 * transaction that is not remembered may end there.
 */
static XLogRecPtr
last_until(const SentCommits *entry, XLogRecPtr position)
{
	XLogRecPtr	result = entry->confirmed;

	if (position > entry->gap_start && position < entry->gap_end)
		return position;
	for (int i = 0; i < entry->count && entry->recent[i] <= position; i++)
		result = entry->recent[i];
	return result;
}

/* Forgets what is no longer needed, now that a position is confirmed. */
static void
shorten(SentCommits *entry, XLogRecPtr position)
{
	int			done = 0;

	entry->confirmed = last_until(entry, position);
	while (done < entry->count && entry->recent[done] <= position)
		done++;
	entry->count -= done;
	if (entry->gap_end <= position)
		entry->gap_start = entry->gap_end = InvalidXLogRecPtr;
	memmove(entry->recent, entry->recent + done, entry->count * sizeof(XLogRecPtr));
}

/* Makes room for one that ends at a position, by forgetting the newest one. */
static void
leave_out_newest(SentCommits *entry, XLogRecPtr end)
{
	entry->count--;
	if (entry->gap_end == InvalidXLogRecPtr)
		entry->gap_start = entry->recent[entry->count - 1];
	entry->gap_end = end;
}

/* The walsender sends a transaction that ends at this position, through the slot that it has acquired. */
void
sent_commits_note(XLogRecPtr end)
{
	SentCommits *entry = &entries[ReplicationSlotIndex(MyReplicationSlot)];
	XLogRecPtr	confirmed;

	SpinLockAcquire(&MyReplicationSlot->mutex);
	confirmed = MyReplicationSlot->data.confirmed_flush;
	SpinLockRelease(&MyReplicationSlot->mutex);

	SpinLockAcquire(&entry->mutex);
	if (strcmp(NameStr(entry->slot), NameStr(MyReplicationSlot->data.name)) != 0)
	{
		entry->slot = MyReplicationSlot->data.name;
		entry->confirmed = InvalidXLogRecPtr;
		entry->count = 0;
		entry->gap_start = entry->gap_end = InvalidXLogRecPtr;
	}
	/* After a reconnection, transactions are sent again. */
	while (entry->count > 0 && entry->recent[entry->count - 1] >= end)
		entry->count--;
	if (entry->count == RECENT)
		shorten(entry, confirmed);
	if (entry->count == RECENT)
		leave_out_newest(entry, end);
	entry->recent[entry->count++] = end;
	SpinLockRelease(&entry->mutex);
}

/*
 * weft.sent_commit(slot name, until pg_lsn) returns pg_lsn
 *
 * Null if nothing was sent, as far as this server remembers.
 */
Datum
weft_sent_commit(PG_FUNCTION_ARGS)
{
	char	   *name = NameStr(*PG_GETARG_NAME(0));
	XLogRecPtr	until = PG_GETARG_LSN(1);
	XLogRecPtr	result = InvalidXLogRecPtr;

	shmem_require();

	/*
	 * A slot that was dropped may have left an entry of this name behind,
	 * with earlier positions.
	 */
	for (int i = 0; i < max_replication_slots; i++)
	{
		SpinLockAcquire(&entries[i].mutex);
		if (strcmp(NameStr(entries[i].slot), name) == 0)
			result = Max(result, last_until(&entries[i], until));
		SpinLockRelease(&entries[i].mutex);
	}
	if (result == InvalidXLogRecPtr)
		PG_RETURN_NULL();
	PG_RETURN_LSN(result);
}
