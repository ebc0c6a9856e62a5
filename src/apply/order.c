/*
 * order.c
 *	  In what order a writer applies the changes that it has taken.
 *
 * A change must see what earlier changes did to its row.  Each comes with what
 * the leader knows of them (receive/dependency.c): a number, the newest earlier
 * transaction that touched such a row, and flags.  What is needed is there if
 *	 - the number is that of a committed transaction;
 *	 - it is one of our own group, all of which we have applied, and all that it
 *	   needed before (without RING_SEVERAL: nothing else is needed);
 *	 - with RING_ROW_AGAIN, if what our own transaction did has been applied;
 *	 - or all transactions before our group are committed, and all that is
 *	   before the change in our group has been applied.
 *
 * A change that must wait is put aside, and its writer goes on with others: all
 * that it has taken becomes visible at once, so the order among different rows
 * is nobody's concern.  What is put aside is applied, in its order, once all
 * transactions before the group are committed, at the latest right before our
 * own commit.  So two writers with a few rows in common, as the branches of
 * pgbench, wait for each other with little left to do.  Whoever decodes the
 * subscriber's WAL sees another order within a transaction; with
 * weft.commit_group_size = 1 nothing is put aside.
 *
 * An update of a row that has been changed a moment ago is put aside, too, even if
 * nothing keeps it: such a row may well be changed once more before the commit, and
 * then all but the last of its updates are needless (fast/coalesce.c).  What touches
 * the row between two of its updates is put aside as well, by the rule below, and
 * if that is no update that keeps the key, nothing before it is left out; an INSERT
 * only comes after something else has removed the row.  Whoever decodes the
 * subscriber's WAL may want to see every update, so while there is a logical slot in
 * the database, none is left out.
 *
 * The order of changes to one row is kept: a later one in the same group either
 * has the number of a transaction of which something is put aside, or the flag
 * RING_ROW_AGAIN, and is put aside itself.  Rows that no replica identity tells
 * apart are changed in their place only (RING_IN_PLACE).
 *
 * Nobody else may notice: only changes that are known to take the fast path are
 * put aside, or applied while others are, and only of tables where that is known to
 * make no difference (fast/key_order.c).  Changes of other tables on the fast path keep
 * their order among themselves.  For all other ones, everything that is aside is
 * applied first.  If a table gets a trigger meanwhile, that fails: the group is
 * rolled back, and applied in order.
 */
#include "postgres.h"

#include "compat.h"
#include "fast/fast.h"
#include "apply/order.h"
#include "apply/writer.h"
#include "miscadmin.h"
#include "replication/logicalproto.h"
#include "replication/slot.h"

/* With so many changes put aside, the writer waits for its turn. */
#define MAX_DEFERRED 4096

/* Rows of which the latest update is known; a power of two. */
#define NUM_LATEST 1024

/* The message stays in the ring: nothing of a group is released before its end. */
typedef struct DeferredChange
{
	char	   *message;		/* NULL: needless */
	int			length;
	uint32		row;			/* if it is an update that may coalesce */
} DeferredChange;

static DeferredChange deferred[MAX_DEFERRED];
static int	num_deferred = 0;

/* Of which transactions of the group is anything put aside? */
static bool deferred_of[WEFT_MAX_COMMIT_GROUP];

/* May updates be left out in this attempt? */
static bool coalescing = false;

/* By their rows: the latest updates that were put aside, counted from 1. */
static uint16 latest[NUM_LATEST];

/* What was put aside before this is not left out. */
static int	needed_before = 0;

StaticAssertDecl(MAX_DEFERRED <= PG_UINT16_MAX, "the number of a deferred change fits");

static void
forget_deferred(void)
{
	num_deferred = needed_before = 0;
	memset(deferred_of, false, sizeof(deferred_of));
	if (coalescing)
		memset(latest, 0, sizeof(latest));
}

/* Is there anybody who decodes what is done in our database? */
static bool
decoded_here(void)
{
	bool		result = false;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots && !result; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];

		result = slot->in_use && slot->data.database == MyDatabaseId;
	}
	LWLockRelease(ReplicationSlotControlLock);
	return result;
}

/* An attempt begins. */
void
order_begin(void)
{
	coalescing = writer.first < writer.last && weft_commit_group_size > 1 &&
		!decoded_here();
	forget_deferred();
}

/* Is anything put aside? */
bool
order_pending(void)
{
	return num_deferred > 0;
}

static bool
something_deferred_of(uint64 seq)
{
	Assert(seq >= writer.first && seq - writer.first < lengthof(deferred_of));
	return deferred_of[seq - writer.first];
}

static void
apply_deferred(void)
{
	/*
	 * What others have committed meanwhile makes old versions of rows
	 * prunable.
	 */
	fast_renew_snapshot();
	for (int i = 0; i < num_deferred; i++)
		if (deferred[i].message != NULL)
			change_apply(deferred[i].message, deferred[i].length);
	compat_injection_point("weft-deferred-applied");
	forget_deferred();
}

/*
 * Waits until all transactions before the group are committed, and applies what
 * was put aside.  Returns false if somebody needs our locks.
 */
bool
order_settle(void)
{
	if (!transaction_wait_oldest())
		return false;
	if (num_deferred > 0)
		apply_deferred();
	return true;
}

/* Is all there that the change must see? */
static bool
satisfied(const RingRecordHeader *header)
{
	uint64		committed = ring_committed(writer.ring);

	/* What is committed is looked at after this. */
	pg_read_barrier();
	if ((header->flags & RING_ROW_AGAIN) && something_deferred_of(writer.seq))
		return false;
	if (header->number < writer.first)
		return header->number <= committed;
	if (something_deferred_of(header->number))
		return false;
	return !(header->flags & RING_SEVERAL) ||
		(committed == writer.first - 1 && num_deferred == 0);
}

/* Leaves out what an update that is being put aside makes needless. */
static void
coalesce(const DeferredChange *update)
{
	uint16	   *entry = &latest[update->row & (NUM_LATEST - 1)];
	DeferredChange *earlier = &deferred[*entry - 1];

	if (*entry > needed_before && earlier->row == update->row &&
		fast_makes_needless(update->message, update->length,
							earlier->message, earlier->length))
	{
		fast_count_needless(earlier->message, earlier->length);
		pg_atomic_fetch_add_u64(&writer.shared->changes, 1);
		earlier->message = NULL;
	}
	*entry = update - deferred + 1;
}

/* Puts a change aside.  It must be one that may be. */
static void
defer(const RingRecordHeader *header, const char *payload)
{
	DeferredChange *change = &deferred[num_deferred];

	change->message = unconstify(char *, payload);
	change->length = header->length;
	if (coalescing && fast_may_coalesce(payload, header->length, &change->row))
		coalesce(change);
	else if (payload[0] != LOGICAL_REP_MSG_INSERT)
		needed_before = num_deferred + 1;
	num_deferred++;
	deferred_of[writer.seq - writer.first] = true;
}

/* Is the change an update whose row may well be changed again before the commit? */
static bool
worth_keeping(const RingRecordHeader *header, const char *payload)
{
	return coalescing && payload[0] == LOGICAL_REP_MSG_UPDATE &&
		((header->flags & RING_ROW_AGAIN) != 0 ||
		 (header->number != 0 && writer.seq - header->number < weft_commit_group_size));
}

/* May the change be put aside, or applied while others are, as far as it knows? */
static bool
may_change_order(const RingRecordHeader *header, bool whole)
{
	/* A transaction that is not complete may have to give its space up. */
	return whole && !(header->flags & RING_IN_PLACE) && !writer.careful &&
		weft_commit_group_size > 1 &&
		pg_atomic_read_u32(&writer.cursor.transaction->complete) != 0;
}

/*
 * Says what to do with a change, and waits if that is to apply it now and it
 * must not be put aside; "whole" tells that its message is in this one record.
 */
OrderResult
order_change(const RingRecordHeader *header, const char *payload, bool whole)
{
	bool		keep = worth_keeping(header, payload);
	FastOrder	order;
	uint32		row;

	if (num_deferred > 0 && !coalescing && transaction_is_oldest() && !order_settle())
		return ORDER_TOO_EARLY;
	if (num_deferred == 0 ? !keep && satisfied(header) : payload[0] == LOGICAL_REP_MSG_BEGIN)
		return ORDER_APPLY;

	order = may_change_order(header, whole) ? fast_order(payload, header->length) :
		FAST_ORDER_STRICT;
	if (order == FAST_ORDER_OF_ROW && num_deferred < MAX_DEFERRED)
	{
		if (satisfied(header) && !(keep && fast_may_coalesce(payload, header->length, &row)))
			return ORDER_APPLY;
		defer(header, payload);
		return ORDER_DEFERRED;
	}
	if ((num_deferred == 0 || order == FAST_ORDER_OF_TABLE) && satisfied(header))
		return ORDER_APPLY;
	if (num_deferred > 0 ? order_settle() : transaction_wait_dependency(header->number))
		return ORDER_APPLY;
	return ORDER_TOO_EARLY;
}
