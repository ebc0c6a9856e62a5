/*
 * order_unit.c
 *	  Unit tests of apply/order_decision.h: each branch, and what holds in all cases.
 *
 * In the examples, the group of the writer is T11 to T20, and T14 is at hand.
 */
#include "postgres.h"

#include "apply/order_decision.h"
#include "unit.h"

#define FIRST 11
#define SEQ 14

/* An update of a row that nobody else touches, with nothing deferred. */
static OrderFacts
example(void)
{
	OrderFacts	facts = {0};

	facts.is_update = true;
	facts.whole = true;
	facts.first = FIRST;
	facts.seq = SEQ;
	facts.committed = 5;
	facts.complete = true;
	facts.max_group = 100;
	return facts;
}

/* The same after the fast path has been asked. */
static OrderFacts
asked(FastOrder order)
{
	OrderFacts	facts = example();

	facts.asked = true;
	facts.order = order;
	return facts;
}

/* The same with something deferred. */
static OrderFacts
pending(FastOrder order)
{
	OrderFacts	facts = asked(order);

	facts.pending = true;
	return facts;
}

/* What a change needs, by what the leader has found out. */
static void
satisfied(void)
{
	OrderFacts	facts = example();

	CHECK(order_is_satisfied(&facts));

	/* A transaction before the group. */
	facts.number = 5;
	CHECK(order_is_satisfied(&facts));
	facts.number = 6;
	CHECK(!order_is_satisfied(&facts));
	facts.number = FIRST - 1;
	CHECK(!order_is_satisfied(&facts));
	facts.committed = FIRST - 1;
	CHECK(order_is_satisfied(&facts));

	/* One of the group, which has been applied unless it is deferred. */
	facts.committed = 5;
	facts.number = FIRST;
	CHECK(order_is_satisfied(&facts));
	facts.number_deferred = facts.pending = true;
	CHECK(!order_is_satisfied(&facts));
	facts.number_deferred = false;
	CHECK(order_is_satisfied(&facts));

	/* It stands for others, which need not have been applied. */
	facts.flags = RING_SEVERAL;
	CHECK(!order_is_satisfied(&facts));
	facts.pending = false;
	CHECK(!order_is_satisfied(&facts));
	facts.committed = FIRST - 1;
	CHECK(order_is_satisfied(&facts));
	facts.pending = true;
	CHECK(!order_is_satisfied(&facts));

	/* A transaction before the group stands for all others, too. */
	facts = example();
	facts.flags = RING_SEVERAL;
	facts.number = 5;
	CHECK(order_is_satisfied(&facts));

	/* Its own transaction has touched the row, and that may be deferred. */
	facts.flags = RING_ROW_AGAIN;
	CHECK(order_is_satisfied(&facts));
	facts.pending = true;
	CHECK(order_is_satisfied(&facts));
	facts.own_deferred = true;
	CHECK(!order_is_satisfied(&facts));
	facts.flags = 0;
	CHECK(order_is_satisfied(&facts));
}

/* Which updates are probably followed by another one of the row. */
static void
worth_deferring(void)
{
	OrderFacts	facts = example();

	facts.coalescing = true;
	CHECK(!order_is_worth_deferring(&facts));
	facts.flags = RING_ROW_AGAIN;
	CHECK(order_is_worth_deferring(&facts));
	facts.flags = 0;
	facts.number = 5;
	CHECK(order_is_worth_deferring(&facts));
	facts.seq = 104;
	CHECK(order_is_worth_deferring(&facts));
	facts.seq = 105;
	CHECK(!order_is_worth_deferring(&facts));
	facts.seq = SEQ;
	facts.coalescing = false;
	CHECK(!order_is_worth_deferring(&facts));
	facts.coalescing = true;
	facts.is_update = false;
	CHECK(!order_is_worth_deferring(&facts));
}

/* With nothing deferred. */
static void
nothing_pending(void)
{
	OrderFacts	facts = example();

	/* Satisfied: nobody has to be asked. */
	CHECK_EQUAL(order_decide(&facts), ORDER_NOW);

	/* The row's earlier change is not committed. */
	facts.number = 7;
	CHECK_EQUAL(order_decide(&facts), ORDER_ASK_FAST);
	facts.asked = true;
	facts.order = FAST_ORDER_OF_ROW;
	CHECK_EQUAL(order_decide(&facts), ORDER_DEFER);
	facts.full = true;
	CHECK_EQUAL(order_decide(&facts), ORDER_WAIT_FIRST);
	facts.full = false;
	facts.order = FAST_ORDER_OF_TABLE;
	CHECK_EQUAL(order_decide(&facts), ORDER_WAIT_FIRST);
	facts.order = FAST_ORDER_STRICT;
	CHECK_EQUAL(order_decide(&facts), ORDER_WAIT_FIRST);
}

/* With something deferred. */
static void
something_pending(void)
{
	OrderFacts	facts = pending(FAST_ORDER_OF_ROW);

	facts.asked = false;
	CHECK_EQUAL(order_decide(&facts), ORDER_ASK_FAST);

	/* Another row than what is deferred. */
	facts = pending(FAST_ORDER_OF_ROW);
	CHECK_EQUAL(order_decide(&facts), ORDER_NOW);
	facts = pending(FAST_ORDER_OF_TABLE);
	CHECK_EQUAL(order_decide(&facts), ORDER_NOW);
	facts = pending(FAST_ORDER_STRICT);
	CHECK_EQUAL(order_decide(&facts), ORDER_SETTLE_FIRST);

	/* A row that must wait. */
	facts = pending(FAST_ORDER_OF_ROW);
	facts.number = 7;
	CHECK_EQUAL(order_decide(&facts), ORDER_DEFER);
	facts.full = true;
	CHECK_EQUAL(order_decide(&facts), ORDER_SETTLE_FIRST);
	facts = pending(FAST_ORDER_OF_TABLE);
	facts.number = 7;
	CHECK_EQUAL(order_decide(&facts), ORDER_SETTLE_FIRST);

	/* A BEGIN has no row. */
	facts = pending(FAST_ORDER_STRICT);
	facts.is_begin = true;
	facts.is_update = false;
	facts.committed = 5;
	CHECK_EQUAL(order_decide(&facts), ORDER_NOW);
}

/* Changes that are applied in their place. */
static void
in_place(void)
{
	OrderFacts	facts;

	for (int i = 0; i < 5; i++)
	{
		facts = asked(FAST_ORDER_OF_ROW);
		facts.number = 7;
		CHECK_EQUAL(order_decide(&facts), ORDER_DEFER);
		facts.flags = i == 0 ? RING_IN_PLACE : 0;
		facts.careful = i == 1;
		facts.whole = i != 2;
		facts.complete = i != 3;
		facts.max_group = i == 4 ? 1 : 100;
		CHECK_EQUAL(order_decide(&facts), ORDER_WAIT_FIRST);
		facts.pending = true;
		CHECK_EQUAL(order_decide(&facts), ORDER_SETTLE_FIRST);
		facts.asked = false;
		CHECK_EQUAL(order_decide(&facts), ORDER_SETTLE_FIRST);
		facts.number = 0;
		CHECK_EQUAL(order_decide(&facts), ORDER_SETTLE_FIRST);
		facts.pending = false;
		CHECK_EQUAL(order_decide(&facts), ORDER_NOW);
	}
}

/* Updates that may be coalesced are deferred even if they need not wait. */
static void
coalescing(void)
{
	OrderFacts	facts = asked(FAST_ORDER_OF_ROW);

	facts.coalescing = true;
	facts.number = 5;
	facts.may_coalesce = true;
	CHECK_EQUAL(order_decide(&facts), ORDER_DEFER);
	facts.asked = false;
	CHECK_EQUAL(order_decide(&facts), ORDER_ASK_FAST);
	facts.asked = true;
	facts.may_coalesce = false;
	CHECK_EQUAL(order_decide(&facts), ORDER_NOW);
	facts.may_coalesce = true;
	facts.full = true;
	CHECK_EQUAL(order_decide(&facts), ORDER_NOW);
	facts.full = false;
	facts.order = FAST_ORDER_OF_TABLE;
	CHECK_EQUAL(order_decide(&facts), ORDER_NOW);
	facts.order = FAST_ORDER_STRICT;
	CHECK_EQUAL(order_decide(&facts), ORDER_NOW);

	/*
	 * Until the commit, since more updates may come in the writer's turn,
	 * too.
	 */
	facts = pending(FAST_ORDER_OF_ROW);
	facts.coalescing = true;
	facts.committed = FIRST - 1;
	facts.number = 5;
	facts.may_coalesce = true;
	CHECK_EQUAL(order_decide(&facts), ORDER_DEFER);
	facts.coalescing = false;
	CHECK_EQUAL(order_decide(&facts), ORDER_SETTLE_FIRST);
}

/* All combinations: what must hold whatever the facts are. */
static void
all_cases(void)
{
	static const uint64 numbers[] = {0, 5, 6, 10, 11, 14};
	static const uint16 flag_values[] = {0, RING_ROW_AGAIN, RING_SEVERAL, RING_IN_PLACE,
		RING_ROW_AGAIN | RING_SEVERAL, RING_SEVERAL | RING_IN_PLACE,
	RING_ROW_AGAIN | RING_SEVERAL | RING_IN_PLACE};
	static const FastOrder orders[] = {FAST_ORDER_OF_ROW, FAST_ORDER_OF_TABLE, FAST_ORDER_STRICT};

	for (int bits = 0; bits < (1 << 12); bits++)
		for (int n = 0; n < lengthof(numbers); n++)
			for (int f = 0; f < lengthof(flag_values); f++)
				for (int o = 0; o < lengthof(orders); o++)
				{
					OrderFacts	facts = example();
					OrderDecision decision;
					bool		first_of_deferred;

					facts.number = numbers[n];
					facts.flags = flag_values[f];
					facts.order = orders[o];
					facts.is_begin = bits & 1;
					facts.is_update = !facts.is_begin && (bits & 2);
					facts.whole = bits & 4;
					facts.committed = bits & 8 ? FIRST - 1 : 5;
					facts.complete = bits & 16;
					facts.careful = bits & 32;
					facts.coalescing = bits & 64;
					facts.max_group = bits & 128 ? 100 : 1;
					facts.pending = bits & 256;
					facts.full = bits & 512 && facts.pending;
					facts.own_deferred = bits & 1024 && facts.pending;
					facts.number_deferred = bits & 2048 && facts.pending && facts.number >= FIRST;
					facts.asked = true;
					facts.may_coalesce = (bits + n) & 1;
					if (facts.is_begin)
					{
						facts.number = facts.flags = 0;
						facts.whole = true;
					}
					decision = order_decide(&facts);
					first_of_deferred = facts.pending && facts.committed == FIRST - 1 &&
						!facts.coalescing;

					switch (decision)
					{
						case ORDER_NOW:
							CHECK(order_is_satisfied(&facts));
							CHECK(!facts.pending || facts.is_begin ||
								  (order_may_change(&facts) && facts.order != FAST_ORDER_STRICT));
							CHECK(!first_of_deferred);
							break;
						case ORDER_DEFER:
							CHECK(order_may_change(&facts) && !facts.full &&
								  facts.order == FAST_ORDER_OF_ROW);
							CHECK(!order_is_satisfied(&facts) ||
								  (facts.may_coalesce && facts.coalescing && facts.is_update));
							CHECK(!facts.is_begin || !facts.pending);
							CHECK(!first_of_deferred);
							break;
						case ORDER_SETTLE_FIRST:
							CHECK(facts.pending);
							break;
						case ORDER_WAIT_FIRST:
							CHECK(!facts.pending && !order_is_satisfied(&facts));
							break;
						case ORDER_ASK_FAST:
							CHECK(false);
					}

					/* The fast path is asked only if its answer matters. */
					facts.asked = false;
					if (order_decide(&facts) != ORDER_ASK_FAST)
						CHECK_EQUAL(order_decide(&facts), decision);
					else
						CHECK(order_may_change(&facts));
				}
}

static const UnitTest tests[] = {
	{"satisfied", satisfied},
	{"worth_deferring", worth_deferring},
	{"nothing_pending", nothing_pending},
	{"something_pending", something_pending},
	{"in_place", in_place},
	{"coalescing", coalescing},
	{"all_cases", all_cases},
	{NULL, NULL}
};

const Unit	order_unit = {"order", tests};
