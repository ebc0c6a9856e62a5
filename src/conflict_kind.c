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
 * Reads weft.conflict_history_types: "all", "none", or a list of kinds.  Sets a bit in
 * *kinds for each kind.  Returns false if the value is something else.
 */
bool
conflict_kinds_parse(const char *value, uint32 *kinds)
{
	char	   *copy = pstrdup(value);
	List	   *words;

	*kinds = 0;
	if (!SplitIdentifierString(copy, ',', &words))
		return false;
	foreach_ptr(char, word, words)
	{
		ConflictKind kind;

		if (list_length(words) == 1 && strcmp(word, "none") == 0)
			continue;
		if (list_length(words) == 1 && strcmp(word, "all") == 0)
			*kinds = ~(uint32) 0;
		else if (conflict_kind_parse(word, &kind))
			*kinds |= (uint32) 1 << kind;
		else
			return false;
	}
	list_free(words);
	pfree(copy);
	return true;
}
