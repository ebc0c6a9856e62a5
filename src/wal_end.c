/*
 * wal_end.c
 *	  Where a publisher's WAL ends, in the terms in which it reports what it has sent.
 *
 * The end is the insert position, because transactions that were committed asynchronously
 * count, too.  If it is right after the header of a page that contains no record yet, then the
 * position that is sent will never reach it: the last record ends where the page begins.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "wal_end.h"

/* The length of the longest header of a WAL page. */
#define LONGEST_PAGE_HEADER 40

static XLogRecPtr
parse_lsn(const char *text)
{
	if (text == NULL)
		return InvalidXLogRecPtr;
	return DatumGetLSN(DirectFunctionCall1(pg_lsn_in, CStringGetDatum(text)));
}

WalEnd
wal_end_get(const WalEndAnswer *answer)
{
	WalEnd		end = {.lsn = parse_lsn(answer->insert_lsn)};
	uint64		block = answer->block_size ? pg_strtoint32(answer->block_size) : 0;

	if (block > 0 && end.lsn % block <= LONGEST_PAGE_HEADER)
		end.lsn -= end.lsn % block;
	end.flushed = end.lsn <= parse_lsn(answer->flush_lsn);
	return end;
}
