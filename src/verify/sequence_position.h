/*
 * sequence_position.h
 *	  Where a sequence has to be, to be beyond another one.
 */
#ifndef WEFT_VERIFY_SEQUENCE_POSITION_H
#define WEFT_VERIFY_SEQUENCE_POSITION_H

/* What pg_sequence and the sequence itself contain. */
typedef struct SequenceNumbers
{
	int64		increment;		/* not 0 */
	int64		min;
	int64		max;
	int64		cache;			/* at least 1 */
	bool		cycle;
	int64		last_value;
	bool		is_called;		/* has last_value been used? */
} SequenceNumbers;

typedef enum SequencePlace
{
	SEQUENCE_BEYOND,			/* it may stay as it is */
	SEQUENCE_BEHIND,			/* it must be set */
	SEQUENCE_BEHIND_NO_MARGIN,	/* the same, and the margin goes over the end */
	SEQUENCE_TOO_SHORT,			/* it ends before the other one's value */
	SEQUENCE_OTHER_WAY,			/* one ascends, the other one descends */
	SEQUENCE_CYCLED				/* the other one has probably begun anew */
} SequencePlace;

extern SequencePlace sequence_position(const SequenceNumbers *there, const SequenceNumbers *here,
									   int64 margin, int64 *value);

#endif							/* WEFT_VERIFY_SEQUENCE_POSITION_H */
