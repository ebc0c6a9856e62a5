/*
 * conflict_types.h
 *	  Types that the modules of conflict/ share.
 */
#ifndef WEFT_CONFLICT_TYPES_H
#define WEFT_CONFLICT_TYPES_H

#include "compat.h"
#include "datatype/timestamp.h"
#include "nodes/execnodes.h"
#include "replication/logicalproto.h"
#include "replication/logicalrelation.h"
#include "replication/origin.h"

/* When and where a row, a tombstone or a claim was written. */
typedef struct RowVersion
{
	bool		known;			/* otherwise it is older than everything */
	bool		own;			/* by the transaction that is being applied */
	TimestampTz time;
	RepOriginId origin;			/* InvalidRepOriginId for this node, or
								 * UNKNOWN_ORIGIN */
	int			node;
} RowVersion;

/* Only the node is known, whose subscription may have been dropped. */
#define UNKNOWN_ORIGIN DoNotReplicateId

/* The open table that a change is applied to. */
typedef struct Target
{
	LogicalRepRelMapEntry *entry;
	Relation	rel;
	Oid			key_index;
	EState	   *estate;
	ResultRelInfo *info;
	EPQState	epq;
	Bitmapset  *deltas;			/* columns that are counters, numbered from 0 */
} Target;

/* A change, as the publisher has sent it. */
typedef struct Remote
{
	char		type;
	bool		has_old;
	bool		old_full;		/* all columns of the old row were sent */
	LogicalRepTupleData old;
	LogicalRepTupleData new;
} Remote;

/*
 * A local row that is in conflict with a remote change.  It is locked; without a slot,
 * it is a tombstone or claim, of which only the version is known.
 */
typedef struct LocalRow
{
	TupleTableSlot *slot;
	RowVersion	version;
	Oid			index;			/* the one that both rows violate, if any */
} LocalRow;

#endif							/* WEFT_CONFLICT_TYPES_H */
