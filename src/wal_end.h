/*
 * wal_end.h
 *	  Where a publisher's WAL ends, in the terms in which it reports what it has sent.
 */
#ifndef WEFT_WAL_END_H
#define WEFT_WAL_END_H

#include "access/xlogdefs.h"
#include "remote_query.h"

/*
 * A query that makes a publisher flush what precedes it: it commits a transaction that writes nothing but its commit
 * record.  The server commits such a transaction asynchronously: the WAL writer flushes it after about
 * wal_writer_delay.
 */
#define WAL_END_FLUSH_QUERY "SELECT pg_catalog.txid_current()::pg_catalog.text" REMOTE_WITHOUT_STANDBYS

/* What a publisher has answered; each is a text, or NULL. */
typedef struct WalEndAnswer
{
	const char *insert_lsn;
	const char *flush_lsn;
	const char *block_size;		/* wal_block_size */
} WalEndAnswer;

typedef struct WalEnd
{
	XLogRecPtr	lsn;
	bool		flushed;		/* is everything before it flushed there? */
} WalEnd;

extern WalEnd wal_end_get(const WalEndAnswer *answer);

#endif							/* WEFT_WAL_END_H */
