/*
 * fast_row.c
 *	  The fast path: finds, inserts, updates and deletes rows of the tables that
 *	  fast_table.c has found fit for it.
 *
 * A row is found by the index of the replica identity with a dirty snapshot, as
 * the server does, and updated or deleted without having been locked first: the
 * lock would write WAL of its own.  If the row turns out to be in somebody's
 * hands, or is not found, or its last writer was of another origin where that
 * is a conflict to be reported, nothing has been done yet, and the change takes
 * the general path, which waits, looks again and reports.
 *
 * An error here is never reported: the transaction is rolled back and applied
 * once more, on the general path alone, which says what is wrong in the
 * server's words (transaction.c).  So what is done here has to be right only
 * where it succeeds.
 *
 * There is a snapshot in each local transaction.  Nothing is looked up with it,
 * but without one the server would not learn which old versions of rows may be
 * pruned, and could not read values out of line.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "fast/fast.h"
#include "apply/writer.h"
#include "compat.h"
#include "conflict/version.h"
#include "miscadmin.h"
#include "misspeculate.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "utils/acl.h"
#include "utils/datum.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "wire.h"

#if HAVE_APPLY_CONFLICTS
#include "replication/conflict.h"
#endif

/* Is a snapshot of ours active, and as new as it has to be? */
static bool snapshot_taken = false;

/* The relation of the change that is being applied here, or InvalidOid. */
static LogicalRepRelId in_progress = InvalidOid;

/* What comes next is to have a new snapshot. */
void
fast_renew_snapshot(void)
{
	snapshot_taken = false;
}

/* From here to fast_leave(), an error is one of the fast path, at that relation. */
void
fast_enter(LogicalRepRelId relid)
{
	in_progress = relid;
}

void
fast_leave(void)
{
	in_progress = InvalidOid;
}

/* Was it here that an error has been thrown? */
bool
fast_in_progress(void)
{
	return OidIsValid(in_progress);
}

/* Makes sure that there is a local transaction, with a snapshot that is new. */
void
fast_prepare(void)
{
	if (snapshot_taken)
		return;
	SetCurrentStatementStartTimestamp();
	if (!IsTransactionState())
	{
		StartTransactionCommand();
		maybe_reread_subscription();
	}
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	PushActiveSnapshot(GetTransactionSnapshot());
	snapshot_taken = true;
}

/* Stores all rows that were gathered. */
void
fast_store_all(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &fast_open_relations)
	{
		FastRelation *relation = dlist_container(FastRelation, open_node, iter.cur);
		UserContext context;
		bool		switched;

		if (relation->num_gathered == 0)
			continue;
		fast_enter(relation->remote_relid);
		switched = fast_become_owner(relation, &context);
		fast_store(relation);
		if (switched)
			RestoreUserContext(&context);
		fast_leave();
	}
}

/* Before the local transaction is committed. */
void
fast_before_commit(void)
{
	fast_close_all();
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	snapshot_taken = false;
}

/* After a local subtransaction was rolled back, and all closed that it had open. */
void
fast_after_subabort(void)
{
	fast_forget_open();
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	snapshot_taken = false;
}

/*
 * After the local transaction was rolled back.  Returns the relation at which an
 * error was thrown here, which the server's relation map may take for open, or
 * InvalidOid.
 */
LogicalRepRelId
fast_after_abort(void)
{
	LogicalRepRelId result = in_progress;

	fast_forget_open();
	fast_count_undo();
	snapshot_taken = false;
	in_progress = InvalidOid;
	return result;
}

/* Checks privileges, the first time the change's kind meets the open table. */
static void
check_privileges(FastRelation *relation, CmdType command, AclMode mode)
{
	Oid			relid = RelationGetRelid(relation->rel);

	if (relation->allowed & mode)
		return;
	if (pg_class_aclcheck(relid, GetUserId(), mode) != ACLCHECK_OK ||
		check_enable_rls(relid, InvalidOid, true) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg_internal("the general path reports what is not allowed")));
	CheckCmdReplicaIdentity(relation->rel, command);
	relation->allowed |= mode;
}

/*
 * Reads a tuple into the values of a slot.  Columns that are not sent are left as
 * they are there.
 */
static bool
read_tuple(FastRelation *relation, WireCursor *cursor, TupleTableSlot *row)
{
	int			count = wire_uint16(cursor);

	if (count != relation->num_columns)
		return false;
	for (int i = 0; i < count; i++)
	{
		FastColumn *column = &relation->columns[i];
		WireColumn	sent;

		if (!wire_column(cursor, &sent))
			return false;
		if (sent.status == LOGICALREP_COLUMN_UNCHANGED)
		{
			/* The value that has not changed there may be another one here. */
			if (writer.detect_conflicts)
				return false;
			continue;
		}
		if (!fast_make_value(relation, column, &sent, &row->tts_values[column->local],
							 &row->tts_isnull[column->local]))
			return false;
	}
	return true;
}

/* Fills the scan keys, and their hash, from a tuple; the cursor is not moved. */
static bool
read_key(FastRelation *relation, WireCursor cursor)
{
	int			count = wire_uint16(&cursor);
	int			found = 0;

	if (count != relation->num_columns)
		return false;
	relation->key_hash = relation->remote_relid;
	for (int i = 0; i < count; i++)
	{
		FastColumn *column = &relation->columns[i];
		WireColumn	sent;

		if (!wire_column(&cursor, &sent))
			return false;
		for (int key = 0; key < relation->num_keys; key++)
		{
			bool		isnull;

			if (relation->key_columns[key] != column->local)
				continue;
			if (!fast_make_value(relation, column, &sent,
								 &relation->keys[key].sk_argument, &isnull) || isnull)
				return false;
			relation->key_hash = fast_hash_key(relation->key_hash, &sent);
			found++;
		}
	}
	return found == relation->num_keys;
}

/* Moves a cursor behind a tuple. */
static bool
skip_tuple(FastRelation *relation, WireCursor *cursor)
{
	return wire_check_tuple(cursor, relation->num_columns) == NULL;
}

/* Was the row last written by another origin, and is that a conflict? */
static bool
origin_differs(TupleTableSlot *row)
{
#if HAVE_APPLY_CONFLICTS
	TransactionId xmin;
	RepOriginId origin;
	TimestampTz time;

	if (!writer.detect_conflicts)
		return GetTupleTransactionInfo(row, &xmin, &origin, &time) &&
			origin != replorigin_session_origin;
#endif
	return writer.detect_conflicts && conflict_origin_differs(row);
}

/* Finds the row with the key in the scan keys, if nobody has it in hands. */
static bool
find_row(FastRelation *relation)
{
	bool		found = fast_find(relation);

	/* If we are too early, it may be that the row is not there yet. */
	if (!found && !writer.final && !writer.detect_conflicts)
		misspeculate("a row is missing in a speculative transaction");
	return found && !TransactionIdIsValid(relation->dirty.xmin) &&
		!TransactionIdIsValid(relation->dirty.xmax) &&
		!origin_differs(relation->found);
}

/* Checks what the table demands of the row to be stored. */
static void
check_constraints(FastRelation *relation, TupleTableSlot *row)
{
	if (relation->rel->rd_att->constr)
		ExecConstraints(relation->info, row, relation->estate);
	if (relation->rel->rd_rel->relispartition)
		ExecPartitionCheck(relation->info, row, relation->estate, true);
}

static bool
insert_row(FastRelation *relation, WireChange *change)
{
	TupleTableSlot *row;
	MemoryContext old;
	int			natts;

	if (relation->insert_reason)
		return false;
	check_privileges(relation, CMD_INSERT, ACL_INSERT);

	row = fast_gather(relation);
	natts = row->tts_tupleDescriptor->natts;
	memset(row->tts_isnull, true, natts * sizeof(bool));
	memset(row->tts_values, 0, natts * sizeof(Datum));
	old = MemoryContextSwitchTo(relation->gathered_context);
	if (!read_tuple(relation, &change->tuples, row))
	{
		MemoryContextSwitchTo(old);
		return false;
	}
	MemoryContextSwitchTo(old);
	ExecStoreVirtualTuple(row);
	check_constraints(relation, row);
	relation->num_gathered++;
	return true;
}

/* Does an update change a value that conflicts are about? */
static bool
changes_watched(FastRelation *relation, TupleTableSlot *found, TupleTableSlot *row)
{
	TupleDesc	desc = row->tts_tupleDescriptor;
	int			column = -1;

	while ((column = bms_next_member(relation->watched, column)) >= 0)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, column);

		if (found->tts_isnull[column] != row->tts_isnull[column] ||
			(!row->tts_isnull[column] &&
			 !datum_image_eq(found->tts_values[column], row->tts_values[column],
							 attribute->attbyval, attribute->attlen)))
			return true;
	}
	return false;
}

static bool
update_row(FastRelation *relation, WireChange *change)
{
	TupleTableSlot *row = relation->row;
	TupleTableSlot *found = relation->found;
	int			natts = row->tts_tupleDescriptor->natts;
	TM_FailureData failure;
	LockTupleMode lock_mode;
	TU_UpdateIndexes update_indexes;

	if (relation->key_reason || !read_key(relation, change->tuples))
		return false;
	check_privileges(relation, CMD_UPDATE, ACL_UPDATE);
	if (!find_row(relation))
		return false;

	if (change->old_kind != 0 &&
		(!skip_tuple(relation, &change->tuples) || wire_uint8(&change->tuples) != 'N'))
		return false;
	slot_getallattrs(found);
	memcpy(row->tts_values, found->tts_values, natts * sizeof(Datum));
	memcpy(row->tts_isnull, found->tts_isnull, natts * sizeof(bool));
	if (!read_tuple(relation, &change->tuples, row))
		return false;
	ExecStoreVirtualTuple(row);
	if (writer.detect_conflicts && change->old_kind != 0 && !fast_has_key(relation, row))
		return false;
	if (relation->watched != NULL && changes_watched(relation, found, row))
		return false;
	check_constraints(relation, row);

	if (table_tuple_update(relation->rel, &found->tts_tid, row, GetCurrentCommandId(true),
						   GetActiveSnapshot(), InvalidSnapshot, true,
						   &failure, &lock_mode, &update_indexes) != TM_Ok)
		return false;
	if (relation->info->ri_NumIndices > 0 && update_indexes != TU_None)
		ExecInsertIndexTuples(relation->info, row, relation->estate,
							  true, false, NULL, NIL, update_indexes == TU_Summarizing);
	return true;
}

static bool
delete_row(FastRelation *relation, WireChange *change)
{
	TM_FailureData failure;

	/* Where conflicts are detected, it has to be remembered. */
	if (writer.detect_conflicts ||
		relation->key_reason || !read_key(relation, change->tuples))
		return false;
	check_privileges(relation, CMD_DELETE, ACL_DELETE);
	return find_row(relation) &&
		table_tuple_delete(relation->rel, &relation->found->tts_tid,
						   GetCurrentCommandId(true), GetActiveSnapshot(),
						   InvalidSnapshot, true, &failure, false) == TM_Ok;
}

/*
 * Becomes the user as whom an open table is changed.  Returns true if the caller
 * has to call RestoreUserContext.
 */
bool
fast_become_owner(FastRelation *relation, UserContext *context)
{
	Oid			owner = relation->rel->rd_rel->relowner;

	if (MySubscription->runasowner || owner == GetUserId())
		return false;
	SwitchToUntrustedUser(owner, context);
	return true;
}

/* Applies the change to the open table, as the user that may. */
static bool
apply_to_table(FastRelation *relation, WireChange *change)
{
	UserContext context;
	bool		switched = fast_become_owner(relation, &context);
	MemoryContext old;
	bool		result = false;

	/* It may want to see them. */
	if (relation->num_gathered > 0 && change->type != LOGICAL_REP_MSG_INSERT)
		fast_store(relation);
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(relation->estate));
	switch (change->type)
	{
		case LOGICAL_REP_MSG_INSERT:
			result = insert_row(relation, change);
			relation->counts.inserts += result;
			break;
		case LOGICAL_REP_MSG_UPDATE:
			result = update_row(relation, change);
			relation->counts.updates += result;
			break;
		case LOGICAL_REP_MSG_DELETE:
			result = delete_row(relation, change);
			relation->counts.deletes += result;
			break;
	}
	MemoryContextSwitchTo(old);
	ExecClearTuple(relation->row);
	ExecClearTuple(relation->found);
	ResetPerTupleExprContext(relation->estate);
	if (switched)
		RestoreUserContext(&context);
	return result;
}

/*
 * Applies an INSERT, UPDATE or DELETE message, if it is one for the fast path.
 * Returns false, with nothing changed, if it is not.
 */
bool
fast_apply(const char *message, int length)
{
	WireChange	change;
	FastRelation *relation;
	bool		result;

	if (wire_read_change(message, length, false, &change) != NULL)
		return false;

	fast_enter(change.relid);
	fast_prepare();
	relation = fast_open(change.relid);
	result = relation != NULL && apply_to_table(relation, &change);
	if (result)
		CommandCounterIncrement();
	fast_leave();
	return result;
}
