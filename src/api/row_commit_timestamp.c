/*
 * row_commit_timestamp.c
 *	  weft.row_commit_timestamp().
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "local_table.h"
#include "row_time.h"
#include "utils/acl.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(weft_row_commit_timestamp);

/* Finds out when a row was changed.  Returns false if the server does not know. */
static bool
find_time(Relation rel, TupleTableSlot *row, TimestampTz *time)
{
	bool		isnull;
	TransactionId xid = DatumGetTransactionId(slot_getsysattr(row, MinTransactionIdAttributeNumber,
															  &isnull));

	if (!TransactionIdIsNormal(xid) || !TransactionIdGetCommitTsData(xid, time, NULL))
		return false;
	(void) row_time_find(rel, row, xid, GetActiveSnapshot(), time);
	return true;
}

/*
 * weft.row_commit_timestamp("table" regclass, row_id tid) RETURNS timestamptz
 *
 * Returns the commit timestamp of the row at a place in a table (its ctid): on the
 * publisher, if a subscription has applied it.  Unlike pg_xact_commit_timestamp(xmin), it
 * tells transactions apart that share a commit.  Null if the row does not exist, or if its
 * time is unknown.
 */
Datum
weft_row_commit_timestamp(PG_FUNCTION_ARGS)
{
	Relation	rel = local_table_open(PG_GETARG_OID(0), ACL_SELECT, AccessShareLock);
	TupleTableSlot *row;
	TimestampTz time;
	bool		found;

	if (check_enable_rls(RelationGetRelid(rel), InvalidOid, false) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("row-level security hides rows of table \"%s\"",
						RelationGetRelationName(rel))));
	row = table_slot_create(rel, NULL);
	found = row_time_fetch(rel, PG_GETARG_ITEMPOINTER(1), row) && find_time(rel, row, &time);
	ExecDropSingleTupleTableSlot(row);
	table_close(rel, AccessShareLock);
	if (!found)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(time);
}
