/*
 * pace_unit.c
 *	  Unit tests of pace.c.
 */
#include "postgres.h"

#include "pace.h"
#include "unit.h"

#define MB (1024 * 1024)
#define SECOND USECS_PER_SEC
#define START (100 * SECOND)
#define BEGINNING (1000 * (XLogRecPtr) MB)

static Pace pace;
static TimestampTz now;

/* Begins at a position; nothing else is known. */
static void
begin(void)
{
	PaceSample	sample = {.time = START,.transactions = 0,.applied = BEGINNING};

	pace_reset(&pace);
	now = START;
	pace_sample(&pace, &sample);
}

/* For a number of seconds, so much is applied in each of them. */
static void
apply(int seconds, int transactions, int bytes)
{
	for (int i = 0; i < 4 * seconds; i++)
	{
		PaceSample	sample = pace.last;

		now += SECOND / 4;
		sample.time = now;
		sample.transactions += transactions / 4;
		sample.applied += bytes / 4;
		pace_sample(&pace, &sample);
	}
}

/* Checks a value that is not exact. */
static void
check_near(double actual, double expected)
{
	CHECK(actual > 0.98 * expected && actual < 1.02 * expected);
}

static void
rates(void)
{
	begin();
	CHECK(pace_rate(&pace.transactions) < 0);
	CHECK(pace_rate(&pace.bytes) < 0);

	/* The first second is not diluted by what is not known. */
	apply(1, 400, 8 * MB);
	check_near(pace_rate(&pace.transactions), 400);
	check_near(pace_rate(&pace.bytes), 8 * MB);

	/* After a change, the old rate fades: of transactions sooner. */
	apply(15, 4000, 80 * MB);
	CHECK(pace_rate(&pace.transactions) > 3700);
	CHECK(pace_rate(&pace.bytes) < 79 * MB);
	apply(60, 4000, 80 * MB);
	check_near(pace_rate(&pace.bytes), 80 * MB);
	apply(60, 0, 0);
	CHECK(pace_rate(&pace.transactions) < 1);
}

/* The first position that is known is no distance that was applied. */
static void
first_position(void)
{
	PaceSample	sample = {.time = START};

	pace_reset(&pace);
	pace_sample(&pace, &sample);
	sample.time += SECOND;
	sample.applied = BEGINNING;
	pace_sample(&pace, &sample);
	CHECK(pace_rate(&pace.bytes) < 0);
	CHECK(pace_rate(&pace.transactions) == 0);
}

/* If the clock is set back, the next sample is the first one of a new account. */
static void
clock_set_back(void)
{
	begin();
	apply(10, 400, 8 * MB);
	now -= 3600 * SECOND;
	apply(100, 4000, 80 * MB);
	check_near(pace_rate(&pace.bytes), 80 * MB);
	check_near(pace_rate(&pace.transactions), 4000);
}

static void
publisher_end(void)
{
	begin();
	pace_told(&pace, InvalidXLogRecPtr, now);
	CHECK_EQUAL(pace.publisher_time, 0);
	pace_told(&pace, BEGINNING + MB, now);
	CHECK_EQUAL(pace.publisher_time, now);

	/* The walsender is behind: what it tells is nothing new. */
	pace_answered(&pace, BEGINNING + 50 * MB, now + SECOND);
	pace_told(&pace, BEGINNING + 2 * MB, now + 2 * SECOND);
	CHECK_EQUAL(pace.publisher_end, BEGINNING + 50 * MB);
	CHECK_EQUAL(pace.publisher_time, now + SECOND);

	/* The same position, told again, is newer knowledge. */
	pace_told(&pace, BEGINNING + 50 * MB, now + 3 * SECOND);
	CHECK_EQUAL(pace.publisher_time, now + 3 * SECOND);
}

static void
time_left(void)
{
	begin();
	CHECK(pace_seconds_left(&pace, pace.last.applied) < 0);
	pace_told(&pace, BEGINNING, now);
	CHECK(pace_seconds_left(&pace, pace.last.applied) == 0);
	CHECK(pace_seconds_left(&pace, InvalidXLogRecPtr) < 0);

	/*
	 * How fast the publisher's WAL grows is not known before the second
	 * answer.
	 */
	pace_told(&pace, BEGINNING + 10 * MB, now);
	pace_answered(&pace, BEGINNING + 1000 * MB, now);
	apply(2, 400, 10 * MB);
	CHECK(pace_rate(&pace.publisher) < 0);
	CHECK(pace_seconds_left(&pace, pace.last.applied) < 0);
	pace_answered(&pace, BEGINNING + 1000 * MB, now);
	check_near(pace_seconds_left(&pace, pace.last.applied), 98);

	/* It grows by 5 MB per second. */
	pace_caught_up(&pace);
	pace_answered(&pace, BEGINNING + 1000 * MB, now);
	apply(2, 400, 10 * MB);
	pace_answered(&pace, BEGINNING + 1010 * MB, now);
	check_near(pace_seconds_left(&pace, pace.last.applied), 970.0 / 5);

	/* It grows faster than it is applied. */
	apply(2, 400, 10 * MB);
	pace_answered(&pace, BEGINNING + 1200 * MB, now);
	CHECK(pace_seconds_left(&pace, pace.last.applied) < 0);
}

static const UnitTest tests[] = {
	{"rates", rates},
	{"first_position", first_position},
	{"clock_set_back", clock_set_back},
	{"publisher_end", publisher_end},
	{"time_left", time_left},
	{NULL, NULL}
};

const Unit	pace_unit = {"pace", tests};
