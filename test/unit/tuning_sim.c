/*
 * tuning_sim.c
 *	  Simulates what receive/tuning.c works on, with a ring without writers and a clock of its own.
 *
 * A Machine says how many transactions per second the writers commit in a setting.
 * The simulation lets time pass, moves the ring's counters as leader and writers would,
 * and calls tuning_step() as often as the leader does.
 */
#include "postgres.h"

#include "guc.h"
#include "tuning_sim.h"
#include "unit.h"
#include "utils/timestamp.h"

Simulation	sim;

static void
begin(int writers, int processors, int group, bool batches)
{
	memset(&sim, 0, sizeof(sim));
	weft_commit_group_size = group;
	weft_tune_writers = true;
	sim.ring = unit_ring(&sim.producer, 1024, writers);
	sim.now = USECS_PER_DAY;
	tuning_reset(&sim.tuning, sim.ring, writers, processors, batches);
}

void
sim_begin(int writers, int processors, int group)
{
	begin(writers, processors, group, true);
}

/* The publisher sends no batches. */
void
sim_begin_stock(int writers, int processors, int group)
{
	begin(writers, processors, group, false);
}

int
sim_active(void)
{
	return pg_atomic_read_u32(&sim.ring->active_writers);
}

int
sim_group_limit(void)
{
	return pg_atomic_read_u32(&sim.ring->group_limit);
}

int
sim_run_limit(void)
{
	return pg_atomic_read_u32(&sim.ring->run_limit);
}

/* The setting that the ring's limits are those of; -1 for one writer that keeps pace. */
int
sim_setting_in_use(void)
{
	if (sim_active() == WRITERS)
		return sim_group_limit() == 1 ? 4 : 3;
	if (sim_run_limit() == 16)
		return -1;
	return sim_active() == 1 ? 0 : sim_active() == 2 ? 1 : 2;
}

/* So many transactions have come, and have been taken and committed. */
void
sim_process(uint64 count)
{
	pg_atomic_fetch_add_u64(&sim.ring->published.value, count);
	pg_atomic_fetch_add_u64(&sim.ring->taken.value, count);
	pg_atomic_fetch_add_u64(&sim.ring->committed.value, count);
	sim.producer.seq += count;
}

void
sim_step_after(TimestampTz microseconds)
{
	sim.now += microseconds;
	tuning_step(&sim.tuning, sim.now, false);
}

/* A steady flow at full speed for so many seconds. */
void
sim_flow(const Machine *machine, double seconds)
{
	TimestampTz end = sim.now + seconds * USECS_PER_SEC;

	while (sim.now < end)
	{
		int			setting = Max(sim_setting_in_use(), 0);
		double		noise = 1 + machine->noise * (unit_random(2001) - 1000) / 1000.0;
		double		duration = STEP_TRANSACTIONS / (machine->rates[setting] * noise);

		if (machine->stalls > 0 && sim.now > sim.stall_end &&
			unit_random(1000000) < duration / machine->stalls * 1000000)
			sim.stall_end = sim.now + 150000;
		if (sim.now <= sim.stall_end)
			duration *= 10;
		sim_process(STEP_TRANSACTIONS);
		sim.spent[setting] += duration;
		sim_step_after(duration * USECS_PER_SEC);
	}
}

/* Lets a flow begin, at a moderate speed, and ends as the first setting settles. */
void
sim_begin_flow(void)
{
	for (int i = 0; i < 8 && sim.tuning.phase == TUNING_NO_FLOW; i++)
	{
		sim_process(STEP_TRANSACTIONS);
		sim_step_after(10000);
	}
	CHECK_EQUAL(sim.tuning.phase, TUNING_SETTLING);
}

/* Measures the setting in use once: it commits so many transactions in 50 ms. */
void
sim_measure_once(int transactions)
{
	while (sim.tuning.phase == TUNING_SETTLING)
		sim_step_after(5000);
	CHECK_EQUAL(sim.tuning.phase, TUNING_MEASURING);
	if (sim.tuning.since == 0)
		sim_step_after(0);
	sim_process(transactions);
	sim_step_after(50000);
}

/*
 * Compares a candidate twice with the best setting, which commits so many transactions in 50 ms,
 * after the candidate was measured for the first time.
 */
void
sim_compare(int best, int transactions, int candidate, int candidate_transactions)
{
	CHECK_EQUAL(sim_setting_in_use(), best);
	sim_measure_once(transactions);
	CHECK_EQUAL(sim_setting_in_use(), candidate);
	sim_measure_once(candidate_transactions);
	CHECK_EQUAL(sim_setting_in_use(), best);
	sim_measure_once(transactions);
}

/* Measures the best setting until a trial begins; returns how often. */
int
sim_hold_until_trial(int transactions)
{
	int			times = 0;

	CHECK_EQUAL(sim.tuning.current, sim.tuning.best);
	while (sim.tuning.current == sim.tuning.best)
	{
		sim_measure_once(transactions);
		times++;
		CHECK(times <= 1000);
	}
	return times;
}
