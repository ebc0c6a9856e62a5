/*
 * wal_end.c
 *	  Where a publisher's WAL ends, in the terms in which it reports what it has sent.
 *
 * The end is the insert position, because transactions that were committed asynchronously
 * count, too.  If it is right after the header of a page that contains no record yet, then the
 * position that is sent will never reach it: the last record ends where the page begins.
 */
#include "postgres.h"

#include "remote_query.h"
#include "utils/builtins.h"
#include "wal_end.h"

/* The length of the longest header of a WAL page. */
#define LONGEST_PAGE_HEADER 40

WalEnd
wal_end_get(const WalEndAnswer *answer)
{
	WalEnd		end = {.lsn = remote_lsn(answer->insert_lsn)};
	uint64		block = answer->block_size ? pg_strtoint32(answer->block_size) : 0;

	if (block > 0 && end.lsn % block <= LONGEST_PAGE_HEADER)
		end.lsn -= end.lsn % block;
	end.flushed = end.lsn <= remote_lsn(answer->flush_lsn);
	return end;
}
