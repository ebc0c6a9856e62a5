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
 * The order of changes to one row is kept: a later one in the same group either
 * has the number of a transaction of which something is put aside, or the flag
 * RING_ROW_AGAIN, and is put aside itself.  Rows that no replica identity tells
 * apart are changed in their place only (RING_IN_PLACE).
 *
 * Nobody else may notice: only changes that are known to take the fast path are
 * put aside, or applied while others are.  For all other ones, everything that is
 * aside is applied first.  If a table gets a trigger meanwhile, or a row takes
 * over a value of a further unique index from one that is put aside, that fails:
 * the group is rolled back, and applied in order.
 */
#include "postgres.h"

#include "apply/fast.h"
#include "apply/order.h"
#include "apply/writer.h"
#include "replication/logicalproto.h"

/* With so many changes put aside, the writer waits for its turn. */
#define MAX_DEFERRED 1024

/* The message stays in the ring: nothing of a group is released before its end. */
typedef struct DeferredChange
{
	uint64		seq;			/* its transaction */
	char	   *message;
	int			length;
} DeferredChange;

static DeferredChange deferred[MAX_DEFERRED];
static int	num_deferred = 0;

/* An attempt begins. */
void
order_begin(void)
{
	num_deferred = 0;
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
	for (int i = num_deferred - 1; i >= 0 && deferred[i].seq >= seq; i--)
		if (deferred[i].seq == seq)
			return true;
	return false;
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
		change_apply(deferred[i].message, deferred[i].length);
	num_deferred = 0;
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

/* Puts a change aside.  It must be one that may be. */
static void
defer(const RingRecordHeader *header, const char *payload)
{
	deferred[num_deferred].seq = writer.seq;
	deferred[num_deferred].message = unconstify(char *, payload);
	deferred[num_deferred].length = header->length;
	num_deferred++;
}

/*
 * Says what to do with a change, and waits if that is to apply it now and it
 * must not be put aside; "whole" tells that its message is in this one record.
 */
OrderResult
order_change(const RingRecordHeader *header, const char *payload, bool whole)
{
	bool		deferrable = false;

	if (num_deferred > 0 && transaction_is_oldest() && !order_settle())
		return ORDER_TOO_EARLY;
	if (num_deferred == 0 ? satisfied(header) : payload[0] == LOGICAL_REP_MSG_BEGIN)
		return ORDER_APPLY;

	/* A transaction that is not complete may have to give its space up. */
	if (whole && !(header->flags & RING_IN_PLACE) && !writer.careful &&
		num_deferred < MAX_DEFERRED && weft_commit_group_size > 1 &&
		pg_atomic_read_u32(&writer.cursor.transaction->complete) != 0)
		deferrable = fast_deferrable(payload, header->length);

	if (!deferrable)
	{
		if (num_deferred > 0 ? order_settle() : transaction_wait_dependency(header->number))
			return ORDER_APPLY;
		return ORDER_TOO_EARLY;
	}
	if (satisfied(header))
		return ORDER_APPLY;
	defer(header, payload);
	return ORDER_DEFERRED;
}
