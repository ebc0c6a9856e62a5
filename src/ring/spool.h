/*
 * spool.h
 *	  The file that keeps a streamed transaction until it ends.
 *
 * The leader writes it from the first block of the transaction on; writers read it.
 * A record is a header and a payload.  A reader may read all records that end before
 * "written" of the transaction's StreamShared.
 */
#ifndef WEFT_SPOOL_H
#define WEFT_SPOOL_H

#include "storage/fd.h"
#include "storage/fileset.h"

typedef enum SpoolRecordKind
{
	SPOOL_CHANGE,				/* a message without its transaction ID */
	SPOOL_RELATION,				/* a RELATION message, likewise */
	SPOOL_AFTER,				/* a uint64: the records that follow may be
								 * applied once this seq, and thereby all
								 * before it, is committed */
	SPOOL_ABORT,				/* the changes of subtransaction "xid" are
								 * void */
} SpoolRecordKind;

typedef struct SpoolRecord
{
	uint32		length;			/* of the payload */
	uint32		kind;			/* a SpoolRecordKind */
	TransactionId xid;			/* SPOOL_CHANGE, SPOOL_ABORT: subtransaction */
} SpoolRecord;

StaticAssertDecl(sizeof(SpoolRecord) == 12, "a spool record's header has no gaps");

/* A part of the file that belongs to aborted subtransactions. */
typedef struct SpoolRange
{
	uint64		start;
	uint64		end;
} SpoolRange;

/* The leader's end of an open file. */
typedef struct SpoolWriter
{
	FileSet    *files;
	uint32		number;
	uint64		written;		/* bytes in the file, all complete records */
	char	   *buffer;			/* bytes that are not in the file yet */
	int			used;
} SpoolWriter;

/* A reader's end.  It lives as long as the local transaction. */
typedef struct SpoolReader
{
	File		file;
	uint64		position;		/* of the next record */
	char	   *buffer;
	int			size;
	uint64		buffer_start;	/* position of the buffer in the file */
	int			filled;			/* bytes in the buffer */
} SpoolReader;

extern void spool_create(SpoolWriter *writer, FileSet *files, uint32 number);
extern void spool_open(SpoolWriter *writer, FileSet *files, uint32 number, uint64 written);
extern uint64 spool_position(const SpoolWriter *writer);
extern void spool_append(SpoolWriter *writer, SpoolRecordKind kind, TransactionId xid,
						 const char *start, int start_length,
						 const char *rest, int rest_length);
extern void spool_append_ranges(SpoolWriter *writer, const SpoolRange *ranges, int count);
extern void spool_flush(SpoolWriter *writer);
extern void spool_close(void);
extern void spool_delete(FileSet *files, uint32 number);

extern void spool_read_open(SpoolReader *reader, FileSet *files, uint32 number);
extern bool spool_read(SpoolReader *reader, uint64 limit, SpoolRecord *record,
					   char **payload);
extern SpoolRange *spool_read_ranges(SpoolReader *reader, uint64 position, int count);
extern void spool_read_close(SpoolReader *reader);

#endif							/* WEFT_SPOOL_H */
