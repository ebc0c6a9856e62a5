/*
 * row_key.c
 *	  Hashes of the keys of rows.
 */
#include "postgres.h"

#include "access/genam.h"
#include "common/hashfn.h"
#include "conflict/key_hash.h"
#include "conflict/row_key.h"
#include "utils/rel.h"

/* Adds a value to a 128-bit hash. */
void
row_key_add(uint64 *hash, Oid type, Oid collation, Datum value, bool isnull)
{
	for (int i = 0; i < 2; i++)
		hash[i] = hash_combine64(hash[i],
								 isnull ? 0 : key_hash_value(type, collation, value, i + 1));
}

/* Returns a hash of the columns of a row that an index of its table contains. */
pg_uuid_t
row_key_hash(Relation rel, Oid key_index, TupleTableSlot *slot)
{
	Relation	index = index_open(key_index, AccessShareLock);
	uint64		hash[2] = {0, 0};
	pg_uuid_t	result;

	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
	{
		AttrNumber	column = index->rd_index->indkey.values[i];
		bool		isnull;
		Datum		value = slot_getattr(slot, column, &isnull);

		row_key_add(hash, TupleDescAttr(RelationGetDescr(rel), column - 1)->atttypid,
					index->rd_indcollation[i], value, isnull);
	}
	index_close(index, AccessShareLock);
	StaticAssertStmt(sizeof(hash) == sizeof(result), "a hash fills a UUID");
	memcpy(&result, hash, sizeof(result));
	return result;
}

/* Do two rows have the same key? */
bool
row_key_same(Target *target, TupleTableSlot *a, TupleTableSlot *b)
{
	pg_uuid_t	hash_a = row_key_hash(target->rel, target->key_index, a);
	pg_uuid_t	hash_b = row_key_hash(target->rel, target->key_index, b);

	return memcmp(&hash_a, &hash_b, sizeof(pg_uuid_t)) == 0;
}
