/*
 * internal.h
 *	  Shared by the files of conflict/ only.
 */
#ifndef WEFT_CONFLICT_INTERNAL_H
#define WEFT_CONFLICT_INTERNAL_H

#include "compat.h"
#include "conflict/conflict.h"
#include "executor/executor.h"
#include "nodes/execnodes.h"
#include "replication/logicalproto.h"
#include "replication/logicalrelation.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

/* When, and where, something was written. */
typedef struct RowVersion
{
	bool		known;			/* else it is older than everything */
	bool		own;			/* by the transaction that is being applied */
	TimestampTz time;
	RepOriginId origin;			/* InvalidRepOriginId: here; or UNKNOWN_ORIGIN */
	int			node;
} RowVersion;

/* Only the node is known, which may have no subscription any more. */
#define UNKNOWN_ORIGIN DoNotReplicateId

/* The transaction that is being applied. */
typedef struct ConflictSession
{
	SubscriptionShared *shared;
	bool		(*wait_oldest) (void);	/* false: somebody needs our locks */
	RowVersion	version;
	TransactionId remote_xid;
	XLogRecPtr	lsn;
	bool		final;			/* conflicts may be decided */
	bool		applying;		/* a change, and not rolled back since */
	uint32		met[NUM_CONFLICT_KINDS];	/* in this attempt */
} ConflictSession;

extern ConflictSession conflict_session;

/* A table that a change is applied to, open. */
typedef struct Target
{
	LogicalRepRelMapEntry *entry;
	Relation	rel;
	Oid			key_index;
	EState	   *estate;
	ResultRelInfo *info;
	EPQState	epq;
	Bitmapset  *deltas;			/* columns that are counters, from 0 */
} Target;

/* A change, as it came. */
typedef struct Remote
{
	char		type;
	bool		has_old;
	bool		old_full;		/* all columns of the old row were sent */
	LogicalRepTupleData old;
	LogicalRepTupleData new;
} Remote;

/* A local row that is in the way of the remote one, locked. */
typedef struct LocalRow
{
	TupleTableSlot *slot;
	RowVersion	version;
	Oid			index;			/* that is violated */
} LocalRow;

/* settings.c */
typedef struct ConflictTables
{
	Oid			history;
	Oid			history_key;	/* its primary key */
	Oid			history_time_index;
	Oid			history_sequence;
	Oid			tombstone;
	Oid			tombstone_key;
	Oid			tombstone_time_index;
	Oid			merged_row;
	Oid			merged_row_key;
	Oid			merged_row_time_index;
	Oid			tombstone_open_index;	/* of those without a time */
	Oid			deleted_counter;
	Oid			deleted_counter_key;
	Oid			deleted_counter_time_index;
	Oid			past_origin;
} ConflictTables;

extern ConflictResolver settings_resolver(ConflictKind kind);
extern int	settings_own_node(void);
extern bool settings_find_node(RepOriginId origin, int *node);
extern int	settings_subscription_node(RepOriginId origin);
extern bool settings_find_past_node(RepOriginId origin, TransactionId xid, int *node);
extern const char *settings_subscription_of(int node);
extern Bitmapset *settings_delta_columns(Relation rel);
extern const ConflictTables *settings_tables(void);

/* version.c */
extern RowVersion version_of_xid(TransactionId xid);
extern RowVersion version_of_local_row(Relation rel, Oid key_index, TupleTableSlot *row);
extern RowVersion version_of_row(Target *target, TupleTableSlot *row);
extern bool version_newer(const RowVersion *version, const RowVersion *than);
extern bool version_wins(const RowVersion *remote, const RowVersion *local);
extern bool version_differs(const RowVersion *local);
extern RowVersion version_newest(List *rows);
extern void version_wait_clock(TimestampTz time);

/* key_hash.c */
extern uint64 key_hash_value(Oid type, Oid collation, Datum value, uint64 seed);

/* tuple.c */
extern void tuple_read(Target *target, TupleTableSlot *slot, LogicalRepTupleData *data);
extern bool tuple_make(Target *target, TupleTableSlot *row, TupleTableSlot *base,
					   const Remote *remote);
extern bool tuple_lacks_values(const Remote *remote);
extern void tuple_add_hash(uint64 *hash, Oid type, Oid collation, Datum value, bool isnull);
extern bool tuple_same_key(Target *target, TupleTableSlot *a, TupleTableSlot *b);
extern pg_uuid_t tuple_key_hash(Relation rel, Oid key_index, TupleTableSlot *slot);
extern Datum tuple_key_jsonb(Target *target, TupleTableSlot *slot);
extern bool tuple_jsonb(TupleTableSlot *slot, Datum *result);
extern Datum tuple_text_jsonb(TupleTableSlot *slot, Oid key_index);

/* delta.c */
extern bool delta_to_numeric(Oid type, Datum value, Datum *result);
extern NullableDatum *delta_differences(Target *target, const Remote *remote);
extern void delta_set(Target *target, TupleTableSlot *row, int column, Datum value,
					  Datum difference);
extern void delta_merge(Target *target, TupleTableSlot *row, TupleTableSlot *local,
						const Remote *remote);

/* deleted_counter.c */
extern void deleted_counter_keep(Relation rel, Oid key_index, Bitmapset *counters,
								 TupleTableSlot *row);
extern void deleted_counter_forget(Target *target, TupleTableSlot *row);
extern void deleted_counter_lock(Target *target, TupleTableSlot *key);
extern void deleted_counter_add(Target *target, TupleTableSlot *key, const Remote *remote);
extern void deleted_counter_take(Target *target, TupleTableSlot *key, TupleTableSlot *row,
								 const Remote *remote);

/* session.c */
extern void conflict_clean_sometimes(void);

/* tombstone.c */
extern bool tombstone_find(Target *target, TupleTableSlot *key, RowVersion *version);
extern void tombstone_write(Target *target, TupleTableSlot *key, const RowVersion *version);
extern bool tombstone_find_hash(Relation rel, pg_uuid_t *hash, bool uncommitted,
								RowVersion *version);
extern void tombstone_write_hash(Relation rel, pg_uuid_t hash, const RowVersion *version);
extern bool tombstone_add_times(int limit);
extern bool merged_row_find(Relation rel, Oid key_index, TupleTableSlot *row,
							TransactionId xid, RowVersion *version);
extern void merged_row_write(Target *target, TupleTableSlot *row, const RowVersion *version);

/* claim.c */
extern bool claim_is_unique_index(Relation index, Oid key_index);
extern void claim_release(Target *target, TupleTableSlot *local, TupleTableSlot *row);
extern void claim_release_tuple(Relation rel, Oid key_index, TupleTableSlot *old,
								TupleTableSlot *new);
extern void claim_write(Target *target, TupleTableSlot *row, TupleTableSlot *local);
extern bool claim_find(Target *target, TupleTableSlot *row, TupleTableSlot *local,
					   bool uncommitted, LocalRow *result);
extern void claim_check_stored(Target *target, TupleTableSlot *row, TupleTableSlot *local);

extern bool claim_hash(Relation rel, Relation index, TupleTableSlot *row, pg_uuid_t *hash);

/* foreign_key.c */
extern void foreign_key_check(Target *target, TupleTableSlot *row, TupleTableSlot *replaced,
							  bool (*wait_turn) (void));
extern Bitmapset *foreign_key_columns(Relation rel, Bitmapset *columns);

/* unique.c */
extern List *unique_conflicts(Target *target, TupleTableSlot *row, TupleTableSlot *own);

/* history.c */
extern Datum history_key(Target *target, TupleTableSlot *key);
extern void history_record(Target *target, ConflictKind kind, ConflictResolver resolver,
						   bool applied, TupleTableSlot *key, const LocalRow *local,
						   TupleTableSlot *remote_row);

/* store.c */
extern void store_row(Oid relid, const Datum *values, const bool *nulls);
extern void store_remove(Relation rel, HeapTuple tuple, Snapshot snapshot);
extern int	store_remove_old(Oid relid, Oid index, TimestampTz before, int limit);
extern int	store_remove_low(Oid relid, Oid index, int64 keep, int limit);

#endif							/* WEFT_CONFLICT_INTERNAL_H */
