/*
 * conflict_types.h
 *	  Types that the modules of conflict/ share.
 */
#ifndef WEFT_CONFLICT_TYPES_H
#define WEFT_CONFLICT_TYPES_H

#include "datatype/timestamp.h"
#include "nodes/execnodes.h"
#include "replication/logicalproto.h"
#include "replication/logicalrelation.h"
#include "replication/origin.h"

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

#endif							/* WEFT_CONFLICT_TYPES_H */
