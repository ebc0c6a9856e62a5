/*
 * fast_relation.h
 *	  The fast path: what is known of a relation, and kept open of its table.
 */
#ifndef WEFT_FAST_RELATION_H
#define WEFT_FAST_RELATION_H

#include "access/genam.h"
#include "access/skey.h"
#include "fast/fast_column.h"
#include "fast/fast_context.h"
#include "fast/leaf_map.h"
#include "lib/ilist.h"
#include "nodes/execnodes.h"
#include "relation_stats.h"
#include "replication/logicalproto.h"
#include "row_time.h"
#include "utils/snapshot.h"

/* At most this many rows of a table are stored at a time. */
#define FAST_MAX_GATHERED 64

/* A remote relation, as far as the fast path needs it. */
typedef struct FastRelation
{
	LogicalRepRelId remote_relid;	/* hash key */

	/*
	 * What was found out about the local table, kept from transaction to
	 * transaction.  Valid until the table or the remote relation changes.
	 */
	bool		valid;
	bool		changed;		/* while it is being described */
	Oid			local_relid;
	MemoryContext context;		/* of everything that is kept */
	const char *reason;			/* why the general path; NULL: the fast one */
	bool		partitioned;
	List	   *partitions;		/* OIDs, of all levels, with its own; NIL
								 * until they are known */
	bool		fires_triggers; /* it or a partition, so a change must see all
								 * earlier ones */
	const char *insert_reason;	/* why the general path for INSERT */
	const char *key_reason;		/* why for UPDATE and DELETE */
	Bitmapset  *watched;		/* columns that decide conflicts, from 0; an
								 * update that changes one takes the general
								 * path */
	int			num_columns;	/* that are sent */
	FastColumn *columns;		/* in the order in which they are sent */
	bool		own_order;		/* only changes of one row need their order */
	bool		coalesces;		/* an update can be superseded by a later one */
	bool		checks_deletes; /* an inserted row may have been deleted
								 * before (conflict/plain_row.c) */
	Oid			index;			/* to find rows by */
	int			num_keys;
	int			key_columns[INDEX_MAX_KEYS];	/* local, from 0 */
	RowTimeKey	time_key;		/* the same, for group_times.c */
	ScanKeyData keys[INDEX_MAX_KEYS];
	LeafMap    *leaf_map;		/* NULL: rows are found by the index only */

	/* Valid while the table is open, within one local transaction. */
	Relation	rel;			/* NULL: not open */
	dlist_node	open_node;
	EState	   *estate;
	ResultRelInfo *info;
	Relation	key_index;		/* NULL until a row is looked for */
	IndexScanDesc scan;			/* NULL until the index is descended */
	SnapshotData dirty;			/* that of the scan */
	Size		row_length;		/* of the last row that was found */
	uint32		key_hash;		/* of the row that is looked for */
	ItemPointerData last;		/* place of the last row that was found */
	int			in_a_row;		/* rows that were found one behind the other */
	TupleTableSlot *found;		/* the row that was looked for */
	TupleTableSlot *row;		/* its next version */
	AclMode		allowed;		/* privileges that were checked */

	/* Rows that are to be inserted, but not stored yet; see fast_insert.c. */
	int			num_gathered;
	int			num_slots;		/* that were made */
	TupleTableSlot *gathered[FAST_MAX_GATHERED];
	MemoryContext gathered_context; /* of their values */

	/* Rows that were applied and not reported; see row_count.c. */
	RelationCounts counts;		/* includes those of the current attempt */
	RelationCounts counts_before;	/* when "attempt" first touched it */
	uint64		attempt;
	bool		unreported;		/* it is in the list of those to report */
	slist_node	unreported_node;
} FastRelation;

/*
 * Those with an open table.  A global because an error in any of them closes all of
 * them, and because all are closed before the commit.
 */
extern dlist_head fast_relations_open;

extern void fast_relation_init(void);
extern FastRelation *fast_relation_find(LogicalRepRelId relid);
extern bool fast_relation_known(const FastRelation *relation, bool insert);

#endif							/* WEFT_FAST_RELATION_H */
