/*
 * fast_row.c
 *	  The fast path: inserting, updating and deleting a row of an open table.
 *
 * As the server does, the writer finds a row by the index of the replica identity with a
 * dirty snapshot.  It updates or deletes the row without locking it first, since the
 * lock would write WAL of its own.  If another transaction is modifying the row, or the
 * row is missing, or its last writer was another origin and that is a conflict to report,
 * then nothing has been done yet, and the change takes the general path, which waits, looks
 * again and reports.
 *
 * An error here is never reported.  The writer rolls the attempt back and applies its
 * transactions again, on the general path only, which reports the error in the
 * server's words.  Therefore this code has to be right only if it succeeds.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "compat.h"
#include "executor/executor.h"
#include "fast/fast_context.h"
#include "fast/fast_insert.h"
#include "fast/fast_row.h"
#include "fast/fast_table.h"
#include "fast/lookup.h"
#include "group_times.h"
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

#if HAVE_APPLY_CONFLICTS
#include "replication/conflict.h"
#endif

/*
 * Checks privileges, once for each kind of change while the table is open.  A row that is to be
 * changed is read.
 */
static void
check_privileges(FastRelation *relation, CmdType command, AclMode mode)
{
	Oid			relid = RelationGetRelid(relation->rel);
	AclMode		needed = mode == ACL_INSERT ? ACL_INSERT : mode | ACL_SELECT;

	if (relation->allowed & mode)
		return;
	if (pg_class_aclmask(relid, GetUserId(), needed, ACLMASK_ALL) != needed ||
		check_enable_rls(relid, InvalidOid, true) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg_internal("the general path reports what is not allowed")));
	CheckCmdReplicaIdentity(relation->rel, command);
	relation->allowed |= mode;
}

/*
 * Reads a tuple into the values of a slot.  Columns that are not sent keep the values
 * that they have there.
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
			/* The publisher's unchanged value may differ from the local one. */
			if (fast_context.detect_conflicts)
				return false;
			continue;
		}
		if (!fast_column_value(column, relation->context, &sent, &row->tts_values[column->local],
							   &row->tts_isnull[column->local]))
			return false;
	}
	return true;
}

/* Fills the scan keys, and their hash, from a tuple.  The caller's cursor does not move. */
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
			if (!fast_column_value(column, relation->context, &sent,
								   &relation->keys[key].sk_argument, &isnull) || isnull)
				return false;
			relation->key_hash = fast_column_hash(relation->key_hash, &sent);
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

/* Was the row last written by another origin, so that there is a conflict? */
static bool
origin_differs(TupleTableSlot *row)
{
#if HAVE_APPLY_CONFLICTS
	TransactionId xmin;
	RepOriginId origin;
	TimestampTz time;

	if (!fast_context.detect_conflicts)
		return GetTupleTransactionInfo(row, &xmin, &origin, &time) &&
			origin != replorigin_session_origin;
#endif
	return fast_context.detect_conflicts && fast_context.origin_differs(row);
}

/* Finds the row with the key in the scan keys, unless another transaction is modifying it. */
static bool
find_row(FastRelation *relation, bool final)
{
	bool		found = lookup_row(relation);

	/* An earlier transaction may still insert it. */
	if (!found && !final && !fast_context.detect_conflicts)
		misspeculate("a row is missing in a speculative transaction");
	return found && !TransactionIdIsValid(relation->dirty.xmin) &&
		!TransactionIdIsValid(relation->dirty.xmax) &&
		!origin_differs(relation->found);
}

/* Checks the constraints of the table for a row to store. */
static void
check_constraints(FastRelation *relation, TupleTableSlot *row)
{
	if (relation->rel->rd_att->constr)
		ExecConstraints(relation->info, row, relation->estate);
	if (relation->rel->rd_rel->relispartition)
		ExecPartitionCheck(relation->info, row, relation->estate, true);
}

/* The row at hand is the last change of its key for now. */
static void
remember_time(FastRelation *relation, TupleTableSlot *row)
{
	if (relation->time_key.count > 0)
		group_times_row(&relation->time_key, row);
}

/* Where conflicts are detected: does a row with this key exist, or is one being stored? */
static bool
key_exists(FastRelation *relation, WireCursor cursor)
{
	return !read_key(relation, cursor) || lookup_row(relation);
}

static bool
insert_row(FastRelation *relation, const RowChange *change)
{
	WireCursor	cursor = row_change_tuples(change);
	TupleTableSlot *row;
	MemoryContext old;
	int			natts;

	if (relation->insert_reason)
		return false;
	check_privileges(relation, CMD_INSERT, ACL_INSERT);
	if (relation->checks_deletes && key_exists(relation, cursor))
		return false;

	row = fast_insert_slot(relation);
	natts = row->tts_tupleDescriptor->natts;
	memset(row->tts_isnull, true, natts * sizeof(bool));
	memset(row->tts_values, 0, natts * sizeof(Datum));
	old = MemoryContextSwitchTo(relation->gathered_context);
	if (!read_tuple(relation, &cursor, row))
	{
		MemoryContextSwitchTo(old);
		return false;
	}
	MemoryContextSwitchTo(old);
	ExecStoreVirtualTuple(row);
	check_constraints(relation, row);
	if (relation->checks_deletes && fast_context.was_deleted(relation->rel, row, false))
		return false;
	relation->num_gathered++;
	remember_time(relation, row);
	return true;
}

/* Does an update change a value that can make a conflict? */
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
update_row(FastRelation *relation, const RowChange *change, bool final)
{
	WireCursor	cursor = row_change_tuples(change);
	TupleTableSlot *row = relation->row;
	TupleTableSlot *found = relation->found;
	int			natts = row->tts_tupleDescriptor->natts;
	TM_FailureData failure;
	LockTupleMode lock_mode;
	TU_UpdateIndexes update_indexes;

	if (relation->key_reason || !read_key(relation, cursor))
		return false;
	check_privileges(relation, CMD_UPDATE, ACL_UPDATE);
	if (!find_row(relation, final))
		return false;

	if (change->old_kind != 0 &&
		(!skip_tuple(relation, &cursor) || wire_uint8(&cursor) != 'N'))
		return false;
	slot_getallattrs(found);
	memcpy(row->tts_values, found->tts_values, natts * sizeof(Datum));
	memcpy(row->tts_isnull, found->tts_isnull, natts * sizeof(bool));
	if (!read_tuple(relation, &cursor, row))
		return false;
	ExecStoreVirtualTuple(row);
	if (fast_context.detect_conflicts && change->old_kind != 0 && !lookup_has_key(relation, row))
		return false;
	if (relation->watched != NULL && changes_watched(relation, found, row))
		return false;
	check_constraints(relation, row);

	if (compat_table_tuple_update(relation->rel, &found->tts_tid, row,
								  GetCurrentCommandId(true), GetActiveSnapshot(),
								  &failure, &lock_mode, &update_indexes) != TM_Ok)
		return false;
	if (relation->info->ri_NumIndices > 0 && update_indexes != TU_None)
		compat_update_index_entries(relation->info, row, relation->estate,
									update_indexes == TU_Summarizing);
	remember_time(relation, row);
	return true;
}

static bool
delete_row(FastRelation *relation, const RowChange *change, bool final)
{
	TM_FailureData failure;

	/* A row that has unique values leaves claims to them. */
	if (relation->key_reason || relation->watched != NULL ||
		!read_key(relation, row_change_tuples(change)))
		return false;
	check_privileges(relation, CMD_DELETE, ACL_DELETE);
	if (!find_row(relation, final) ||
		compat_table_tuple_delete(relation->rel, &relation->found->tts_tid,
								  GetCurrentCommandId(true), GetActiveSnapshot(),
								  true, &failure) != TM_Ok)
		return false;
	if (fast_context.detect_conflicts)
		fast_context.remember_delete(relation->rel, relation->found);
	return true;
}

/*
 * Applies an INSERT, UPDATE or DELETE to the open table, as the user that may.  "final"
 * says that a missing row is not just missing yet.  Returns false, with nothing changed,
 * if the change takes the general path.
 */
bool
fast_row_apply(FastRelation *relation, const RowChange *change, bool final)
{
	UserContext context;
	bool		switched = fast_table_become_owner(relation, &context);
	MemoryContext old;
	bool		result = false;

	/* An UPDATE or DELETE may concern a gathered row. */
	if (relation->num_gathered > 0 && change->type != LOGICAL_REP_MSG_INSERT)
		fast_insert_store(relation);
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(relation->estate));
	switch (change->type)
	{
		case LOGICAL_REP_MSG_INSERT:
			result = insert_row(relation, change);
			relation->counts.inserts += result;
			break;
		case LOGICAL_REP_MSG_UPDATE:
			result = update_row(relation, change, final);
			relation->counts.updates += result;
			break;
		case LOGICAL_REP_MSG_DELETE:
			result = delete_row(relation, change, final);
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
