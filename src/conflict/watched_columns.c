/*
 * watched_columns.c
 *	  Columns that can bring a row into conflict with other rows.
 */
#include "postgres.h"

#include "conflict/unique_index.h"
#include "conflict/watched_columns.h"
#include "utils/rel.h"

/*
 * Returns the columns of a table, numbered from 0, a change of which may be a conflict
 * even if the publisher was the last to write the row: those that unique values and
 * foreign keys depend on.  The key's columns are not among them.
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
