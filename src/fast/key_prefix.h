/*
 * key_prefix.h
 *	  The fast path: the first bytes of a btree's keys, as numbers in the same order.
 */
#ifndef WEFT_KEY_PREFIX_H
#define WEFT_KEY_PREFIX_H

#include "access/itup.h"
#include "access/skey.h"
#include "fast/fast_column.h"
#include "utils/relcache.h"

/* A prefix has this many bytes. */
#define KEY_PREFIX_SIZE 16

/* One number of 16 bytes: the high and the low half. */
typedef struct KeyPrefix
{
	uint64		high;
	uint64		low;
} KeyPrefix;

typedef enum KeyPartKind
{
	KEY_PART_INTEGER,			/* signed, of a fixed length */
	KEY_PART_UNSIGNED,
	KEY_PART_UUID,
	KEY_PART_TEXT,				/* of any length; no part follows */
	KEY_PART_BYTEA,				/* the same */
} KeyPartKind;

/* A column of the key. */
typedef struct KeyPart
{
	KeyPartKind kind;
	int			length;			/* of its value, in bytes; -1: any */
	int			used;			/* of these, the first ones in the prefix */
	bool		descending;
} KeyPart;

typedef struct KeyPrefixForm
{
	int			num_parts;		/* columns of the key in the prefix: the first
								 * ones */
	int			length;			/* of these parts together, in bytes */
	KeyPart		parts[KEY_PREFIX_SIZE];
} KeyPrefixForm;

extern bool key_prefix_describe(Relation index, KeyPrefixForm *form);
extern KeyPrefix key_prefix_of_entry(const KeyPrefixForm *form, Relation index, IndexTuple entry);
extern KeyPrefix key_prefix_of_keys(const KeyPrefixForm *form, const ScanKeyData *keys);
extern bool key_prefix_of_sent(const KeyPrefixForm *form, const WireColumn *sent,
							   KeyPrefix *prefix);

/* Is a prefix lower than another one? */
static inline bool
key_prefix_less(KeyPrefix a, KeyPrefix b)
{
	return a.high < b.high || (a.high == b.high && a.low < b.low);
}

static inline bool
key_prefix_equal(KeyPrefix a, KeyPrefix b)
{
	return a.high == b.high && a.low == b.low;
}

/*
 * Returns how far a prefix is above a lower one, roughly.  The difference is taken before it is
 * rounded: the low halves of two keys that are close together may be large.
 */
static inline double
key_prefix_distance(KeyPrefix from, KeyPrefix to)
{
	uint64		high = to.high - from.high - (to.low < from.low);

	return (double) high * 18446744073709551616.0 + (double) (to.low - from.low);
}

#endif							/* WEFT_KEY_PREFIX_H */
