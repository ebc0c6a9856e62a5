/*
 * pace.h
 *	  How fast a subscription is applied, and when it will have caught up.
 */
#ifndef WEFT_PACE_H
#define WEFT_PACE_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"

/*
 * A rate, as an average over the past in which older times count less: an amount, and the
 * seconds in which it accrued, both of which fade.
 */
typedef struct Rate
{
	double		amount;
	double		seconds;		/* zero: nothing is known */
} Rate;

/* How far a subscription is. */
typedef struct PaceSample
{
	TimestampTz time;
	uint64		transactions;
	XLogRecPtr	applied;		/* invalid: not known */
} PaceSample;

typedef struct Pace
{
	PaceSample	last;			/* its time is zero until there is one */
	Rate		transactions;
	Rate		bytes;			/* of WAL that is applied */

	/* The newest end of the publisher's WAL that is known, and since when. */
	XLogRecPtr	publisher_end;	/* invalid: none is */
	TimestampTz publisher_time;

	/* The same as of the last answer, and how fast answers move. */
	XLogRecPtr	answered_end;
	TimestampTz answered_time;	/* zero: not asked in this backlog */
	Rate		publisher;
} Pace;

extern void pace_reset(Pace *pace);
extern void pace_sample(Pace *pace, const PaceSample *sample);
extern void pace_told(Pace *pace, XLogRecPtr end, TimestampTz now);
extern void pace_answered(Pace *pace, XLogRecPtr end, TimestampTz now);
extern void pace_caught_up(Pace *pace);
extern double pace_rate(const Rate *rate);
extern double pace_seconds_left(const Pace *pace, XLogRecPtr applied);

#endif							/* WEFT_PACE_H */
