/*
 * recent.c
 *	  The times of rows that were changed lately.
 *
 * Of two changes that were made to a row on two members, the later one wins on all
 * of them.  So whoever applies a change must know when the row was changed last,
 * and where; and the copy of a table does not tell (data.c).
 *
 * Mostly that is right.  J copies M.  A change of X that M had not applied when the
 * snapshot was taken was committed on X after X's slot for J was made: we have seen
 * to it that M has all that was before.  It is later than any change of the row
 * that was made long before that, so it takes effect on J, as on M.  But it may be
 * earlier than a change that M made, or had from elsewhere, between the two.  Then
 * M keeps the row as it is, and J must do the same.
 *
 * So the rows that were changed on M since X's slot was made, and a little before,
 * since clocks and the order of commits are no exact match, get their times back:
 * each such transaction's rows are written again here, as they are, in a transaction
 * with its commit time and the origin that stands for its node (recent_rows.c).  It is like any
 * other that is applied from there, and not sent to others.  That is done after the
 * copy and before anything is applied.  Rows that were changed here meanwhile have a
 * time already.
 *
 * It takes one transaction for each of a few seconds' transactions on M.  Their
 * commits need not be flushed: weft.join_recent says what is to be done still.
 */
#include "postgres.h"

#include "access/xact.h"
#include "group/local_query.h"
#include "group/recent.h"
#include "group/recent_rows.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* So many at a time are read from the table. */
#define BATCH "500"

/* The transactions that come next, as texts and as times. */
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

/* Sessions have one origin at a time. */
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

/* The rows of one transaction, table by table. */
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

	/* No position: what is to be applied from there is still to come. */
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = strtoll(row[3], NULL, 10);
	stamp_tables(row[0], row[1]);
	local_run(psprintf("SELECT weft.stamped(%s, %s)",
					   quote_literal_cstr(row[0]), quote_literal_cstr(row[1])));
	CommitTransactionCommand();
}

/* Does all that is to be done; may be called again after an interruption. */
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
