/*
 * stream_spool.h
 *	  A transaction that the publisher sends while it is in progress.
 *
 * Kept by stream_spool.c for streams.c.
 */
#ifndef WEFT_STREAM_SPOOL_H
#define WEFT_STREAM_SPOOL_H

#include "lib/stringinfo.h"
#include "nodes/pg_list.h"
#include "receive/leader.h"
#include "ring/spool.h"

/* A relation that a streamed transaction has changed, or has a message of. */
typedef struct StreamedRelation
{
	LogicalRepRelId relid;		/* hash key */
	StringInfo	own;			/* its own newest RELATION message, or NULL */
	uint64		version;		/* of the relation that was written; without
								 * "own" */
	int			natts;			/* of the message that was written */
	bool		written;		/* the spool has the message that is valid now */
	uint64		position;		/* there */
} StreamedRelation;

typedef struct Subtransaction
{
	TransactionId xid;			/* hash key */
	uint64		start;			/* of its first change in the spool */
} Subtransaction;

typedef struct Stream
{
	bool		native;			/* the server's own code applies it */
	TransactionId xid;
	MemoryContext context;		/* of all of this */
	List	   *messages;		/* of StringInfo: its RELATION messages */

	/* The rest is for one that is not native. */
	uint32		number;			/* of its spool */
	StreamShared *shared;		/* or own_entry */
	StreamShared own_entry;
	uint64		written;		/* bytes in the spool */
	uint64		base;			/* of these, when the writers were started */
	HTAB	   *relations;
	List	   *relids;			/* of these */
	StreamedRelation *latest;
	HTAB	   *subtransactions;	/* NULL: there are none */
	TransactionId latest_xid;	/* of the change before */
	bool		truncates;
	SpoolRange *void_ranges;	/* ascending, with something in between */
	int			num_void;
	int			max_void;
	uint64		seq;			/* once it has ended; zero if it was aborted */
} Stream;

extern void stream_create_spool(Stream *stream);
extern void stream_open_spool(Stream *stream);
extern void stream_flush_spool(Stream *stream);
extern void stream_close_spool(Stream *stream);
extern void stream_note_order(uint64 seq);
extern void stream_relation(Stream *stream, const char *payload, int length);
extern void stream_change(Stream *stream, const char *payload, int length);
extern void stream_abort_part(Stream *stream, TransactionId xid);
extern void stream_write_void(Stream *stream);

#endif							/* WEFT_STREAM_SPOOL_H */
