/*
 * recent.c
 *	  The times of rows that were changed recently.
 *
 * If two members change the same row, the later change wins on all members.  Therefore a
 * node that applies a change must know when and where the row was changed last, and the copy
 * of a table does not contain that (data.c).
 *
 * Usually that does no harm.  J copies M.  Consider a change of X that M had not applied
 * when the snapshot was taken.  It was committed on X after X's slot for J was made, because
 * the join has made M apply everything before that.  So it is later than any change of the
 * row that was made long before that, and it takes effect on J, as on M.  But it may be
 * earlier than a change that M made, or received from elsewhere, between the slot and the
 * snapshot.  Then M keeps the row as it is, and J must do the same.
 *
 * Therefore rows that were changed on M since X's slot was made get their times back; so do
 * rows changed shortly before that, because clocks and the order of commits do not match
 * exactly.  The rows of each such transaction are written again on J, unchanged, in a
 * transaction with the original commit time and with the origin that stands for the node
 * (recent_rows.c).  It is like any other transaction that is applied from there, and is not
 * sent to others.  That happens after the copy and before anything is applied.  Rows that
 * were changed on J meanwhile have a time already.
 *
 * This takes one transaction for each transaction of a few seconds on M.  Their commits need
 * not be flushed, since weft.join_recent says what remains to be done.
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "local_query.h"
#include "group/recent.h"
#include "group/recent_rows.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* How many transactions are read from the table at a time. */
#define BATCH "500"

/* Returns the next transactions, with their times as text and as numbers. */
static List *
next_batch(MemoryContext context)
{
	MemoryContext old;
	List	   *result;

	StartTransactionCommand();
	old = MemoryContextSwitchTo(context);
	result = local_rows("SELECT DISTINCT r.changed::text, r.node_name, o.roident,"
						" (EXTRACT(epoch FROM r.changed) * 1000000)::bigint - 946684800000000"
						" FROM weft.join_recent r JOIN weft.member_origins() o USING (node_name)"
						" ORDER BY 3, 4 LIMIT " BATCH, 4);
	MemoryContextSwitchTo(old);
	CommitTransactionCommand();
	return result;
}

/* Makes "origin" the session's origin; a session has one at a time. */
static void
use_origin(RepOriginId origin)
{
	if (replorigin_session_origin == origin)
		return;
	if (replorigin_session_origin != InvalidRepOriginId)
		replorigin_session_reset();
	replorigin_session_origin = InvalidRepOriginId;
	if (origin != InvalidRepOriginId)
		replorigin_session_setup(origin, 0);
	replorigin_session_origin = origin;
}

/* Writes the rows of one transaction again, table by table. */
static void
stamp_tables(const char *changed, const char *node)
{
	List	   *rows = local_rows(psprintf("SELECT relation, row_key FROM weft.join_recent"
										   " WHERE changed = %s AND node_name = %s"
										   " ORDER BY relation",
										   quote_literal_cstr(changed),
										   quote_literal_cstr(node)), 2);
	List	   *keys = NIL;
	Oid			relid = InvalidOid;

	foreach_ptr(LocalValue, row, rows)
	{
		Oid			next = atooid(row[0]);

		if (keys != NIL && next != relid)
		{
			recent_rows_stamp(relid, keys);
			keys = NIL;
		}
		relid = next;
		keys = lappend(keys, row[1]);
	}
	if (keys != NIL)
		recent_rows_stamp(relid, keys);
}

static void
stamp(LocalValue *row)
{
	StartTransactionCommand();
	use_origin(atoi(row[2]));

	/* No position: the changes from there are still to be applied. */
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = strtoll(row[3], NULL, 10);
	stamp_tables(row[0], row[1]);
	local_run(psprintf("SELECT weft.stamped(%s, %s)",
					   quote_literal_cstr(row[0]), quote_literal_cstr(row[1])));
	CommitTransactionCommand();
}

/* Writes all rows in weft.join_recent again; may be repeated after an interruption. */
void
recent_stamp(void)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "weft group stamp",
												  ALLOCSET_DEFAULT_SIZES);
	List	   *rows;

	SetConfigOption("synchronous_commit", "off", PGC_SUSET, PGC_S_OVERRIDE);
	while ((rows = next_batch(context)) != NIL)
	{
		foreach_ptr(LocalValue, row, rows)
		{
			CHECK_FOR_INTERRUPTS();
			stamp(row);
		}
		MemoryContextReset(context);
	}
	StartTransactionCommand();
	use_origin(InvalidRepOriginId);
	CommitTransactionCommand();
	replorigin_session_origin_timestamp = 0;
	SetConfigOption("synchronous_commit", "on", PGC_SUSET, PGC_S_OVERRIDE);
	MemoryContextDelete(context);
}
