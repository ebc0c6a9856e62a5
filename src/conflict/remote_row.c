/*
 * remote_row.c
 *	  Makes rows from what the publisher has sent.
 */
#include "postgres.h"

#include "access/attmap.h"
#include "conflict/remote_row.h"
#include "executor/executor.h"
#include "optimizer/optimizer.h"
#include "rewrite/rewriteHandler.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

/* Makes a column's value from what was sent.  Returns false if that says "unchanged". */
static bool
read_column(Form_pg_attribute attribute, LogicalRepTupleData *data, int number,
			Datum *value, bool *isnull)
{
	StringInfo	sent;
	Oid			function;
	Oid			param;

	if (number >= data->ncols)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("logical replication column %d not found in tuple: only %d column(s) received",
						number + 1, data->ncols)));

	sent = &data->colvalues[number];
	*isnull = false;
	switch (data->colstatus[number])
	{
		case LOGICALREP_COLUMN_TEXT:
			getTypeInputInfo(attribute->atttypid, &function, &param);
			*value = OidInputFunctionCall(function, sent->data, param, attribute->atttypmod);
			return true;
		case LOGICALREP_COLUMN_BINARY:
			sent->cursor = 0;
			getTypeBinaryInputInfo(attribute->atttypid, &function, &param);
			*value = OidReceiveFunctionCall(function, sent, param, attribute->atttypmod);
			if (sent->cursor != sent->len)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
						 errmsg("incorrect binary data format in logical replication column %d",
								number + 1)));
			return true;
		case LOGICALREP_COLUMN_UNCHANGED:
			return false;
		default:
			*value = (Datum) 0;
			*isnull = true;
			return true;
	}
}

/* Fills a slot with the columns that were sent; all others are null. */
void
remote_row_read(Target *target, TupleTableSlot *slot, LogicalRepTupleData *data)
{
	TupleDesc	desc = slot->tts_tupleDescriptor;
	AttrMap    *map = target->entry->attrmap;
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(target->estate));

	ExecClearTuple(slot);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (attribute->attisdropped || map->attnums[i] < 0 ||
			!read_column(attribute, data, map->attnums[i],
						 &slot->tts_values[i], &slot->tts_isnull[i]))
		{
			slot->tts_values[i] = (Datum) 0;
			slot->tts_isnull[i] = true;
		}
	}
	ExecStoreVirtualTuple(slot);
	MemoryContextSwitchTo(old);
}

/* Sets a column that the publisher does not have to its default, in a new row. */
static void
make_default(Target *target, TupleTableSlot *row, int column)
{
	Expr	   *expression = NULL;

	if (!TupleDescAttr(row->tts_tupleDescriptor, column)->attisdropped &&
		!TupleDescAttr(row->tts_tupleDescriptor, column)->attgenerated)
		expression = (Expr *) build_column_default(target->rel, column + 1);
	row->tts_values[column] = (Datum) 0;
	row->tts_isnull[column] = true;
	if (expression)
		row->tts_values[column] =
			ExecEvalExpr(ExecInitExpr(expression_planner(expression), NULL),
						 GetPerTupleExprContext(target->estate),
						 &row->tts_isnull[column]);
}

/*
 * Makes the row that the publisher has after an INSERT or UPDATE.  A value stored out of
 * line that has not changed was not sent.  It is taken from the old row, if that was sent
 * in full, and otherwise from "base", the local row, which is NULL if there is none.
 * Returns false if a value remains unknown; it is null in the row.
 */
bool
remote_row_make(Target *target, TupleTableSlot *row, TupleTableSlot *base, const Remote *remote)
{
	TupleDesc	desc = row->tts_tupleDescriptor;
	AttrMap    *map = target->entry->attrmap;
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(target->estate));
	bool		complete = true;

	ExecClearTuple(row);
	if (base)
		slot_getallattrs(base);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);
		bool		sent = !attribute->attisdropped && map->attnums[i] >= 0;

		if (sent &&
			(read_column(attribute, unconstify(LogicalRepTupleData *, &remote->new),
						 map->attnums[i], &row->tts_values[i], &row->tts_isnull[i]) ||
			 (remote->old_full &&
			  read_column(attribute, unconstify(LogicalRepTupleData *, &remote->old),
						  map->attnums[i], &row->tts_values[i], &row->tts_isnull[i]))))
			continue;
		if (base)
		{
			row->tts_values[i] = base->tts_values[i];
			row->tts_isnull[i] = base->tts_isnull[i];
		}
		else if (sent)
		{
			row->tts_values[i] = (Datum) 0;
			row->tts_isnull[i] = true;
			complete = false;
		}
		else
			make_default(target, row, i);
	}
	ExecStoreVirtualTuple(row);
	MemoryContextSwitchTo(old);
	return complete;
}

/*
 * The publisher's row wins over one of another node.  Sets the columns that it does not have to
 * their defaults, as they have them there when it adds them: all nodes must end with one of the
 * two rows, and not with some columns of each.  Counters have no versions, and keep their values.
 */
void
remote_row_reset_unsent(Target *target, TupleTableSlot *row)
{
	AttrMap    *map = target->entry->attrmap;
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(target->estate));

	for (int i = 0; i < row->tts_tupleDescriptor->natts; i++)
		if (map->attnums[i] < 0 && !TupleDescAttr(row->tts_tupleDescriptor, i)->attisdropped &&
			!bms_is_member(i, target->deltas))
			make_default(target, row, i);
	MemoryContextSwitchTo(old);
}

/* Are values missing that were not sent because they have not changed? */
bool
remote_row_lacks_values(const Remote *remote)
{
	for (int i = 0; i < remote->new.ncols && !remote->old_full; i++)
		if (remote->new.colstatus[i] == LOGICALREP_COLUMN_UNCHANGED)
			return true;
	return false;
}
