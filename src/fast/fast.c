/*
 * fast.c
 *	  The fast path: rows of ordinary tables, straight through the table's access method.
 *
 * A writer offers each change to the fast path.  The fast path applies it if its table has
 * been found fit (fast_table.c) and nothing unusual is met (fast_row.c).  Otherwise it has
 * changed nothing, and the writer passes the change to the server's own code, which is the
 * general path.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fast/fast.h"
#include "fast/fast_relation.h"
#include "fast/fast_row.h"
#include "fast/fast_session.h"
#include "fast/fast_table.h"
#include "fast/row_count.h"

/* Called once in a writer. */
void
fast_init(const FastContext *context)
{
	fast_context = *context;
	fast_relation_init();
}

/* Takes notice that a RELATION message has come. */
void
fast_relation_changed(LogicalRepRelId relid)
{
	FastRelation *relation = fast_relation_find(relid);

	relation->valid = false;
	if (relation->rel)
		fast_table_close_all();
}

/* An attempt begins. */
void
fast_begin(void)
{
	row_count_begin();
}

/*
 * Applies an INSERT, UPDATE or DELETE, if it is one for the fast path.  Returns false,
 * with nothing changed, if it is not.  "final" says that all earlier transactions are
 * committed, so that a missing row is not just missing yet.
 */
bool
fast_apply(const RowChange *change, bool final)
{
	FastRelation *relation;
	bool		result;

	fast_session_enter(change->relid);
	fast_session_prepare();
	relation = fast_table_open(change->relid);
	result = relation != NULL && fast_row_apply(relation, change, final);
	if (result)
		CommandCounterIncrement();
	fast_session_leave();
	return result;
}

/* Returns what may be done with a change while others are deferred, as far as is known. */
FastOrder
fast_order(const RowChange *change)
{
	FastRelation *relation;

	if (!change->is_row)
		return FAST_ORDER_STRICT;
	relation = fast_relation_find(change->relid);
	if (!fast_relation_known(relation, change->type == LOGICAL_REP_MSG_INSERT))
		return FAST_ORDER_STRICT;
	return relation->own_order ? FAST_ORDER_OF_ROW : FAST_ORDER_OF_TABLE;
}

/* Returns the local table of a relation, as it was when last opened, or InvalidOid. */
Oid
fast_local_table(LogicalRepRelId relid)
{
	return fast_relation_find(relid)->local_relid;
}

/* Stores the inserted rows that were gathered; see fast_insert.c. */
void
fast_store_all(void)
{
	fast_table_store_all();
}

/*
 * The server's own code is about to apply a change of a relation.  A trigger may truncate or alter a table, which
 * the server refuses while it is open.
 */
void
fast_make_way(LogicalRepRelId relid)
{
	if (fast_relation_find(relid)->fires_triggers)
		fast_close();
	else
		fast_store_all();
}

/* The next change gets a new snapshot: others have committed meanwhile. */
void
fast_renew_snapshot(void)
{
	fast_session.has_snapshot = false;
}

/*
 * Closes all tables and drops the snapshot: before the local transaction commits, or
 * waits for long, or changes its level, or must not have a table open.  Locks are kept.
 */
void
fast_close(void)
{
	fast_table_close_all();
	fast_session_drop_snapshot();
}

/* Was it the fast path that has just thrown an error? */
bool
fast_in_progress(void)
{
	return OidIsValid(fast_session.in_progress);
}

/* A local subtransaction was rolled back, which has closed everything it had open. */
void
fast_after_subabort(void)
{
	fast_table_forget_open();
	fast_session_drop_snapshot();
}

/*
 * The local transaction was rolled back.  Returns the relation at which the fast path has
 * thrown an error, which the server's relation map may take for open, or InvalidOid.
 */
LogicalRepRelId
fast_after_abort(void)
{
	LogicalRepRelId result = fast_session.in_progress;

	fast_table_forget_open();
	row_count_undo();
	fast_session.has_snapshot = false;
	fast_session_leave();
	return result;
}

/*
 * Counts an INSERT, UPDATE or DELETE that has taken the general path, unless it was skipped
 * because its table is being synchronized; "final_lsn" is that of its transaction.
 */
void
fast_count_general(const RowChange *change, XLogRecPtr final_lsn)
{
	FastRelation *relation = fast_table_look_up(change->relid, final_lsn);

	if (relation == NULL)
		return;
	row_count_touch(relation);
	relation->counts.general_rows++;
	switch (change->type)
	{
		case LOGICAL_REP_MSG_INSERT:
			relation->counts.inserts++;
			break;
		case LOGICAL_REP_MSG_UPDATE:
			relation->counts.updates++;
			break;
		case LOGICAL_REP_MSG_DELETE:
			relation->counts.deletes++;
			break;
	}
}

/* Reports counted rows, between transactions; see row_count_report(). */
bool
fast_report(bool force)
{
	return row_count_report(force);
}
