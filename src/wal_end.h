/*
 * wal_end.h
 *	  Where a publisher's WAL ends, in the terms in which it reports what it has sent.
 */
#ifndef WEFT_WAL_END_H
#define WEFT_WAL_END_H

#include "access/xlogdefs.h"

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
