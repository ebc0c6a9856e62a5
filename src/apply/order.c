/*
 * order.c
 *	  In what order a writer applies the changes that it has taken.
 *
 * A change must see what earlier changes did to its row.  Each comes with what the
 * leader knows of them (receive/dependency.c): a number, which is the newest earlier
 * transaction that has touched such a row, and flags.  A change is satisfied, which means
 * that everything it needs is there, if
 *	 - the number is that of a committed transaction;
 *	 - or the number is that of a transaction of the writer's own group, of which nothing
 *	   is deferred, and RING_SEVERAL is not set;
 *	 - or all transactions before the group are committed, and nothing is deferred.
 * With RING_ROW_AGAIN, nothing of the change's own transaction may be deferred, either.
 *
 * The writer defers a change that is not satisfied, and goes on with others.  Everything
 * that it has taken becomes visible at once, so nobody sees the order among different
 * rows.  It applies the deferred changes, in their order, once all transactions before
 * the group are committed; at the latest, right before its own commit.
 *
 * Example: writer W1 applies T1 to T10 as a group, writer W2 T11 to T20.  T3 and T12 update
 * the same branch of pgbench.  W2 defers that change of T12, applies everything else of T11
 * to T20, and waits for T10 to be committed.  Then only the deferred changes are left.
 *
 * Whoever decodes the subscriber's WAL sees another order within a transaction; with
 * weft.commit_group_size = 1 nothing is deferred.
 *
 * The writer also defers an update of a row that was changed a moment ago, even if the
 * update is satisfied.  Such a row is likely to be changed once more before the commit, and
 * then all but the last of its updates are coalesced (fast/coalesce.c).  By the rules above,
 * whatever touches the row between two of its updates is deferred as well; if that is not
 * an update that keeps the key, then no update before it is coalesced.  The exception is an
 * INSERT, which comes only after another change has removed the row.
 *
 * Whoever decodes the subscriber's WAL may want to see every update, so none is coalesced while
 * there is a logical slot in the database.  The exception is the slot of a member of this
 * node's group: members subscribe with origin = none, so they do not get what writers apply.
 * All other slots count, those of former members, of tables that are being copied from here and
 * of members not heard of yet among them.  A slot may be created while W1 applies a group.  W1
 * looks when the group begins, and again once the last update is applied instead of the others.
 * By then the local transaction has an ID.  A slot that is not there yet begins to decode with the
 * transactions that start after all that are running then have ended, so it does not see
 * W1's.  If the slot is there, the attempt is given up.  (A slot that is made by copying another
 * one sees what that one would have seen.)
 *
 * Changes of one row keep their order: a later one in the same group either has the number
 * of a transaction of which something is deferred, or the flag RING_ROW_AGAIN, and is
 * deferred itself.  Rows that no replica identity distinguishes are changed in their place
 * only (RING_IN_PLACE).
 *
 * Where conflicts are detected, an update is coalesced only with one that is not older: a
 * local row may be newer than the one and older than the other, and then it matters whether
 * the newer one is applied first.  A change of a table whose rows can be in conflict with other
 * rows, because of unique values or references, counts as one that is not known to take the
 * fast path.  What is found to be a conflict is decided for the transaction that the
 * change belongs to (member.c), in its turn.
 *
 * Nothing else may depend on the order.  Therefore a change is deferred, or applied while
 * others are deferred, only if it is known to take the fast path, and its table is one
 * for which the order makes no difference (fast/key_order.c).  Changes of any other table on
 * the fast path keep their order among themselves.  Before any other change, everything
 * that is deferred is applied.  If a table gets a trigger meanwhile, then the attempt
 * fails: the group is rolled back, and applied in order.
 *
 * Possible deadlocks:
 * 1. W2 waits for T10 and holds locks of what it has applied; W1 needs one of them for T5.
 *	  W2 yields (turn.c), and applies T11 to T20 again after T10.
 * 2. The leader waits for space in the ring for more of T12, while W2, which has
 *	  deferred changes of T12, waits for its end and cannot release the space.  Therefore
 *	  nothing of a transaction is deferred before the ring has all of it.
 *
 * order_decision.h has the decision; this file keeps what is deferred, waits and applies.
 */
#include "postgres.h"

#include "apply/attempt.h"
#include "apply/change.h"
#include "apply/member.h"
#include "apply/order.h"
#include "apply/order_decision.h"
#include "apply/turn.h"
#include "apply/writer.h"
#include "compat.h"
#include "conflict/settings.h"
#include "fast/coalesce.h"
#include "fast/fast.h"
#include "guc.h"
#include "miscadmin.h"
#include "misspeculate.h"
#include "replication/logicalproto.h"
#include "replication/slot.h"

/* The writer waits for its turn when it has deferred this many changes. */
#define MAX_DEFERRED 4096

/* Entries for rows of which the latest update is known; a power of two. */
#define NUM_LATEST 1024

typedef struct DeferredChange
{
	/*
	 * The message stays in the ring, since nothing of a group is released
	 * before its end.  NULL: coalesced with a later change.
	 */
	RowChange	change;
	uint64		seq;			/* of its transaction */
	uint32		row;			/* if it is an update that may be coalesced */
} DeferredChange;

StaticAssertDecl(MAX_DEFERRED <= PG_UINT16_MAX, "the number of a deferred change fits");

typedef struct Deferred
{
	uint64		first;			/* transaction of the group */
	bool		coalescing;		/* may this attempt coalesce updates? */
	int			num;
	int			needed_before;	/* changes before this one are not coalesced */
	bool		left_out;		/* an update was coalesced with a deferred one */
	bool		of[WEFT_MAX_COMMIT_GROUP];	/* is anything of this transaction
											 * of the group deferred? */
	uint16		latest[NUM_LATEST]; /* by row: its latest deferred update,
									 * counted from 1 */
	DeferredChange changes[MAX_DEFERRED];
} Deferred;

/*
 * What the current attempt has deferred.  A global like the writer: there is one attempt at
 * a time, and each change asks.
 */
static Deferred deferred;

static void
forget_deferred(void)
{
	deferred.num = deferred.needed_before = 0;
	deferred.left_out = false;
	memset(deferred.of, false, sizeof(deferred.of));
	if (deferred.coalescing)
		memset(deferred.latest, 0, sizeof(deferred.latest));
}

static bool
is_listed(List *names, const char *name)
{
	foreach_ptr(char, listed, names)
		if (strcmp(listed, name) == 0)
		return true;
	return false;
}

/* Is there a slot whose user may see what writers do in this database? */
static bool
is_decoded_here(void)
{
	List	   *members = writer.detect_conflicts ? settings_member_slots() : NIL;
	bool		result = false;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots && !result; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];

		result = slot->in_use && slot->data.database == MyDatabaseId &&
			!is_listed(members, NameStr(slot->data.name));
	}
	LWLockRelease(ReplicationSlotControlLock);
	return result;
}

/* An attempt to apply a group begins: from transaction "first" up to "last" at most. */
void
order_begin(uint64 first, uint64 last)
{
	deferred.first = first;
	deferred.coalescing = first < last && weft_commit_group_size > 1 &&
		!is_decoded_here();
	forget_deferred();
}

/* Is any change deferred? */
bool
order_pending(void)
{
	return deferred.num > 0;
}

static bool
is_deferred_of(uint64 seq)
{
	Assert(seq >= deferred.first && seq - deferred.first < lengthof(deferred.of));
	return deferred.of[seq - deferred.first];
}

static void
apply_deferred(void)
{
	/*
	 * With a new snapshot, row versions that others have replaced can be
	 * pruned.
	 */
	fast_renew_snapshot();
	for (int i = 0; i < deferred.num; i++)
	{
		if (deferred.changes[i].change.message == NULL)
			continue;
		member_resume(deferred.changes[i].seq);
		change_apply(&deferred.changes[i].change);
	}
	member_resume_newest();
	compat_injection_point("weft-deferred-applied");
	if (deferred.left_out && is_decoded_here())
		misspeculate("a replication slot has been created");
	forget_deferred();
}

/*
 * Waits until all transactions before the group are committed, and applies the deferred
 * changes.  Returns false if an earlier transaction needs this writer's locks.
 */
bool
order_settle(void)
{
	if (!turn_wait_oldest())
		return false;
	if (deferred.num > 0)
		apply_deferred();
	return true;
}

/* Has a transaction an earlier commit time than another one?  The ring has all of both. */
static bool
is_older(uint64 seq, uint64 than)
{
	return ring_transaction(writer.ring, seq)->commit_time <
		ring_transaction(writer.ring, than)->commit_time;
}

/* Coalesces the latest earlier update of its row with an update that is being deferred. */
static void
coalesce(const DeferredChange *update)
{
	uint16	   *entry = &deferred.latest[update->row & (NUM_LATEST - 1)];
	DeferredChange *earlier = &deferred.changes[*entry - 1];

	if (*entry > deferred.needed_before && earlier->row == update->row &&
		!(writer.detect_conflicts && is_older(update->seq, earlier->seq)) &&
		coalesce_updates(&update->change, &earlier->change))
	{
		pg_atomic_fetch_add_u64(&writer.shared->changes, 1);
		earlier->change.message = NULL;
		deferred.left_out = true;
	}
	*entry = update - deferred.changes + 1;
}

/* Defers a change; "row" is that of an update that may be coalesced. */
static void
defer(uint64 seq, const RowChange *change, bool may_coalesce, uint32 row)
{
	DeferredChange *entry = &deferred.changes[deferred.num];

	entry->change = *change;
	entry->seq = seq;
	entry->row = row;
	if (deferred.coalescing && may_coalesce)
		coalesce(entry);
	else if (change->type != LOGICAL_REP_MSG_INSERT)
		deferred.needed_before = deferred.num + 1;
	deferred.num++;
	deferred.of[seq - deferred.first] = true;
}

/* Collects what is known without asking the fast path. */
static void
collect_facts(const RingCursor *cursor, const RingRecordHeader *header,
			  const RowChange *change, OrderFacts *facts)
{
	facts->flags = header->flags;
	facts->number = header->number;
	facts->whole = change != NULL;
	facts->is_begin = change != NULL && change->type == LOGICAL_REP_MSG_BEGIN;
	facts->is_update = change != NULL && change->type == LOGICAL_REP_MSG_UPDATE;
	facts->first = deferred.first;
	facts->seq = cursor->seq;
	facts->committed = ring_committed(writer.ring);

	/* Whoever acts on the facts looks at what was committed after this. */
	pg_read_barrier();
	facts->complete = pg_atomic_read_u32(&cursor->transaction->complete) != 0;
	facts->careful = attempt_stage() >= ATTEMPT_GENERAL;
	facts->coalescing = deferred.coalescing;
	facts->max_group = weft_commit_group_size;
	facts->pending = deferred.num > 0;
	facts->full = deferred.num >= MAX_DEFERRED;
	facts->own_deferred = facts->pending && is_deferred_of(cursor->seq);
	facts->number_deferred = facts->pending && header->number >= deferred.first &&
		is_deferred_of(header->number);
	facts->asked = facts->may_coalesce = false;
}

/*
 * Returns what to do with a change, after waiting if it is to be applied now and must not be
 * deferred.  The cursor stands behind the change's record; "change" is NULL if its message is
 * not in this one record.
 */
OrderResult
order_change(const RingCursor *cursor, const RingRecordHeader *header,
			 const RowChange *change)
{
	OrderFacts	facts;
	OrderDecision decision;
	uint32		row = 0;

	collect_facts(cursor, header, change, &facts);
	decision = order_decide(&facts);
	if (decision == ORDER_ASK_FAST)
	{
		facts.asked = true;
		facts.order = fast_order(change);
		if (facts.coalescing && facts.order == FAST_ORDER_OF_ROW && order_may_defer(&facts))
			facts.may_coalesce = coalesce_is_possible(change, &row);
		decision = order_decide(&facts);
	}
	switch (decision)
	{
		case ORDER_NOW:
			return ORDER_APPLY;
		case ORDER_DEFER:
			defer(facts.seq, change, facts.may_coalesce, row);
			return ORDER_DEFERRED;
		case ORDER_SETTLE_FIRST:
			return order_settle() ? ORDER_APPLY : ORDER_TOO_EARLY;
		case ORDER_WAIT_FIRST:
			return turn_wait_dependency(header->number) ? ORDER_APPLY : ORDER_TOO_EARLY;
		case ORDER_ASK_FAST:
			break;
	}
	elog(ERROR, "the fast path has been asked already");
}
