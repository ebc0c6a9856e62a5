/*
 * look_ahead.c
 *	  Showing the changes that come next to the fast path.
 *
 * A second cursor reads the ring ahead of the writer's own, up to the end of what the
 * writer has taken: those records stay in the ring until it has committed them.  The
 * fast path prefetches what the changes need (fast/prefetch.c).
 */
#include "postgres.h"

#include "apply/column_filter.h"
#include "apply/look_ahead.h"
#include "fast/prefetch.h"
#include "replication/logicalproto.h"

/* At most this many records are read ahead at a time, whatever they are. */
#define MAX_RECORDS 64

typedef struct LookAhead
{
	RingCursor	cursor;
	bool		in_pieces;		/* the record there continues a message */
} LookAhead;

/* The second cursor; a global like the writer's own. */
static LookAhead ahead;

/* Reads the next record; returns false if there is none. */
static bool
read_record(uint64 end, const RingRecordHeader **header, const char **payload)
{
	RingReadResult result;

	while ((result = ring_read(&ahead.cursor, header, payload)) == RING_READ_END &&
		   ahead.cursor.seq < end)
	{
		ring_rewind(&ahead.cursor, ahead.cursor.ring, ahead.cursor.seq + 1);
		ahead.in_pieces = false;
	}
	return result == RING_READ_RECORD;
}

/* Shows changes to the fast path until that has enough of them. */
static void
look_for_changes(uint64 end)
{
	const RingRecordHeader *header;
	const char *payload;
	bool		wanted = true;

	for (int i = 0; i < MAX_RECORDS && wanted && read_record(end, &header, &payload); i++)
	{
		bool		whole = !ahead.in_pieces && !(header->flags & RING_MORE);

		if (header->kind != RING_MESSAGE)
			continue;
		ahead.in_pieces = (header->flags & RING_MORE) != 0;
		if (whole && (payload[0] == LOGICAL_REP_MSG_UPDATE ||
					  payload[0] == LOGICAL_REP_MSG_DELETE))
		{
			RowChange	change = row_change_read(payload, header->length);

			if (!column_filter_has(change.relid))
				wanted = prefetch_add(&change, ahead.cursor.position);
		}
	}
}

/*
 * Called before the writer reads each record: the one at "cursor", which continues a
 * message if "in_pieces" is set.  It has taken the transactions up to "end".
 */
void
look_ahead(const RingCursor *cursor, uint64 end, bool in_pieces)
{
	if (ahead.cursor.ring != cursor->ring || ahead.cursor.seq < cursor->seq ||
		ahead.cursor.seq > end || ahead.cursor.position < cursor->position)
	{
		ahead.cursor = *cursor;
		ahead.in_pieces = in_pieces;
		prefetch_forget();
	}
	if (prefetch_advance(cursor->position))
		look_for_changes(end);
	prefetch_next();
}
