/*
 * tuning_trial_unit.c
 *	  Unit tests of receive/tuning.c: trials, and which setting they find in the end.
 */
#include "postgres.h"

#include "tuning_sim.h"
#include "unit.h"
#include "utils/timestamp.h"

/* While a higher setting is better, the next one is tried, too. */
static void
trial_upwards(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	CHECK_EQUAL(sim_hold_until_trial(1000), 4);
	CHECK_EQUAL(sim_setting_in_use(), 3);
	sim_measure_once(1100);
	CHECK_EQUAL(sim.tuning.best, 2);
	sim_compare(2, 1000, 3, 1100);
	CHECK_EQUAL(sim.tuning.best, 3);
	CHECK_EQUAL(sim_setting_in_use(), 4);

	/* Much better: one comparison is enough. */
	sim_measure_once(1300);
	CHECK_EQUAL(sim_setting_in_use(), 3);
	sim_measure_once(1100);
	CHECK_EQUAL(sim.tuning.best, 4);

	/* One writer is always a candidate. */
	CHECK_EQUAL(sim_setting_in_use(), 0);
	sim_measure_once(1000);
	CHECK_EQUAL(sim_setting_in_use(), 4);
	CHECK_EQUAL(sim.tuning.candidate, -1);
	CHECK_EQUAL(sim.tuning.hold, 30);

	/* There is nothing above; below it is worse. */
	CHECK_EQUAL(sim_hold_until_trial(1300), 30);
	CHECK_EQUAL(sim_setting_in_use(), 3);
	sim_measure_once(1100);
	CHECK_EQUAL(sim_setting_in_use(), 0);
	sim_measure_once(1000);
	CHECK_EQUAL(sim_setting_in_use(), 4);
	CHECK_EQUAL(sim.tuning.hold, 60);
}

/* What seems better is compared with what the best setting reaches afterwards. */
static void
comparisons(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();

	/*
	 * All settings get faster, by as much as the candidate seems to be
	 * better.
	 */
	(void) sim_hold_until_trial(1000);
	CHECK_EQUAL(sim_setting_in_use(), 3);
	sim_measure_once(1300);
	CHECK_EQUAL(sim_setting_in_use(), 2);
	sim_measure_once(1300);
	CHECK_EQUAL(sim.tuning.best, 2);
	CHECK_EQUAL(sim_setting_in_use(), 1);

	/* All settings get slower: it is not better than what was before. */
	sim_measure_once(1350);
	CHECK_EQUAL(sim_setting_in_use(), 2);
	sim_measure_once(1200);
	CHECK_EQUAL(sim_setting_in_use(), 1);
	sim_measure_once(1100);
	CHECK_EQUAL(sim.tuning.best, 2);
	CHECK_EQUAL(sim_setting_in_use(), 0);

	/* It is better once, but then it is slower. */
	sim_measure_once(1320);
	CHECK_EQUAL(sim_setting_in_use(), 2);
	sim_measure_once(1000);
	CHECK_EQUAL(sim_setting_in_use(), 0);
	sim_measure_once(969);
	CHECK_EQUAL(sim.tuning.best, 2);
	CHECK_EQUAL(sim.tuning.candidate, -1);
}

/* If the next higher setting is not better, lower ones are tried. */
static void
trial_downwards(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	(void) sim_hold_until_trial(1000);
	CHECK_EQUAL(sim_setting_in_use(), 3);

	/*
	 * By less than what is noise it is not better; fewer writers need not be
	 * better.
	 */
	sim_measure_once(1029);
	CHECK_EQUAL(sim_setting_in_use(), 1);
	sim_measure_once(971);
	sim_compare(2, 1000, 1, 971);
	CHECK_EQUAL(sim.tuning.best, 1);
	CHECK_EQUAL(sim_setting_in_use(), 0);
	sim_measure_once(940);
	CHECK_EQUAL(sim.tuning.best, 1);
	CHECK_EQUAL(sim_setting_in_use(), 1);
	CHECK_EQUAL(sim_active(), 2);
	CHECK_EQUAL(sim.tuning.hold, 30);

	/* After the direction in which it was better, the other one is not tried. */
	(void) sim_hold_until_trial(1000);
	CHECK_EQUAL(sim_setting_in_use(), 2);
	sim_measure_once(2000);
	CHECK_EQUAL(sim_setting_in_use(), 1);
	sim_measure_once(1000);
	CHECK_EQUAL(sim_setting_in_use(), 3);
	sim_measure_once(100 * 4);
	CHECK_EQUAL(sim_setting_in_use(), 0);
	sim_measure_once(1000);
	CHECK_EQUAL(sim_setting_in_use(), 2);
	CHECK_EQUAL(sim.tuning.best, 2);
}

/* One writer can be best though two are worse than four. */
static void
one_writer(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	(void) sim_hold_until_trial(1000);
	sim_measure_once(900);
	CHECK_EQUAL(sim_setting_in_use(), 1);
	sim_measure_once(900);
	CHECK_EQUAL(sim_setting_in_use(), 0);
	sim_measure_once(1300);
	CHECK_EQUAL(sim_setting_in_use(), 2);
	sim_measure_once(1000);
	CHECK_EQUAL(sim.tuning.best, 0);
	CHECK_EQUAL(sim_setting_in_use(), 0);

	/* If it was hopeless, it is left out for some time. */
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	for (int i = 0; i < 4; i++)
	{
		(void) sim_hold_until_trial(1000);
		sim_measure_once(900);
		CHECK_EQUAL(sim_setting_in_use(), 1);
		sim_measure_once(900);
		CHECK_EQUAL(sim_setting_in_use(), i == 0 || i == 3 ? 0 : 2);
		if (sim_setting_in_use() == 0)
			sim_measure_once(300);
		CHECK_EQUAL(sim.tuning.best, 2);
		CHECK_EQUAL(sim.tuning.candidate, -1);
	}
}

/* The longer nothing better is found, the less often it is looked for. */
static void
trials_in_vain(void)
{
	static const int holds[] = {4, 30, 60, 120, 240, 240};

	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	for (int i = 0; i < lengthof(holds); i++)
	{
		CHECK_EQUAL(sim_hold_until_trial(1000), holds[i]);
		CHECK_EQUAL(sim_setting_in_use(), 3);
		sim_measure_once(800);
		CHECK_EQUAL(sim_setting_in_use(), 1);
		sim_measure_once(800);
		CHECK_EQUAL(sim_setting_in_use(), 0);
		sim_measure_once(800);
		CHECK_EQUAL(sim.tuning.best, 2);
		CHECK_EQUAL(sim_setting_in_use(), 2);
	}
}

/* However slow transactions are, the next trial is never far away. */
static void
slow_transactions(void)
{
	int			times;

	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	for (int i = 0; i < 6; i++)
	{
		(void) sim_hold_until_trial(1000);
		sim_measure_once(800);
		sim_measure_once(800);
		sim_measure_once(800);
	}
	CHECK_EQUAL(sim.tuning.hold, 240);
	for (times = 0; sim.tuning.current == sim.tuning.best; times++)
	{
		while (sim.tuning.phase == TUNING_SETTLING)
			sim_step_after(5000);
		if (sim.tuning.since == 0)
			sim_step_after(0);
		sim_process(20000);
		sim.now += USECS_PER_SEC;
		tuning_step(&sim.tuning, sim.now, true);
		CHECK(times <= 1000);
	}
	CHECK_EQUAL(times, 16);
}

/* What was best need not be any more. */
static void
suddenly_slower(void)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_begin_flow();
	(void) sim_hold_until_trial(1000);
	sim_measure_once(800);
	sim_measure_once(800);
	sim_measure_once(800);
	CHECK_EQUAL(sim_setting_in_use(), 2);
	for (int i = 0; i < 3; i++)
	{
		sim_measure_once(1000);
		CHECK_EQUAL(sim_setting_in_use(), 2);
	}

	/* Once may be a stall. */
	sim_measure_once(690);
	CHECK_EQUAL(sim_setting_in_use(), 2);
	sim_measure_once(1000);
	CHECK_EQUAL(sim_setting_in_use(), 2);
	sim_measure_once(690);
	CHECK_EQUAL(sim_setting_in_use(), 2);
	sim_measure_once(600);
	CHECK_EQUAL(sim_setting_in_use(), 3);
	sim_measure_once(800);
	sim_measure_once(600);
	CHECK_EQUAL(sim.tuning.best, 3);
}

/* After a minute, a noisy machine is in its best setting most of the time. */
static void
check_machine(const Machine *machine, int expected)
{
	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_flow(machine, 60);
	memset(sim.spent, 0, sizeof(sim.spent));
	sim_flow(machine, 60);
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

	/* The publisher is the limit. */
	static const Machine publisher = {{50000, 50000, 50000, 50000, 20000}, 0.3};

	/* One writer is best, and two are worse than four. */
	static const Machine one = {{40000, 25000, 30000, 28000, 20000}, 0.3};

	check_machine(&few, 0);
	check_machine(&one, 0);
	check_machine(&publisher, 0);
	check_machine(&disk, 4);
	check_machine(&middle, 1);
	check_machine(&groups, 3);
}

/* A disk that stalls now and then is no reason to use fewer writers. */
static void
stalls(void)
{
	static const Machine disk = {{2800, 4500, 7000, 10000, 12000}, 0.15, 1.0};

	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_flow(&disk, 300);
	CHECK(sim.spent[3] + sim.spent[4] > 270);
}

/* The machine changes, and the setting with it. */
static void
changing_machine(void)
{
	static const Machine before = {{10000, 20000, 30000, 40000, 20000}, 0.1};
	static const Machine after = {{18000, 14000, 10000, 8000, 5000}, 0.1};

	sim_begin(WRITERS, PROCESSORS, GROUP);
	sim_flow(&before, 60);
	CHECK_EQUAL(sim.tuning.best, 3);
	sim_flow(&after, 10);
	CHECK_EQUAL(sim.tuning.best, 0);
	sim_flow(&before, 60);
	CHECK_EQUAL(sim.tuning.best, 3);
}

static const UnitTest tests[] = {
	{"trial_upwards", trial_upwards},
	{"comparisons", comparisons},
	{"trial_downwards", trial_downwards},
	{"one_writer", one_writer},
	{"trials_in_vain", trials_in_vain},
	{"slow_transactions", slow_transactions},
	{"suddenly_slower", suddenly_slower},
	{"noisy_machines", noisy_machines},
	{"stalls", stalls},
	{"changing_machine", changing_machine},
	{NULL, NULL}
};

const Unit	tuning_trial_unit = {"tuning_trial", tests};
