/*
 * tuning_unit.c
 *	  Unit tests of receive/tuning.c, with a ring without writers and a clock of their own.
 *
 * A Machine says how many transactions per second the writers commit in a setting.
 * The simulation lets time pass, moves the ring's counters as leader and writers would,
 * and calls tuning_step() as often as the leader does.
 */
#include "postgres.h"

#include <math.h>

#include "receive/tuning.h"
#include "unit.h"
#include "utils/timestamp.h"

/* The leader calls tuning_step() each time that so many transactions have come. */
#define STEP_TRANSACTIONS 32

#define WRITERS 8
#define PROCESSORS 4
#define GROUP 100

/* The settings of WRITERS writers: 1, 2, 4, 8 with groups, 8 without. */
#define NUM_SETTINGS 5

typedef struct Machine
{
	double		rates[NUM_SETTINGS];	/* transactions per second */
	double		noise;			/* up to this share more or less */
} Machine;

typedef struct Simulation
{
	Tuning		tuning;
	Ring	   *ring;
	RingProducer producer;
	TimestampTz now;
	double		spent[NUM_SETTINGS];	/* seconds with each setting in use */
} Simulation;

static Simulation sim;

static void
begin(int writers, int processors, int group)
{
	memset(&sim, 0, sizeof(sim));
	weft_commit_group_size = group;
	weft_tune_writers = true;
	sim.ring = unit_ring(&sim.producer, 1024, writers);
	sim.now = USECS_PER_DAY;
	tuning_reset(&sim.tuning, sim.ring, writers, processors);
}

static int
active(void)
{
	return pg_atomic_read_u32(&sim.ring->active_writers);
}

static int
group_limit(void)
{
	return pg_atomic_read_u32(&sim.ring->group_limit);
}

static int
run_limit(void)
{
	return pg_atomic_read_u32(&sim.ring->run_limit);
}

/* The setting that the ring's limits are those of; -1 for one writer that keeps pace. */
static int
setting_in_use(void)
{
	if (active() == WRITERS)
		return group_limit() == 1 ? 4 : 3;
	if (run_limit() == 16)
		return -1;
	return active() == 1 ? 0 : active() == 2 ? 1 : 2;
}

/* So many transactions have come, and have been taken and committed. */
static void
process(uint64 count)
{
	pg_atomic_fetch_add_u64(&sim.ring->published.value, count);
	pg_atomic_fetch_add_u64(&sim.ring->taken.value, count);
	pg_atomic_fetch_add_u64(&sim.ring->committed.value, count);
	sim.producer.seq += count;
}

static void
step_after(TimestampTz microseconds)
{
	sim.now += microseconds;
	tuning_step(&sim.tuning, sim.now, false);
}

/* A steady flow at full speed for so many seconds. */
static void
flow(const Machine *machine, double seconds)
{
	TimestampTz end = sim.now + seconds * USECS_PER_SEC;

	while (sim.now < end)
	{
		int			setting = Max(setting_in_use(), 0);
		double		noise = 1 + machine->noise * (unit_random(2001) - 1000) / 1000.0;
		double		duration = STEP_TRANSACTIONS / (machine->rates[setting] * noise);

		process(STEP_TRANSACTIONS);
		sim.spent[setting] += duration;
		step_after(duration * USECS_PER_SEC);
	}
}

/* Lets a flow begin, at a moderate speed, and ends as the first setting settles. */
static void
begin_flow(void)
{
	for (int i = 0; i < 8 && sim.tuning.phase == TUNING_NO_FLOW; i++)
	{
		process(STEP_TRANSACTIONS);
		step_after(10000);
	}
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
}

/* Measures the setting in use once: it commits so many transactions in 50 ms. */
static void
measure_once(int transactions)
{
	while (sim.tuning.phase == TUNING_SETTLING)
		step_after(5000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_MEASURING);
	if (sim.tuning.since == 0)
		step_after(0);
	process(transactions);
	step_after(50000);
}

/* Measures the best setting until a trial begins; returns how often. */
static int
hold_until_trial(int transactions)
{
	int			times = 0;

	CHECK_EQUAL(sim.tuning.current, sim.tuning.best);
	while (sim.tuning.current == sim.tuning.best)
	{
		measure_once(transactions);
		times++;
		CHECK(times <= 1000);
	}
	return times;
}

static void
settings(void)
{
	begin(WRITERS, PROCESSORS, GROUP);
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
	CHECK_EQUAL(active(), WRITERS);
	CHECK_EQUAL(group_limit(), GROUP);
	CHECK_EQUAL(run_limit(), GROUP /4);

	/* More processors than writers; a number that is no power of two. */
	begin(6, 16, GROUP);
	CHECK_EQUAL(sim.tuning.num_settings, 5);
	CHECK_EQUAL(sim.tuning.settings[3].writers, 6);
	CHECK_EQUAL(sim.tuning.best, 3);

	/* Without groups there is nothing to try without. */
	begin(4, 1, 1);
	CHECK_EQUAL(sim.tuning.num_settings, 3);
	CHECK_EQUAL(sim.tuning.best, 0);
	CHECK_EQUAL(run_limit(), 1);

	/* One writer takes whole groups. */
	begin(1, 4, GROUP);
	CHECK_EQUAL(sim.tuning.num_settings, 2);
	CHECK_EQUAL(run_limit(), GROUP);

	/* As many as there can be. */
	begin(WEFT_MAX_WRITERS, 64, GROUP);
	CHECK_EQUAL(sim.tuning.num_settings, TUNING_MAX_SETTINGS);
	CHECK_EQUAL(sim.tuning.best, 6);
}

/* A flow is transactions without a gap, for some time. */
static void
flow_begins(void)
{
	begin(WRITERS, PROCESSORS, GROUP);
	step_after(0);
	CHECK_EQUAL(sim.tuning.phase, TUNING_NO_FLOW);
	step_after(49999);
	CHECK_EQUAL(sim.tuning.phase, TUNING_NO_FLOW);
	CHECK_EQUAL(active(), WRITERS);
	step_after(1);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	CHECK_EQUAL(active(), PROCESSORS);

	/* It ends with a gap. */
	step_after(100000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	step_after(100001);
	CHECK_EQUAL(sim.tuning.phase, TUNING_NO_FLOW);
	CHECK_EQUAL(active(), WRITERS);

	/* A full ring is no gap. */
	begin_flow();
	sim.now += 10 * USECS_PER_SEC;
	tuning_step(&sim.tuning, sim.now, true);
	CHECK(sim.tuning.phase != TUNING_NO_FLOW);
	CHECK_EQUAL(active(), PROCESSORS);

	/* Transactions that come rarely are no flow, however long they come. */
	begin(WRITERS, PROCESSORS, GROUP);
	for (int i = 0; i < 100; i++)
	{
		step_after(100001);
		CHECK_EQUAL(sim.tuning.phase, TUNING_NO_FLOW);
		CHECK_EQUAL(active(), WRITERS);
	}
}

/* A setting settles until what was taken before it is committed, and for some time. */
static void
settling(void)
{
	begin(WRITERS, PROCESSORS, GROUP);
	pg_atomic_write_u64(&sim.ring->taken.value, 1000);
	begin_flow();
	CHECK_EQUAL(sim.tuning.taken_then, 1000 + sim.producer.seq);
	step_after(0);
	step_after(14999);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	step_after(90000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	process(1000);
	step_after(1);
	CHECK_EQUAL(sim.tuning.phase, TUNING_MEASURING);
	CHECK_EQUAL(sim.tuning.committed_then, sim.producer.seq);

	/* The same with all committed from the beginning. */
	begin(WRITERS, PROCESSORS, GROUP);
	begin_flow();
	step_after(0);
	step_after(14999);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	step_after(1);
	CHECK_EQUAL(sim.tuning.phase, TUNING_MEASURING);
}

/* A measurement takes its time, and some transactions of each writer. */
static void
measuring(void)
{
	begin(WRITERS, PROCESSORS, GROUP);
	begin_flow();
	step_after(0);
	step_after(15000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_MEASURING);

	/* Two runs of 25 for each of 4 writers. */
	process(199);
	step_after(80000);
	CHECK_EQUAL(sim.tuning.measurements_left, 5);
	process(1);
	step_after(20000);
	CHECK_EQUAL(sim.tuning.measurements_left, 4);
	CHECK(sim.tuning.settings[2].rate == 2000);

	/*
	 * The time that the next one begins with is not that of the end of the
	 * last one.
	 */
	step_after(5000);
	process(1000);
	step_after(39999);
	CHECK_EQUAL(sim.tuning.measurements_left, 4);
	step_after(1);
	CHECK_EQUAL(sim.tuning.measurements_left, 3);

	/* A fifth of the new rate, 25000, counts. */
	CHECK(fabs(sim.tuning.settings[2].rate - 6600) < 0.001);
}

/* While a higher setting is better, the next one is tried, too. */
static void
trial_upwards(void)
{
	begin(WRITERS, PROCESSORS, GROUP);
	begin_flow();
	CHECK_EQUAL(hold_until_trial(1000), 5);
	CHECK_EQUAL(setting_in_use(), 3);
	measure_once(1100);
	CHECK_EQUAL(sim.tuning.best, 3);
	CHECK_EQUAL(setting_in_use(), 4);
	measure_once(1200);
	CHECK_EQUAL(sim.tuning.best, 4);
	CHECK_EQUAL(setting_in_use(), 4);
	CHECK_EQUAL(sim.tuning.hold, 30);

	/* There is nothing above; below it is worse. */
	CHECK_EQUAL(hold_until_trial(1200), 30);
	CHECK_EQUAL(setting_in_use(), 3);
	measure_once(1100);
	CHECK_EQUAL(setting_in_use(), 4);
	CHECK_EQUAL(sim.tuning.hold, 60);
}

/* If the next higher setting is not better, lower ones are tried. */
static void
trial_downwards(void)
{
	begin(WRITERS, PROCESSORS, GROUP);
	begin_flow();
	(void) hold_until_trial(1000);
	CHECK_EQUAL(setting_in_use(), 3);

	/* By less than what is noise it is not better. */
	measure_once(1029);
	CHECK_EQUAL(setting_in_use(), 1);
	measure_once(1031);
	CHECK_EQUAL(setting_in_use(), 0);
	measure_once(1000);
	CHECK_EQUAL(sim.tuning.best, 1);
	CHECK_EQUAL(setting_in_use(), 1);
	CHECK_EQUAL(active(), 2);
	CHECK_EQUAL(sim.tuning.hold, 30);

	/* After the direction in which it was better, the other one is not tried. */
	(void) hold_until_trial(1000);
	CHECK_EQUAL(setting_in_use(), 2);
	measure_once(2000);
	CHECK_EQUAL(setting_in_use(), 3);
	measure_once(100 * 4);
	CHECK_EQUAL(setting_in_use(), 2);
	CHECK_EQUAL(sim.tuning.best, 2);
}

/* The longer nothing better is found, the less often it is looked for. */
static void
trials_in_vain(void)
{
	static const int holds[] = {5, 30, 60, 120, 240, 240};

	begin(WRITERS, PROCESSORS, GROUP);
	begin_flow();
	for (int i = 0; i < lengthof(holds); i++)
	{
		CHECK_EQUAL(hold_until_trial(1000), holds[i]);
		CHECK_EQUAL(setting_in_use(), 3);
		measure_once(800);
		CHECK_EQUAL(setting_in_use(), 1);
		measure_once(800);
		CHECK_EQUAL(sim.tuning.best, 2);
		CHECK_EQUAL(setting_in_use(), 2);
	}
}

/* What was best need not be any more. */
static void
suddenly_slower(void)
{
	begin(WRITERS, PROCESSORS, GROUP);
	begin_flow();
	(void) hold_until_trial(1000);
	measure_once(800);
	measure_once(800);
	CHECK_EQUAL(setting_in_use(), 2);
	for (int i = 0; i < 3; i++)
	{
		measure_once(1000);
		CHECK_EQUAL(setting_in_use(), 2);
	}
	measure_once(720);
	CHECK_EQUAL(setting_in_use(), 2);
	measure_once(600);
	CHECK_EQUAL(setting_in_use(), 3);
	measure_once(800);
	CHECK_EQUAL(sim.tuning.best, 3);
}

/* A measurement that an interruption has cut off is void. */
static void
interrupted(void)
{
	begin(WRITERS, PROCESSORS, GROUP);
	begin_flow();
	(void) hold_until_trial(1000);
	CHECK_EQUAL(setting_in_use(), 3);
	process(5000);
	pg_atomic_write_u64(&sim.ring->committed.value, sim.producer.seq - 1);
	tuning_interrupt(&sim.tuning, sim.producer.seq, false);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	CHECK_EQUAL(sim.tuning.since, 0);
	CHECK_EQUAL(setting_in_use(), 2);
	CHECK_EQUAL(sim.tuning.best, 2);

	/* Outside of a flow there is nothing to interrupt. */
	begin(WRITERS, PROCESSORS, GROUP);
	step_after(0);
	process(5000);
	tuning_interrupt(&sim.tuning, sim.producer.seq, true);
	CHECK_EQUAL(sim.tuning.phase, TUNING_NO_FLOW);
	CHECK_EQUAL(active(), WRITERS);
}

/* All has been received, and much of it not been taken: all writers help. */
static void
far_behind(void)
{
	begin(WRITERS, PROCESSORS, GROUP);
	begin_flow();
	CHECK_EQUAL(active(), PROCESSORS);

	/* Two runs of 25 for each of 8 writers. */
	pg_atomic_fetch_add_u64(&sim.ring->published.value, 400);
	tuning_interrupt(&sim.tuning, sim.producer.seq + 400, false);
	CHECK_EQUAL(active(), PROCESSORS);
	pg_atomic_fetch_add_u64(&sim.ring->published.value, 1);
	tuning_interrupt(&sim.tuning, sim.producer.seq + 401, false);
	CHECK_EQUAL(active(), WRITERS);
	CHECK_EQUAL(group_limit(), GROUP);
}

/* One writer, if everything is committed before more comes. */
static void
keeping_pace(void)
{
	begin(WRITERS, PROCESSORS, GROUP);
	begin_flow();

	/* Much has come since the last pause. */
	tuning_interrupt(&sim.tuning, sim.producer.seq, true);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	process(16);
	tuning_interrupt(&sim.tuning, sim.producer.seq, true);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	process(15);
	tuning_interrupt(&sim.tuning, sim.producer.seq, true);
	CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	CHECK_EQUAL(active(), 1);
	CHECK_EQUAL(run_limit(), 16);
	CHECK_EQUAL(group_limit(), GROUP);

	/* It goes on while there are such pauses. */
	for (int i = 0; i < 10; i++)
	{
		process(STEP_TRANSACTIONS);
		step_after(1000);
		tuning_interrupt(&sim.tuning, sim.producer.seq, true);
		CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	}

	/* It is still a short pause if not all is committed, but little is left. */
	pg_atomic_write_u64(&sim.ring->committed.value, sim.producer.seq - 15);
	tuning_interrupt(&sim.tuning, sim.producer.seq, false);
	CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	pg_atomic_write_u64(&sim.ring->committed.value, sim.producer.seq - 16);
	tuning_interrupt(&sim.tuning, sim.producer.seq, false);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	CHECK_EQUAL(active(), PROCESSORS);
}

/* One writer is not enough once there are no pauses any more. */
static void
losing_pace(void)
{
	begin(WRITERS, PROCESSORS, GROUP);
	begin_flow();
	tuning_interrupt(&sim.tuning, sim.producer.seq, true);
	tuning_interrupt(&sim.tuning, sim.producer.seq, true);
	CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	step_after(1000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	tuning_interrupt(&sim.tuning, sim.producer.seq, true);
	step_after(1000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	step_after(1000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
	CHECK_EQUAL(active(), PROCESSORS);

	/* A gap ends this, too. */
	tuning_interrupt(&sim.tuning, sim.producer.seq, true);
	CHECK_EQUAL(sim.tuning.phase, TUNING_KEEPING_PACE);
	step_after(100001);
	CHECK_EQUAL(sim.tuning.phase, TUNING_NO_FLOW);
	CHECK_EQUAL(active(), WRITERS);
}

/* Parameters take effect at the next step. */
static void
parameters(void)
{
	begin(WRITERS, PROCESSORS, GROUP);
	begin_flow();
	(void) hold_until_trial(1000);
	weft_commit_group_size = 40;
	step_after(1000);
	CHECK_EQUAL(sim.tuning.settings[0].group, 40);
	CHECK(sim.tuning.settings[2].rate == 0);
	CHECK_EQUAL(sim.tuning.hold, 5);

	weft_tune_writers = false;
	for (int i = 0; i < 100; i++)
	{
		step_after(1000);
		CHECK_EQUAL(active(), WRITERS);
		CHECK_EQUAL(group_limit(), 40);
	}
	tuning_interrupt(&sim.tuning, sim.producer.seq, true);
	tuning_interrupt(&sim.tuning, sim.producer.seq, true);
	CHECK_EQUAL(active(), WRITERS);

	weft_tune_writers = true;
	step_after(1000);
	begin_flow();
	CHECK_EQUAL(active(), PROCESSORS);
}

/* After a minute, a noisy machine is in its best setting most of the time. */
static void
check_machine(const Machine *machine, int expected)
{
	begin(WRITERS, PROCESSORS, GROUP);
	flow(machine, 60);
	memset(sim.spent, 0, sizeof(sim.spent));
	flow(machine, 60);
	CHECK_EQUAL(sim.tuning.best, expected);
	CHECK(sim.spent[expected] > 54);
}

static void
noisy_machines(void)
{
	/* Processors are short: one writer is fastest. */
	static const Machine few = {{60000, 50000, 40000, 35000, 20000}, 0.3};

	/* The writers wait for the disk: all of them, each for itself. */
	static const Machine disk = {{1000, 1600, 2600, 4200, 6000}, 0.3};

	/* In between. */
	static const Machine middle = {{30000, 50000, 40000, 30000, 10000}, 0.3};
	static const Machine groups = {{10000, 20000, 30000, 40000, 20000}, 0.3};

	check_machine(&few, 0);
	check_machine(&disk, 4);
	check_machine(&middle, 1);
	check_machine(&groups, 3);
}

/* The machine changes, and the setting with it. */
static void
changing_machine(void)
{
	static const Machine before = {{10000, 20000, 30000, 40000, 20000}, 0.1};
	static const Machine after = {{18000, 14000, 10000, 8000, 5000}, 0.1};

	begin(WRITERS, PROCESSORS, GROUP);
	flow(&before, 60);
	CHECK_EQUAL(sim.tuning.best, 3);
	flow(&after, 10);
	CHECK_EQUAL(sim.tuning.best, 0);
	flow(&before, 60);
	CHECK_EQUAL(sim.tuning.best, 3);
}

static const UnitTest tests[] = {
	{"settings", settings},
	{"flow_begins", flow_begins},
	{"settling", settling},
	{"measuring", measuring},
	{"trial_upwards", trial_upwards},
	{"trial_downwards", trial_downwards},
	{"trials_in_vain", trials_in_vain},
	{"suddenly_slower", suddenly_slower},
	{"interrupted", interrupted},
	{"far_behind", far_behind},
	{"keeping_pace", keeping_pace},
	{"losing_pace", losing_pace},
	{"parameters", parameters},
	{"noisy_machines", noisy_machines},
	{"changing_machine", changing_machine},
	{NULL, NULL}
};

const Unit	tuning_unit = {"tuning", tests};
