/*
 * stream_spool.h
 *	  What the leader keeps of one streamed transaction.
 */
#ifndef WEFT_STREAM_SPOOL_H
#define WEFT_STREAM_SPOOL_H

#include "lib/stringinfo.h"
#include "nodes/pg_list.h"
#include "replication/logicalproto.h"
#include "ring/spool.h"
#include "shmem.h"
#include "utils/hsearch.h"

/* A relation that a streamed transaction has changed, or has sent a message about. */
typedef struct StreamedRelation
{
	LogicalRepRelId relid;		/* hash key */
	StringInfo	own;			/* the transaction's own newest RELATION
								 * message, or NULL */
	uint64		version;		/* of the relation whose message was written;
								 * without "own" */
	int			natts;			/* of the message that was written */
	bool		written;		/* the spool has the message that is valid now */
	uint64		position;		/* where */
} StreamedRelation;

typedef struct Subtransaction
{
	TransactionId xid;			/* hash key */
	uint64		start;			/* of its first change in the spool */
} Subtransaction;

typedef struct Stream
{
	bool		native;			/* the server's apply loop applies it */
	TransactionId xid;
	MemoryContext context;		/* of all of this */
	List	   *messages;		/* of StringInfo: its RELATION messages */

	/* Of one that is native. */
	bool		can_be_skipped; /* no parallel apply worker has it */
	char		invalid_type;	/* of the message that has a value that is not
								 * valid text */
	int			invalid_column; /* the value's column; zero: all are valid */

	/* The rest is of one that is not native. */
	uint32		number;			/* of its spool */
	StreamShared *shared;		/* an entry that writers see, or own_entry */
	StreamShared own_entry;
	uint64		written;		/* bytes in the spool */
	uint64		base;			/* bytes in it when the writers were started */
	HTAB	   *relations;
	List	   *relids;			/* of these */
	StreamedRelation *latest;
	HTAB	   *subtransactions;	/* NULL: there are none */
	TransactionId latest_xid;	/* of the previous change */
	bool		ddl;			/* it changes the schema */
	bool		alone;			/* it truncates, or changes the schema */
	SpoolRange *void_ranges;	/* ascending, with a gap between any two */
	int			num_void;
	int			max_void;
	uint64		seq;			/* once it has ended; zero if it was aborted */
} Stream;

extern void stream_spool_create(Stream *stream);
extern void stream_spool_open(Stream *stream);
extern void stream_spool_flush(Stream *stream);
extern void stream_spool_close(Stream *stream);
extern void stream_spool_note_order(uint64 seq);
extern const char *stream_spool_relation(Stream *stream, const char *payload, int length);
extern const char *stream_spool_change(Stream *stream, const char *payload, int length);
extern void stream_spool_ddl(Stream *stream, TransactionId xid, const char *json, int length);
extern void stream_spool_abort_part(Stream *stream, TransactionId xid);
extern void stream_spool_finish(Stream *stream);

#endif							/* WEFT_STREAM_SPOOL_H */
