/*
 * key_range.h
 *	  Divides a table into parts that are the same rows on both sides.
 */
#ifndef WEFT_VERIFY_KEY_RANGE_H
#define WEFT_VERIFY_KEY_RANGE_H

#include "verify/row_hash.h"

typedef enum KeyRangeMode
{
	/*
	 * Each part is a range of keys.  Every machine orders the keys the same
	 * way, an index here and one on the publisher find the rows of a range,
	 * and the rows are stored roughly in the order of the key, or the table
	 * is small.  Parts can be compared one by one, each with row_hash_sums().
	 */
	KEY_RANGES,

	/*
	 * Each part is a bucket of hashes.  Every access to one part reads the
	 * whole table: compare all parts in one pass with row_hash_group_sums(),
	 * then look into all that differ in one more pass.
	 */
	KEY_BUCKETS,
} KeyRangeMode;

typedef struct KeyRanges
{
	KeyRangeMode mode;
	const RowHash *hash;
	int			count;			/* of parts; at least 1 */
	char	 ***bounds;			/* count - 1 keys, as arrays of texts; only
								 * KEY_RANGES */
} KeyRanges;

/*
 * Decides how to divide a table, such that a part has about "rows" rows; it may have none, or many
 * more.  Each row of either side is in exactly one part, whatever has been inserted since.  Takes a sample of
 * the local table, so there must be an active snapshot; call it as the subscription's owner,
 * with the pinned settings in force.  All is allocated in the current memory context.
 */
extern KeyRanges *key_ranges_plan(const RowHash *hash, int64 rows);

/*
 * The condition that selects part "part", from 0 to count - 1; NULL if it is the whole table.
 * key_ranges_condition_of() selects several parts at once.
 */
extern char *key_ranges_condition(const KeyRanges *ranges, CompareSide side, int part);
extern char *key_ranges_condition_of(const KeyRanges *ranges, CompareSide side,
									 const int *parts, int count);

/* The expression (int4) that is a row's part, for row_hash_group_sums(); only KEY_BUCKETS. */
extern char *key_ranges_group(const KeyRanges *ranges, CompareSide side);

#endif							/* WEFT_VERIFY_KEY_RANGE_H */
