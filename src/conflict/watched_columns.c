/*
 * watched_columns.c
 *	  Columns of which a change may be a conflict.
 */
#include "postgres.h"

#include "conflict/unique_index.h"
#include "conflict/watched_columns.h"
#include "utils/rel.h"

/*
 * Returns the columns of a table, from 0, of which a change may be a conflict, though
 * the row was last written by the publisher; the key's aside.
 */
Bitmapset *
conflict_watched_columns(Relation rel)
{
	Bitmapset  *result = conflict_unique_columns(rel);

	foreach_ptr(ForeignKeyCacheInfo, key, RelationGetFKeyList(rel))
	{
		for (int i = 0; i < key->nkeys; i++)
			result = bms_add_member(result, key->conkey[i] - 1);
	}
	return result;
}
