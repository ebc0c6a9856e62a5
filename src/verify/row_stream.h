/*
 * row_stream.h
 *	  The rows of a query on one side, a few at a time.
 */
#ifndef WEFT_VERIFY_ROW_STREAM_H
#define WEFT_VERIFY_ROW_STREAM_H

#include "replication/walreceiver.h"
#include "utils/portal.h"
#include "verify/published_table.h"

typedef struct RowStream
{
	CompareSide side;
	WalReceiverConn *conn;		/* only SIDE_PUBLISHER */
	Portal		portal;			/* only SIDE_LOCAL */
	int			columns;
	int			batch;			/* rows to fetch at a time */
	MemoryContext context;		/* of the current batch */
	List	   *rows;			/* of char **: a value is NULL if it is null */
	int			next;			/* index in "rows" */
	bool		at_end;
} RowStream;

extern void row_stream_open(RowStream *stream, CompareSide side, WalReceiverConn *conn,
							const char *query, int columns, int batch);
extern char **row_stream_next(RowStream *stream);
extern void row_stream_close(RowStream *stream);

#endif							/* WEFT_VERIFY_ROW_STREAM_H */
