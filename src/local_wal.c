/*
 * local_wal.c
 *	  The end of the local WAL.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "local_wal.h"

/* Returns the end of the local WAL, as a position up to which it can be flushed. */
XLogRecPtr
local_wal_end(void)
{
	XLogRecPtr	end = GetXLogInsertRecPtr();
	uint64		header = XLogSegmentOffset(end, wal_segment_size) < XLOG_BLCKSZ ?
		SizeOfXLogLongPHD : SizeOfXLogShortPHD;

	/* On a new page, the position is behind a header that does not exist yet. */
	return end % XLOG_BLCKSZ == header ? end - header : end;
}
