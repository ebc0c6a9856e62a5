/*
 * resolver.h
 *	  Conflict resolvers and their names.
 */
#ifndef WEFT_RESOLVER_H
#define WEFT_RESOLVER_H

typedef enum ConflictResolver
{
	RESOLVER_LAST_UPDATE_WINS,
	RESOLVER_APPLY_REMOTE,
	RESOLVER_KEEP_LOCAL,
	RESOLVER_SKIP,
	RESOLVER_ERROR,
} ConflictResolver;

extern const char *conflict_resolver_name(ConflictResolver resolver);
extern bool conflict_resolver_parse(const char *name, ConflictResolver *resolver);

#endif							/* WEFT_RESOLVER_H */
