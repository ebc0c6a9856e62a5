/*
 * sequence_position.c
 *	  Where a sequence has to be, to be beyond another one.
 *
 * All values are mapped to unsigned numbers that grow in the direction of the sequence.
 * Therefore there is one case instead of two, and differences cannot overflow.
 */
#include "postgres.h"

#include "verify/sequence_position.h"

static uint64
place_of(int64 value, bool ascending)
{
	uint64		place = (uint64) value ^ (UINT64CONST(1) << 63);

	return ascending ? place : ~place;
}

static int64
value_at(uint64 place, bool ascending)
{
	return (int64) ((ascending ? place : ~place) ^ (UINT64CONST(1) << 63));
}

static uint64
step_of(const SequenceNumbers *numbers)
{
	/* also right for the smallest number */
	return numbers->increment > 0 ? (uint64) numbers->increment : -(uint64) numbers->increment;
}

/* Moves on by "count" steps.  False if there is no number there. */
static bool
add_steps(uint64 *place, uint64 count, uint64 step)
{
	if (count > (PG_UINT64_MAX - *place) / step)
		return false;
	*place += count * step;
	return true;
}

/* Moves a sequence on, as far as its values are not beyond "target".  False if none is. */
static bool
move(uint64 place, bool is_called, uint64 step, uint64 target, uint64 *result)
{
	if (target < place || (is_called && target - place < step))
		return false;
	*result = place + (target - place) / step * step;
	return true;
}

/*
 * Compares the sequence "here" with the one "there".  The next value made here must be
 * beyond every value that has been made there, and by "margin" steps of the other sequence.
 * A session there may have cached values that it has not used yet; they are part of the
 * margin, unless it is 0.
 *
 * If the result is SEQUENCE_BEHIND or SEQUENCE_BEHIND_NO_MARGIN, then *value is a last value,
 * already used, to which the sequence is to be set.  It is a whole number of steps away from
 * the one that it has now, and never nearer to its start.
 */
SequencePlace
sequence_position(const SequenceNumbers *there, const SequenceNumbers *here,
				  int64 margin, int64 *value)
{
	bool		ascending = here->increment > 0;
	uint64		step = step_of(here);
	uint64		place = place_of(here->last_value, ascending);
	uint64		end = place_of(ascending ? here->max : here->min, ascending);
	uint64		start = place_of(ascending ? here->min : here->max, ascending);
	uint64		used = place_of(there->last_value, ascending);
	uint64		target;
	uint64		result;
	bool		fits = true;

	if (ascending != (there->increment > 0))
		return SEQUENCE_OTHER_WAY;

	/*
	 * If the other one has begun anew, then its values are smaller, but not
	 * used here.  That is more likely than being ahead by more than half of
	 * all values.
	 */
	if ((there->cycle || here->cycle) && place > used && place - used > (end - start) / 2)
		return SEQUENCE_CYCLED;

	/* No more than that can have been used. */
	if (!there->is_called && used > 0)
		used--;
	target = used;
	if (margin > 0)
		fits = add_steps(&target, margin, step_of(there)) &&
			add_steps(&target, there->cache - 1, step_of(there));

	if (fits && !move(place, here->is_called, step, target, &result))
		return SEQUENCE_BEYOND;
	if (fits && result <= end)
	{
		*value = value_at(result, ascending);
		return SEQUENCE_BEHIND;
	}
	if (!move(place, here->is_called, step, used, &result))
		return SEQUENCE_BEYOND;
	if (result > end)
		return SEQUENCE_TOO_SHORT;
	*value = value_at(result, ascending);
	return SEQUENCE_BEHIND_NO_MARGIN;
}
