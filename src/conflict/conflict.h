/*
 * conflict.h
 *	  Conflicts between what is applied and what has been done here.
 *
 * For the writers (apply/) and for the SQL functions (api/).
 */
#ifndef WEFT_CONFLICT_H
#define WEFT_CONFLICT_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "executor/tuptable.h"
#include "replication/origin.h"
#include "shmem.h"
#include "utils/relcache.h"

/* In the order of the server's own, from 18 on, then ours. */
typedef enum ConflictKind
{
	KIND_INSERT_EXISTS,
	KIND_UPDATE_ORIGIN_DIFFERS,
	KIND_UPDATE_EXISTS,
	KIND_UPDATE_MISSING,
	KIND_DELETE_ORIGIN_DIFFERS,
	KIND_DELETE_MISSING,
	KIND_MULTIPLE_UNIQUE_CONFLICTS,
	KIND_PARENT_MISSING,		/* is recorded, and nothing to be decided */
} ConflictKind;

#define LAST_SERVER_KIND KIND_MULTIPLE_UNIQUE_CONFLICTS

StaticAssertDecl(KIND_PARENT_MISSING + 1 == NUM_CONFLICT_KINDS,
				 "every kind of conflict is counted");

typedef enum ConflictResolver
{
	RESOLVER_LAST_UPDATE_WINS,
	RESOLVER_APPLY_REMOTE,
	RESOLVER_KEEP_LOCAL,
	RESOLVER_SKIP,
	RESOLVER_ERROR,
} ConflictResolver;

#define NUM_RESOLVERS (RESOLVER_ERROR + 1)

/* names.c */
extern const char *conflict_kind_name(ConflictKind kind);
extern bool conflict_kind_parse(const char *name, ConflictKind *kind);
extern const char *conflict_resolver_name(ConflictResolver resolver);
extern bool conflict_resolver_parse(const char *name, ConflictResolver *resolver);

/* session.c: what a writer calls */
extern void conflict_init(SubscriptionShared *shared, bool (*wait_oldest) (void));
extern void conflict_attempt(void);
extern void conflict_begin(TimestampTz commit_time, TransactionId xid, XLogRecPtr lsn);
extern void conflict_committed(void);
extern bool conflict_may_retry(int sqlerrcode);
extern long conflict_clean(void);

/* apply.c */
extern bool conflict_apply(const char *message, int length, bool final);

/* version.c */
extern bool conflict_origin_differs(TupleTableSlot *row);

/* settings.c */
extern bool conflict_has_delta_columns(Oid relid);

/* claim.c */
extern Bitmapset *conflict_unique_columns(Relation rel);
extern Bitmapset *conflict_watched_columns(Relation rel);

/* past_origin.c: what a dropped subscription leaves */
typedef struct ConflictLegacy
{
	RepOriginId origin;
	int			node;
} ConflictLegacy;

extern ConflictLegacy conflict_legacy(const char *subscription);
extern void conflict_leave(ConflictLegacy legacy);

/* history.c */
extern bool conflict_parse_history_types(const char *value, uint32 *types);

#endif							/* WEFT_CONFLICT_H */
