/*
 * tuning_sim.h
 *	  Simulates what receive/tuning.c works on.
 */
#ifndef WEFT_TUNING_SIM_H
#define WEFT_TUNING_SIM_H

#include "receive/tuning.h"
#include "ring/ring.h"

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
	double		stalls;			/* every so many seconds on average, all is
								 * ten times as slow for 0.15 s; 0: never */
} Machine;

typedef struct Simulation
{
	Tuning		tuning;
	Ring	   *ring;
	RingProducer producer;
	TimestampTz now;
	TimestampTz stall_end;
	double		spent[NUM_SETTINGS];	/* seconds with each setting in use */
} Simulation;

extern Simulation sim;

extern void sim_begin(int writers, int processors, int group);
extern void sim_begin_stock(int writers, int processors, int group);
extern int	sim_active(void);
extern int	sim_group_limit(void);
extern int	sim_run_limit(void);
extern int	sim_setting_in_use(void);
extern void sim_process(uint64 count);
extern void sim_step_after(TimestampTz microseconds);
extern void sim_flow(const Machine *machine, double seconds);
extern void sim_begin_flow(void);
extern void sim_measure_once(int transactions);
extern void sim_compare(int best, int transactions, int candidate, int candidate_transactions);
extern int	sim_hold_until_trial(int transactions);

#endif							/* WEFT_TUNING_SIM_H */
