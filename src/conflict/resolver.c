/*
 * resolver.c
 *	  Conflict resolvers and their names.
 */
#include "postgres.h"

#include "conflict/resolver.h"

static const char *const names[] = {
	[RESOLVER_LAST_UPDATE_WINS] = "last_update_wins",
	[RESOLVER_APPLY_REMOTE] = "apply_remote",
	[RESOLVER_KEEP_LOCAL] = "keep_local",
	[RESOLVER_SKIP] = "skip",
	[RESOLVER_ERROR] = "error",
};

const char *
conflict_resolver_name(ConflictResolver resolver)
{
	return names[resolver];
}

/* Returns false if there is no such resolver. */
bool
conflict_resolver_parse(const char *name, ConflictResolver *resolver)
{
	for (int i = 0; i < lengthof(names); i++)
	{
		if (strcmp(names[i], name) == 0)
		{
			*resolver = (ConflictResolver) i;
			return true;
		}
	}
	return false;
}
