/*
 * conflict_kind.c
 *	  Kinds of conflicts, and their names.
 */
#include "postgres.h"

#include "compat.h"
#include "conflict_kind.h"
#include "nodes/pg_list.h"
#include "utils/varlena.h"

#if HAVE_APPLY_CONFLICTS
#include "replication/conflict.h"

StaticAssertDecl((int) KIND_INSERT_EXISTS == (int) CT_INSERT_EXISTS &&
				 (int) KIND_UPDATE_ORIGIN_DIFFERS == (int) CT_UPDATE_ORIGIN_DIFFERS &&
				 (int) KIND_UPDATE_EXISTS == (int) CT_UPDATE_EXISTS &&
				 (int) KIND_UPDATE_MISSING == (int) CT_UPDATE_MISSING &&
				 (int) KIND_DELETE_ORIGIN_DIFFERS == (int) CT_DELETE_ORIGIN_DIFFERS &&
				 (int) KIND_DELETE_MISSING == (int) CT_DELETE_MISSING &&
				 (int) KIND_MULTIPLE_UNIQUE_CONFLICTS == (int) CT_MULTIPLE_UNIQUE_CONFLICTS,
				 "conflicts are numbered as the server does");
#endif

static const char *const names[NUM_CONFLICT_KINDS] = {
	[KIND_INSERT_EXISTS] = "insert_exists",
	[KIND_UPDATE_ORIGIN_DIFFERS] = "update_origin_differs",
	[KIND_UPDATE_EXISTS] = "update_exists",
	[KIND_UPDATE_MISSING] = "update_missing",
	[KIND_DELETE_ORIGIN_DIFFERS] = "delete_origin_differs",
	[KIND_DELETE_MISSING] = "delete_missing",
	[KIND_MULTIPLE_UNIQUE_CONFLICTS] = "multiple_unique_conflicts",
	[KIND_PARENT_MISSING] = "parent_missing",
};

const char *
conflict_kind_name(ConflictKind kind)
{
	return names[kind];
}

/* Returns false if there is no such kind. */
bool
conflict_kind_parse(const char *name, ConflictKind *kind)
{
	for (int i = 0; i < NUM_CONFLICT_KINDS; i++)
	{
		if (strcmp(names[i], name) == 0)
		{
			*kind = (ConflictKind) i;
			return true;
		}
	}
	return false;
}

/*
 * Reads weft.conflict_history_types: "all", "none", or a list of kinds.  Returns
 * false if it is something else, else sets a bit in *types for each of them.
 */
bool
conflict_kinds_parse(const char *value, uint32 *types)
{
	char	   *copy = pstrdup(value);
	List	   *names;
	ListCell   *cell;

	*types = 0;
	if (!SplitIdentifierString(copy, ',', &names))
		return false;
	foreach(cell, names)
	{
		ConflictKind kind;
		const char *name = lfirst(cell);

		if (list_length(names) == 1 && strcmp(name, "none") == 0)
			continue;
		if (list_length(names) == 1 && strcmp(name, "all") == 0)
			*types = ~(uint32) 0;
		else if (conflict_kind_parse(name, &kind))
			*types |= (uint32) 1 << kind;
		else
			return false;
	}
	list_free(names);
	pfree(copy);
	return true;
}
