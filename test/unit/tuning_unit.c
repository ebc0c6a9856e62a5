/*
 * tuning_unit.c
 *	  Unit tests of receive/tuning.c: settings, flows and measurements.
 */
#include "postgres.h"

#include <math.h>

#include "guc.h"
#include "tuning_sim.h"
#include "unit.h"
#include "utils/timestamp.h"

static void
settings(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	CHECK_EQUAL(sim.tuning.num_settings, NUM_SETTINGS);
	for (int i = 0; i < 4; i++)
	{
		CHECK_EQUAL(sim.tuning.settings[i].writers, 1 << i);
		CHECK_EQUAL(sim.tuning.settings[i].group, GROUP);
	}
	CHECK_EQUAL(sim.tuning.settings[4].writers, WRITERS);
	CHECK_EQUAL(sim.tuning.settings[4].group, 1);
	CHECK_EQUAL(sim.tuning.best, 2);
	CHECK_EQUAL(sim.tuning.all_grouped, 3);
	CHECK_EQUAL(sim_active(), WRITERS);
	CHECK_EQUAL(sim_group_limit(), GROUP);
	CHECK_EQUAL(sim_run_limit(), GROUP /4);

	/* More processors than writers; a number that is no power of two. */
	sim_begin(6, 16, GROUP);
	CHECK_EQUAL(sim.tuning.num_settings, 5);
	CHECK_EQUAL(sim.tuning.settings[3].writers, 6);
	CHECK_EQUAL(sim.tuning.best, 3);

	/* Without groups there is nothing to try without. */
	sim_begin(4, 1, 1);
	CHECK_EQUAL(sim.tuning.num_settings, 3);
	CHECK_EQUAL(sim.tuning.best, 0);
	CHECK_EQUAL(sim_run_limit(), 1);

	/*
	 * Half as many as there are processors, if each transaction has its own
	 * commit.
	 */
	sim_begin(WRITERS, PROCESSORS, 1);
	CHECK_EQUAL(sim.tuning.num_settings, 4);
	CHECK_EQUAL(sim.tuning.best, 1);
	sim_begin(2, PROCESSORS, 1);
	CHECK_EQUAL(sim.tuning.best, 1);

	/* Or if the publisher sends no batches, whatever is reset. */
	sim_begin_stock(WRITERS, PROCESSORS, GROUP);
	CHECK_EQUAL(sim.tuning.num_settings, NUM_SETTINGS);
	CHECK_EQUAL(sim.tuning.best, 1);
	weft_commit_group_size = GROUP /2;

	tuning_step(&sim.tuning, sim.now, false);
	CHECK_EQUAL(sim.tuning.settings[0].group, GROUP /2);
	CHECK_EQUAL(sim.tuning.best, 1);
	sim_begin_stock(WRITERS, 1, GROUP);
	CHECK_EQUAL(sim.tuning.best, 0);

	/* One writer takes whole groups. */
	sim_begin(1, 4, GROUP);
	CHECK_EQUAL(sim.tuning.num_settings, 2);
	CHECK_EQUAL(sim_run_limit(), GROUP);

	/* As many as there can be. */
	sim_begin(WEFT_MAX_WRITERS, 64, GROUP);
	CHECK_EQUAL(sim.tuning.num_settings, TUNING_MAX_SETTINGS);
	CHECK_EQUAL(sim.tuning.best, 6);
}

/* A flow is transactions without a gap, for some time. */
static void
flow_begins(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_step_after(0);
	CHECK_EQUAL(sim.tuning.phase, TUNING_NO_FLOW);
	sim_step_after(49999);
	CHECK_EQUAL(sim.tuning.phase, TUNING_NO_FLOW);
	CHECK_EQUAL(sim_active(), WRITERS);
	sim_step_after(1);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	CHECK_EQUAL(sim_active(), PROCESSORS);

	/* It begins at once if many wait. */
	sim_begin(WRITERS, PROCESSORS, GROUP);
	pg_atomic_write_u64(&sim.ring->published.value, 1023);
	sim_step_after(0);
	CHECK_EQUAL(sim.tuning.phase, TUNING_NO_FLOW);
	CHECK_EQUAL(sim_active(), WRITERS);
	pg_atomic_write_u64(&sim.ring->published.value, 1024);
	sim_step_after(0);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	CHECK_EQUAL(sim_active(), PROCESSORS);
	pg_atomic_write_u64(&sim.ring->published.value, 0);

	/* It ends with a gap. */
	sim_step_after(100000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	sim_step_after(100001);
	CHECK_EQUAL(sim.tuning.phase, TUNING_NO_FLOW);
	CHECK_EQUAL(sim_active(), WRITERS);

	/* A full ring is no gap. */
	sim_begin_flow();
	sim.now += 10 * USECS_PER_SEC;
	tuning_step(&sim.tuning, sim.now, true);
	CHECK(sim.tuning.phase != TUNING_NO_FLOW);
	CHECK_EQUAL(sim_active(), PROCESSORS);

	/* Transactions that come rarely are no flow, however long they come. */
	sim_begin(WRITERS, PROCESSORS, GROUP);
	for (int i = 0; i < 100; i++)
	{
		sim_step_after(100001);
		CHECK_EQUAL(sim.tuning.phase, TUNING_NO_FLOW);
		CHECK_EQUAL(sim_active(), WRITERS);
	}
}

/* A setting settles until what was taken before it is committed, and for some time. */
static void
settling(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	pg_atomic_write_u64(&sim.ring->taken.value, 1000);
	sim_begin_flow();
	CHECK_EQUAL(sim.tuning.taken_then, 1000 + sim.producer.seq);
	sim_step_after(0);
	sim_step_after(14999);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	sim_step_after(90000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	sim_process(1000);
	sim_step_after(1);
	CHECK_EQUAL(sim.tuning.phase, TUNING_MEASURING);
	CHECK_EQUAL(sim.tuning.committed_then, sim.producer.seq);

	/* The same with all committed from the beginning. */
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	sim_step_after(0);
	sim_step_after(14999);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	sim_step_after(1);
	CHECK_EQUAL(sim.tuning.phase, TUNING_MEASURING);
}

/* A measurement takes its time, and some transactions of each writer. */
static void
measuring(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	sim_step_after(0);
	sim_step_after(15000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_MEASURING);

	/* Two runs of 25 for each of 4 writers. */
	sim_process(199);
	sim_step_after(80000);
	CHECK_EQUAL(sim.tuning.held, 0);
	sim_process(1);
	sim_step_after(20000);
	CHECK_EQUAL(sim.tuning.held, 1);
	CHECK(sim.tuning.settings[2].rate == 2000);

	/*
	 * The time that the next one begins with is not that of the end of the
	 * last one.
	 */
	sim_step_after(5000);
	sim_process(1000);
	sim_step_after(39999);
	CHECK_EQUAL(sim.tuning.held, 1);
	sim_step_after(1);
	CHECK_EQUAL(sim.tuning.held, 2);

	/* Half of the new rate, 25000, counts. */
	CHECK(fabs(sim.tuning.settings[2].rate - 13500) < 0.001);
}

/* A candidate is given up once it is clear that it is much slower. */
static void
hopeless(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	(void) sim_hold_until_trial(1000);
	CHECK_EQUAL(sim_setting_in_use(), 3);
	sim_step_after(0);
	sim_step_after(15000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_MEASURING);

	/* At 20000/s, it should commit 700 in 50 ms; 200 can be in its writers. */
	sim_step_after(9999);
	CHECK_EQUAL(sim_setting_in_use(), 3);
	sim_process(80);
	sim_step_after(10001);
	CHECK_EQUAL(sim_setting_in_use(), 3);
	sim_step_after(1);
	CHECK_EQUAL(sim_setting_in_use(), 1);
}

/* A measurement that an interruption has cut off is void. */
static void
interrupted(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	(void) sim_hold_until_trial(1000);
	CHECK_EQUAL(sim_setting_in_use(), 3);
	sim_process(5000);
	pg_atomic_write_u64(&sim.ring->committed.value, sim.producer.seq - 1);
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, false);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	CHECK_EQUAL(sim.tuning.since, 0);
	CHECK_EQUAL(sim_setting_in_use(), 2);
	CHECK_EQUAL(sim.tuning.best, 2);
	CHECK_EQUAL(sim.tuning.candidate, -1);

	/* Outside of a flow there is nothing to interrupt. */
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_step_after(0);
	sim_process(5000);
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, true);
	CHECK_EQUAL(sim.tuning.phase, TUNING_NO_FLOW);
	CHECK_EQUAL(sim_active(), WRITERS);
}

/* All has been received, and much of it not been taken: measuring goes on. */
static void
far_behind(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	sim_step_after(0);

	/* Two runs of 25 for each of 8 writers are not much. */
	pg_atomic_fetch_add_u64(&sim.ring->published.value, 400);
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq + 400, false);
	CHECK_EQUAL(sim.tuning.since, 0);
	CHECK_EQUAL(sim_active(), PROCESSORS);

	sim_step_after(0);
	pg_atomic_fetch_add_u64(&sim.ring->published.value, 1);
	sim.now += 15000;
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq + 401, false);
	CHECK_EQUAL(sim.tuning.phase, TUNING_MEASURING);
	CHECK_EQUAL(sim_active(), PROCESSORS);
	sim_process(1000);
	sim.now += 40000;
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq + 401, false);
	CHECK_EQUAL(sim.tuning.held, 1);
}

/* One writer, if everything is committed before more comes. */
static void
keeping_pace(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();

	/* Much has come since the last pause. */
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, true);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	sim_process(16);
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, true);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	sim_process(15);
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, true);
	CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	CHECK_EQUAL(sim_active(), 1);
	CHECK_EQUAL(sim_run_limit(), 16);
	CHECK_EQUAL(sim_group_limit(), GROUP);

	/* It goes on while there are such pauses. */
	for (int i = 0; i < 10; i++)
	{
		sim_process(STEP_TRANSACTIONS);
		sim_step_after(1000);
		tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, true);
		CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	}

	/* It is still a short pause if not all is committed, but little is left. */
	pg_atomic_write_u64(&sim.ring->committed.value, sim.producer.seq - 15);
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, false);
	CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	pg_atomic_write_u64(&sim.ring->committed.value, sim.producer.seq - 16);
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, false);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	CHECK_EQUAL(sim_active(), PROCESSORS);
}

/* One writer is not enough once there are no pauses any more. */
static void
losing_pace(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, true);
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, true);
	CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	sim_step_after(1000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, true);
	sim_step_after(1000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	sim_step_after(1000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	CHECK_EQUAL(sim_active(), PROCESSORS);

	/* A gap ends this, too. */
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, true);
	CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	sim_step_after(100001);
	CHECK_EQUAL(sim.tuning.phase, TUNING_NO_FLOW);
	CHECK_EQUAL(sim_active(), WRITERS);
}

/* Parameters take effect at the next step. */
static void
parameters(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	(void) sim_hold_until_trial(1000);
	weft_commit_group_size = 40;
	sim_step_after(1000);
	CHECK_EQUAL(sim.tuning.settings[0].group, 40);
	CHECK(sim.tuning.settings[2].rate == 0);
	CHECK_EQUAL(sim.tuning.hold, 4);

	weft_tune_writers = false;
	for (int i = 0; i < 100; i++)
	{
		sim_step_after(1000);
		CHECK_EQUAL(sim_active(), WRITERS);
		CHECK_EQUAL(sim_group_limit(), 40);
	}
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, true);
	tuning_interrupt(&sim.tuning, sim.now, sim.producer.seq, true);
	CHECK_EQUAL(sim_active(), WRITERS);

	weft_tune_writers = true;
	sim_step_after(1000);
	sim_begin_flow();
	CHECK_EQUAL(sim_active(), PROCESSORS);
}

static const UnitTest tests[] = {
	{"settings", settings},
	{"flow_begins", flow_begins},
	{"settling", settling},
	{"measuring", measuring},
	{"hopeless", hopeless},
	{"interrupted", interrupted},
	{"far_behind", far_behind},
	{"keeping_pace", keeping_pace},
	{"losing_pace", losing_pace},
	{"parameters", parameters},
	{NULL, NULL}
};

const Unit	tuning_unit = {"tuning", tests};
