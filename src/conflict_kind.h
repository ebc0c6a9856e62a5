/*
 * conflict_kind.h
 *	  Kinds of conflicts, and their names.
 */
#ifndef WEFT_CONFLICT_KIND_H
#define WEFT_CONFLICT_KIND_H

#include "compat.h"

/* The server's own of 18, then Weft's.  They are stored; the order is Weft's alone. */
typedef enum ConflictKind
{
	KIND_INSERT_EXISTS,
	KIND_UPDATE_ORIGIN_DIFFERS,
	KIND_UPDATE_EXISTS,
	KIND_UPDATE_MISSING,
	KIND_DELETE_ORIGIN_DIFFERS,
	KIND_DELETE_MISSING,
	KIND_MULTIPLE_UNIQUE_CONFLICTS,
	KIND_PARENT_MISSING,		/* is only recorded, never decided */
} ConflictKind;

#define LAST_SERVER_KIND KIND_MULTIPLE_UNIQUE_CONFLICTS
#define NUM_CONFLICT_KINDS (KIND_PARENT_MISSING + 1)

#if HAVE_APPLY_CONFLICTS
extern int	conflict_kind_of_server(ConflictKind kind);
#endif
extern const char *conflict_kind_name(ConflictKind kind);
extern bool conflict_kind_parse(const char *name, ConflictKind *kind);
extern bool conflict_kinds_parse(const char *value, uint32 *kinds);

#endif							/* WEFT_CONFLICT_KIND_H */
