/*
 * order_decision.h
 *	  When a writer applies a change: the decision alone.
 *
 * order.c collects the facts, and waits and applies as decided; its head has the rules.
 * Nothing here looks at anything but the facts, so that a test can go through all cases.
 * The functions are inline since each change asks them.
 */
#ifndef WEFT_ORDER_DECISION_H
#define WEFT_ORDER_DECISION_H

#include "fast/fast.h"
#include "ring/layout.h"

typedef enum OrderDecision
{
	ORDER_ASK_FAST,				/* fill in what the fast path says, and decide
								 * again */
	ORDER_NOW,					/* apply the change */
	ORDER_DEFER,				/* keep it, and apply it later */
	ORDER_SETTLE_FIRST,			/* wait for the transactions before the group,
								 * apply what is deferred, then the change */
	ORDER_WAIT_FIRST,			/* wait for what the change depends on, then
								 * apply it */
} OrderDecision;

typedef struct OrderFacts
{
	/* What the leader says of the change; see RingRecordHeader. */
	uint16		flags;
	uint64		number;

	/* The change. */
	bool		is_begin;
	bool		is_update;
	bool		whole;			/* it is in this one record */

	/* The attempt. */
	uint64		first;			/* first transaction of the group */
	uint64		seq;			/* the transaction at hand */
	uint64		committed;		/* all up to this one are */
	bool		complete;		/* the transaction at hand is in the ring to
								 * its end */
	bool		careful;		/* everything is to take the general path */
	bool		coalescing;		/* updates may be coalesced */
	int			max_group;		/* how many transactions may share a commit */

	/* What is deferred. */
	bool		pending;		/* anything */
	bool		full;			/* as much as there may be */
	bool		own_deferred;	/* anything of the transaction at hand */
	bool		number_deferred;	/* anything of "number", if that is of the
									 * group */

	/* What the fast path says. */
	bool		asked;			/* the following are filled in */
	FastOrder	order;
	bool		may_coalesce;	/* valid if order_may_defer() */
} OrderFacts;

/* Is everything applied, and committed if not the group's own, that the change must see? */
static inline bool
order_is_satisfied(const OrderFacts *facts)
{
	if ((facts->flags & RING_ROW_AGAIN) && facts->own_deferred)
		return false;
	if (facts->number < facts->first)
		return facts->number <= facts->committed;
	if (facts->number_deferred)
		return false;
	return !(facts->flags & RING_SEVERAL) ||
		(facts->committed == facts->first - 1 && !facts->pending);
}

/* Is the change an update whose row will probably be updated again before the commit? */
static inline bool
order_is_worth_deferring(const OrderFacts *facts)
{
	return facts->coalescing && facts->is_update &&
		((facts->flags & RING_ROW_AGAIN) != 0 ||
		 (facts->number != 0 && facts->seq - facts->number < facts->max_group));
}

/* Does it matter whether the change can be coalesced? */
static inline bool
order_may_defer(const OrderFacts *facts)
{
	return !order_is_satisfied(facts) || order_is_worth_deferring(facts);
}

/* May the change be deferred, or applied while others are, as far as it knows? */
static inline bool
order_may_change(const OrderFacts *facts)
{
	/* A transaction that is not complete may have to release its space. */
	return facts->whole && !(facts->flags & RING_IN_PLACE) && !facts->careful &&
		facts->max_group > 1 && facts->complete;
}

static inline OrderDecision
order_decide(const OrderFacts *facts)
{
	bool		satisfied = order_is_satisfied(facts);
	bool		worth_deferring = order_is_worth_deferring(facts);

	/* Without coalescing, deferring ends when the group's turn has come. */
	if (facts->pending && !facts->coalescing && facts->committed == facts->first - 1)
		return ORDER_SETTLE_FIRST;
	if (facts->pending ? facts->is_begin : satisfied && !worth_deferring)
		return ORDER_NOW;
	if (order_may_change(facts))
	{
		if (!facts->asked)
			return ORDER_ASK_FAST;
		if (facts->order == FAST_ORDER_OF_ROW && !facts->full)
			return satisfied && !(worth_deferring && facts->may_coalesce) ?
				ORDER_NOW : ORDER_DEFER;
		if (facts->order == FAST_ORDER_OF_TABLE && satisfied)
			return ORDER_NOW;
	}
	if (facts->pending)
		return ORDER_SETTLE_FIRST;
	return satisfied ? ORDER_NOW : ORDER_WAIT_FIRST;
}

#endif							/* WEFT_ORDER_DECISION_H */
