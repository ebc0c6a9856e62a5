/*
 * copy_reader.h
 *	  Data of COPY TO on another server, as COPY FROM wants it.
 */
#ifndef WEFT_COPY_READER_H
#define WEFT_COPY_READER_H

#include "replication/walreceiver.h"
#include "storage/latch.h"

typedef struct CopyReader
{
	WalReceiverConn *conn;
	const char *data;			/* what is left of the current message */
	int			length;
	WaitEventSet *events;		/* for the connection's socket */
	pgsocket	socket;
} CopyReader;

typedef enum CopyReadResult
{
	COPY_READ_MESSAGE,			/* is the current one now */
	COPY_READ_NOTHING_YET,
	COPY_READ_END,				/* of this COPY TO */
} CopyReadResult;

/*
 * Makes the next message the current one; returns false at the end of the data, and,
 * unless it may wait, if nothing has arrived yet.
 */
typedef bool (*CopyReadNext) (bool may_wait);

extern void copy_reader_start(CopyReader *reader, WalReceiverConn *conn);
extern CopyReadResult copy_reader_receive(CopyReader *reader, bool may_wait);
extern int	copy_reader_read(CopyReader *reader, CopyReadNext next, void *buffer,
							 int min_read, int max_read);
extern void copy_reader_end(CopyReader *reader);

#endif							/* WEFT_COPY_READER_H */
