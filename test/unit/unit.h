/*
 * unit.h
 *	  The frame of the unit tests: tests, checks, what several of them need.
 */
#ifndef WEFT_UNIT_H
#define WEFT_UNIT_H

#include "compat.h"
#include "lib/stringinfo.h"
#include "ring/ring.h"

typedef struct UnitTest
{
	const char *name;
	void		(*run) (void);
} UnitTest;

typedef struct Unit
{
	const char *name;
	const UnitTest *tests;		/* ends with a name that is NULL */
} Unit;

extern const Unit broadcast_unit;
extern const Unit dependency_unit;
extern const Unit key_prefix_unit;
extern const Unit lookup_unit;
extern const Unit order_unit;
extern const Unit pace_unit;
extern const Unit relations_unit;
extern const Unit ring_unit;
extern const Unit spool_unit;
extern const Unit spool_transactions_unit;
extern const Unit transaction_unit;
extern const Unit tuning_trial_unit;
extern const Unit tuning_unit;
extern const Unit wire_unit;

/* Ends the test with an error unless the condition holds. */
#define CHECK(condition) \
	do { \
		if (!(condition)) \
			check_failed(__FILE__, __LINE__, #condition); \
	} while (0)

/* The same for two integers; the message names both. */
#define CHECK_EQUAL(actual, expected) \
	check_equal(__FILE__, __LINE__, #actual, (int64) (actual), (int64) (expected))

/* The same for the description of a problem, or NULL. */
#define CHECK_TEXT(actual, expected) \
	check_text(__FILE__, __LINE__, #actual, (actual), (expected))

pg_noreturn extern void check_failed(const char *file, int line, const char *condition);
extern void check_equal(const char *file, int line, const char *what,
						int64 actual, int64 expected);
extern void check_text(const char *file, int line, const char *what,
					   const char *actual, const char *expected);

extern Ring *unit_ring(RingProducer *producer, uint64 bytes, int writers);
extern int	unit_random(int limit);

#endif							/* WEFT_UNIT_H */
