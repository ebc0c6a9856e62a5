/*
 * names.c
 *	  The names of conflicts and resolvers, as users write them.
 */
#include "postgres.h"

#include "compat.h"
#include "conflict/conflict.h"

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

static const char *const kinds[NUM_CONFLICT_KINDS] = {
	[KIND_INSERT_EXISTS] = "insert_exists",
	[KIND_UPDATE_ORIGIN_DIFFERS] = "update_origin_differs",
	[KIND_UPDATE_EXISTS] = "update_exists",
	[KIND_UPDATE_MISSING] = "update_missing",
	[KIND_DELETE_ORIGIN_DIFFERS] = "delete_origin_differs",
	[KIND_DELETE_MISSING] = "delete_missing",
	[KIND_MULTIPLE_UNIQUE_CONFLICTS] = "multiple_unique_conflicts",
	[KIND_PARENT_MISSING] = "parent_missing",
};

static const char *const resolvers[NUM_RESOLVERS] = {
	[RESOLVER_LAST_UPDATE_WINS] = "last_update_wins",
	[RESOLVER_APPLY_REMOTE] = "apply_remote",
	[RESOLVER_KEEP_LOCAL] = "keep_local",
	[RESOLVER_SKIP] = "skip",
	[RESOLVER_ERROR] = "error",
};

static int
find(const char *const *names, int count, const char *name)
{
	for (int i = 0; i < count; i++)
		if (strcmp(names[i], name) == 0)
			return i;
	return -1;
}

const char *
conflict_kind_name(ConflictKind kind)
{
	return kinds[kind];
}

/* Returns false if there is no such kind. */
bool
conflict_kind_parse(const char *name, ConflictKind *kind)
{
	int			found = find(kinds, NUM_CONFLICT_KINDS, name);

	*kind = (ConflictKind) Max(found, 0);
	return found >= 0;
}

const char *
conflict_resolver_name(ConflictResolver resolver)
{
	return resolvers[resolver];
}

/* Returns false if there is no such resolver. */
bool
conflict_resolver_parse(const char *name, ConflictResolver *resolver)
{
	int			found = find(resolvers, NUM_RESOLVERS, name);

	*resolver = (ConflictResolver) Max(found, 0);
	return found >= 0;
}
