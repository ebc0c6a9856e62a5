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

/* 19 has another order than 18. */
static const int server_kinds[LAST_SERVER_KIND + 1] = {
	[KIND_INSERT_EXISTS] = CT_INSERT_EXISTS,
	[KIND_UPDATE_ORIGIN_DIFFERS] = CT_UPDATE_ORIGIN_DIFFERS,
	[KIND_UPDATE_EXISTS] = CT_UPDATE_EXISTS,
	[KIND_UPDATE_MISSING] = CT_UPDATE_MISSING,
	[KIND_DELETE_ORIGIN_DIFFERS] = CT_DELETE_ORIGIN_DIFFERS,
	[KIND_DELETE_MISSING] = CT_DELETE_MISSING,
	[KIND_MULTIPLE_UNIQUE_CONFLICTS] = CT_MULTIPLE_UNIQUE_CONFLICTS,
};

/* Returns the server's number of a kind, up to LAST_SERVER_KIND. */
int
conflict_kind_of_server(ConflictKind kind)
{
	return server_kinds[kind];
}
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
