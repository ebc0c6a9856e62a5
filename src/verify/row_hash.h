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

/* What one side has to do to prepare the hashes; the same for all tables. */
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
 * Checks that the publisher computes the same texts and the same hashes as this server, for telling
 * values of all common types.  Fails with an error that names the first type for which it does
 * not.  "conn" is a connection as for published_tables_get(); "convert" is
 * PublishedTables.convert.  Runs a query here, too, so there must be an active snapshot.
 * Call it once per comparison, as the subscription's owner, with the pinned settings in force.
 */
extern void row_hash_verify(Subscription *subscription, WalReceiverConn *conn, bool convert);

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

#endif							/* WEFT_VERIFY_ROW_HASH_H */
