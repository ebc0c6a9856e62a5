/*
 * row_hash.h
 *	  SQL text of what is compared: hashes, keys and rows.
 *
 * All queries are for one side, and give the same result on both sides for equal rows.
 * They must run with the settings of pinned_settings.c.  They contain no value that came from the
 * other side except as a quoted literal.
 *
 * Two rows are equal if the texts of all compared columns are, as output functions make them
 * (which is what a subscription transfers): -0 is not 0, and 1.0 is not 1.00.
 */
#ifndef WEFT_VERIFY_ROW_HASH_H
#define WEFT_VERIFY_ROW_HASH_H

#include "verify/published_table.h"

/* What expressions and queries are made for. */
typedef struct RowHash
{
	const PublishedTable *table;
	bool		convert;		/* PublishedTables.convert */
} RowHash;

/*
 * Texts of values longer than this are cut in the jsonb objects of rows, with their length and
 * hash in place of the rest: a jsonb string cannot be longer than 256 MB.
 */
#define ROW_HASH_LONGEST_TEXT 10000

/*
 * Expressions over the rows of published_table_rows(), which may be combined in queries.
 *
 * row_hash_value: int8, never null: the hash of the compared columns.
 * row_hash_key: int8, never null: the hash of the key; of a keyless table, the row's hash.
 * row_hash_key_json: jsonb object of key column -> text; of a keyless table NULL::jsonb.
 * row_hash_row_json: jsonb object of compared column -> text, or null.
 */
extern char *row_hash_value(const RowHash *hash, CompareSide side);
extern char *row_hash_key(const RowHash *hash, CompareSide side);
extern char *row_hash_key_json(const RowHash *hash, CompareSide side);
extern char *row_hash_row_json(const RowHash *hash, CompareSide side);

/*
 * Complete queries; "condition" is NULL or one of key_range.h.  All columns are int8, except
 * where noted, and none is null unless noted; to read them as text is fine.
 *
 * row_hash_sums: one row: count(*); sum of row hashes (numeric, 0 if there is no row).  Equal
 * multisets of rows have equal sums.
 *
 * row_hash_group_sums: the same by "group", an expression of key_range.h: group (int4), count, sum.
 *
 * row_hash_list: one row for each row: key hash, row hash; in no order.  Of keyless tables,
 * where both are the same, and of keys that are not unique here, there can be several equal ones.
 *
 * row_hash_rows: the rows with these key hashes: key hash, row hash, key (jsonb as text, null if
 * keyless), row (jsonb as text), whole (bool: no value was cut).  Different keys may have the
 * same hash, though hardly ever; the texts of the keys tell them apart.  "condition" should be that
 * of the range or bucket, because the server finds rows by it and not by their hashes.
 *
 * row_hash_rows_by_key: the same columns for rows with given keys, found by an index if there is one.
 * "keys" is a list of arrays of texts (char **), one text for each column of table->key, none of them
 * NULL.  Not for keyless tables.
 */
extern char *row_hash_sums(const RowHash *hash, CompareSide side, const char *condition);
extern char *row_hash_group_sums(const RowHash *hash, CompareSide side, const char *group,
								 const char *condition);
extern char *row_hash_list(const RowHash *hash, CompareSide side, const char *condition);
extern char *row_hash_rows(const RowHash *hash, CompareSide side, const char *condition,
						   const int64 *key_hashes, int count);
extern char *row_hash_rows_by_key(const RowHash *hash, CompareSide side, List *keys);

/* A condition that selects the rows with these keys, as above. */
extern char *row_hash_key_condition(const RowHash *hash, CompareSide side, List *keys);

/*
 * Buckets of key hashes (of rows, if the table is keyless): the number (int4) of a row's bucket, from 0
 * to buckets - 1, and a condition that selects some buckets.  "buckets" is a power of two.
 * KEY_BUCKETS uses them; a range that turns out to be too large can be divided by them, too.
 */
extern char *row_hash_bucket(const RowHash *hash, CompareSide side, int buckets);
extern char *row_hash_bucket_condition(const RowHash *hash, CompareSide side, int buckets,
									   const int *numbers, int count);

#endif							/* WEFT_VERIFY_ROW_HASH_H */
