/*
 * fast.h
 *	  The fast path: rows of ordinary tables, straight through the table's
 *	  access method.
 *
 * Shared by the files fast_*.c; the other files of apply/ use the functions at the
 * end only.
 */
#ifndef WEFT_FAST_H
#define WEFT_FAST_H

#include "access/genam.h"
#include "access/skey.h"
#include "common/hashfn.h"
#include "executor/executor.h"
#include "lib/ilist.h"
#include "nodes/execnodes.h"
#include "relation_stats.h"
#include "replication/logicalproto.h"
#include "utils/snapshot.h"
#include "utils/usercontext.h"
#include "wire.h"

typedef struct FastInput
{
	FmgrInfo	function;		/* fn_oid is invalid until it is needed */
	Oid			param;
} FastInput;

/* So many rows of a table are stored at a time. */
#define FAST_MAX_GATHERED 64

/* How the values of a local column are made of what is sent. */
typedef struct FastColumn
{
	int			local;			/* its index in the local table, from 0 */
	Oid			type;
	int32		typmod;
	int			fixed_length;	/* of the binary form, if that is just a
								 * number */
	bool		is_key;			/* of the key that rows are found by */
	bool		is_indexed;		/* by any index */
	bool		can_be_read;	/* whatever is left out, to see if it is valid */
	FastInput	text_input;
	FastInput	binary_input;
} FastColumn;

/* What is known of an index's leaf pages; see leaf_map.c. */
typedef struct FastLeaves FastLeaves;

/* So many places of rows with one key are looked at without the index. */
#define FAST_MAX_PLACES 4

/* A remote relation, as far as the fast path needs it. */
typedef struct FastRelation
{
	LogicalRepRelId remote_relid;	/* hash key */

	/*
	 * What was found out about the local table, kept from transaction to
	 * transaction.  Valid until the table or the remote relation changes.
	 */
	bool		valid;
	Oid			local_relid;
	MemoryContext context;		/* of all that is kept */
	const char *reason;			/* why the general path; NULL: the fast one */
	bool		fires_triggers; /* so a change must see all earlier ones */
	const char *insert_reason;	/* why for INSERT */
	const char *key_reason;		/* why for UPDATE and DELETE */
	Bitmapset  *watched;		/* columns that decide conflicts, from 0; an
								 * update that changes one is not for us */
	int			num_columns;	/* that are sent */
	FastColumn *columns;		/* in the order in which they are sent */
	bool		own_order;		/* only changes of one row need their order */
	bool		coalesces;		/* an update can be needless */
	Oid			index;			/* to find rows by */
	int			num_keys;
	int			key_columns[INDEX_MAX_KEYS];	/* local, from 0 */
	ScanKeyData keys[INDEX_MAX_KEYS];
	FastLeaves *leaves;			/* NULL: rows are found by the index only */

	/* Valid while the table is open, within one local transaction. */
	Relation	rel;			/* NULL: not open */
	dlist_node	open_node;
	EState	   *estate;
	ResultRelInfo *info;
	Relation	key_index;		/* NULL until a row is looked for */
	IndexScanDesc scan;			/* NULL until the index is gone down */
	SnapshotData dirty;			/* that of the scan */
	Size		row_length;		/* of the last row that was found */
	uint32		key_hash;		/* of the row that is looked for */
	ItemPointerData last;		/* place of the last row that was found */
	int			in_a_row;		/* rows that were found behind each other */
	TupleTableSlot *found;		/* the row that was looked for */
	TupleTableSlot *row;		/* what becomes of it */
	AclMode		allowed;		/* privileges that were checked */

	/* Rows that are to be inserted, but not stored yet; see fast_insert.c. */
	int			num_gathered;
	int			num_slots;		/* that were made */
	TupleTableSlot *gathered[FAST_MAX_GATHERED];
	MemoryContext gathered_context; /* of their values */

	/* Rows that were applied and not reported; those of the attempt, too. */
	RelationCounts counts;
	RelationCounts counts_before;	/* the attempt that touched it last */
	uint64		attempt;
	bool		unreported;		/* it is in that list */
	slist_node	unreported_node;
} FastRelation;

/* fast_table.c */
extern dlist_head fast_open_relations;

extern FastRelation *fast_open(LogicalRepRelId relid);
extern FastRelation *fast_find_relation(LogicalRepRelId relid);
extern bool fast_known(LogicalRepRelId relid, bool insert);
extern FastRelation *fast_look_up(LogicalRepRelId relid);
extern void fast_forget_open(void);

/* fast_column.c */
extern void fast_describe_values(FastColumn *column, Oid type, int32 typmod);
extern bool fast_make_value(FastRelation *relation, FastColumn *column, const WireColumn *sent,
							Datum *value, bool *isnull);
extern bool fast_read_integer(const FastColumn *column, const WireColumn *sent, int64 *value);

/* The number that an integer of so many bytes is. */
static inline int64
fast_integer(Datum value, int length)
{
	switch (length)
	{
		case sizeof(int16):
			return DatumGetInt16(value);
		case sizeof(int32):
			return DatumGetInt32(value);
		default:
			return DatumGetInt64(value);
	}
}

/* The hash of a key's first column, or one more with the hash so far. */
static inline uint32
fast_hash_key(uint32 hash, const WireColumn *sent)
{
	return hash_combine(hash, hash_bytes((const unsigned char *) sent->data, sent->length));
}

/* lookup.c */
extern bool fast_find(FastRelation *relation);
extern bool fast_has_key(FastRelation *relation, TupleTableSlot *row);
extern void fast_forget_places(FastRelation *relation);
extern bool fast_place_known(FastRelation *relation, uint32 key_hash);
extern void fast_remember_place(FastRelation *relation, uint32 key_hash, ItemPointerData tid,
								Buffer buffer);

/* recent_buffer.c */
extern Buffer fast_read_buffer(Relation rel, BlockNumber block, Buffer *recent);
extern void fast_ask_for_page(Buffer buffer, OffsetNumber offset);

/* So much memory is asked for at a time. */
#define FAST_CACHE_LINE 64

/* Asks the processor to have memory ready that is needed soon; any address will do. */
static inline void
fast_ask_for(const void *memory)
{
	__builtin_prefetch(memory);
}

/* leaf_map.c */
extern FastLeaves *fast_describe_leaves(Relation index);
extern void fast_forget_leaves(FastLeaves *leaves);
extern int64 fast_leaf_key(const FastLeaves *leaves, Datum value);
extern int	fast_places_by_leaf(FastLeaves *leaves, Relation index, int64 key,
								ItemPointerData *places);
extern bool fast_leaves_worth(const FastLeaves *leaves);
extern void fast_ask_for_leaf(FastLeaves *leaves, Relation index, int64 key);

/* key_order.c */
extern bool fast_describe_order(FastRelation *relation, Relation rel);

/* coalesce.c */
extern bool fast_describe_coalescing(FastRelation *relation, Relation rel);

/* fast_insert.c */
extern TupleTableSlot *fast_gather(FastRelation *relation);
extern void fast_store(FastRelation *relation);

/* fast_row.c */
extern void fast_enter(LogicalRepRelId relid);
extern void fast_leave(void);
extern bool fast_become_owner(FastRelation *relation, UserContext *context);

/* row_count.c */
extern void fast_count_touch(FastRelation *relation);
extern void fast_count_undo(void);

/*
 * What may be done with a change whose turn it is while others, which came before
 * it, have been put aside.
 */
typedef enum FastOrder
{
	FAST_ORDER_STRICT,			/* nothing: they come first */
	FAST_ORDER_OF_TABLE,		/* it may be applied, if none is of its table */
	FAST_ORDER_OF_ROW,			/* the same, if none is of its row; it may be
								 * put aside itself */
} FastOrder;

/* For the other files of apply/. */
extern void fast_init(void);
extern void fast_relation_changed(LogicalRepRelId relid);
extern void fast_store_all(void);
extern void fast_close_all(void);

extern void fast_look_ahead(void);
extern bool fast_apply(const char *message, int length);
extern FastOrder fast_order(const char *message, int length);
extern bool fast_may_coalesce(const char *message, int length, uint32 *row);
extern bool fast_makes_needless(const char *later, int later_length,
								const char *earlier, int earlier_length);
extern void fast_prepare(void);
extern void fast_renew_snapshot(void);
extern bool fast_in_progress(void);
extern bool fast_ready(LogicalRepRelId relid);
extern void fast_before_commit(void);
extern void fast_after_subabort(void);
extern LogicalRepRelId fast_after_abort(void);

extern void fast_count_begin(void);
extern void fast_count_general(LogicalRepRelId relid, char type);
extern void fast_count_needless(const char *message, int length);
extern bool fast_count_report(bool force);

#endif							/* WEFT_FAST_H */
