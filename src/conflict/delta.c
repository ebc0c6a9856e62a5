/*
 * delta.c
 *	  Columns that are counters (weft.set_delta_columns).
 *
 * An UPDATE adds the difference between its new and its old value to the local value,
 * whether there is a conflict or not.  Therefore no node's change is lost, in whatever
 * order changes arrive.  This needs the old row, and thus REPLICA IDENTITY FULL on the
 * publisher.
 *
 * NaN and infinity have no differences.  An UPDATE from or to one of them, or one that
 * finds one of them here, sets the column as it would any other column.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "conflict/delta.h"
#include "conflict/remote_row.h"
#include "executor/executor.h"
#include "utils/fmgrprotos.h"
#include "utils/numeric.h"
#include "utils/rel.h"

/* Converts a counter's value to numeric.  Returns false if it is not a finite number. */
bool
delta_to_numeric(Oid type, Datum value, Datum *result)
{
	switch (type)
	{
		case INT2OID:
			*result = DirectFunctionCall1(int2_numeric, value);
			return true;
		case INT4OID:
			*result = DirectFunctionCall1(int4_numeric, value);
			return true;
		case INT8OID:
			*result = DirectFunctionCall1(int8_numeric, value);
			return true;
		case NUMERICOID:
			*result = value;
			return !numeric_is_nan(DatumGetNumeric(value)) &&
				!numeric_is_inf(DatumGetNumeric(value));
		default:
			return false;
	}
}

/* Converts a numeric to the type of a counter's column. */
static Datum
from_numeric(Form_pg_attribute attribute, Datum value)
{
	switch (attribute->atttypid)
	{
		case INT2OID:
			return DirectFunctionCall1(numeric_int2, value);
		case INT4OID:
			return DirectFunctionCall1(numeric_int4, value);
		case INT8OID:
			return DirectFunctionCall1(numeric_int8, value);
		default:
			if (attribute->atttypmod >= 0)
				return DirectFunctionCall2(numeric, value,
										   Int32GetDatum(attribute->atttypmod));
			return value;
	}
}

/*
 * Returns the differences that an UPDATE makes to the counters, indexed by column; null
 * where there is none.  Fails if the old row was not sent.
 */
NullableDatum *
delta_differences(Target *target, const Remote *remote)
{
	TupleDesc	desc = RelationGetDescr(target->rel);
	TupleTableSlot *before;
	TupleTableSlot *after;
	NullableDatum *result = palloc(desc->natts * sizeof(NullableDatum));
	MemoryContext old;
	int			column = -1;

	if (!remote->old_full)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot apply delta columns of relation \"%s.%s\" without the old row",
						target->entry->remoterel.nspname, target->entry->remoterel.relname),
				 errhint("Set REPLICA IDENTITY FULL for the table on the publisher.")));

	before = ExecInitExtraTupleSlot(target->estate, desc, &TTSOpsVirtual);
	after = ExecInitExtraTupleSlot(target->estate, desc, &TTSOpsVirtual);
	remote_row_read(target, before, unconstify(LogicalRepTupleData *, &remote->old));
	remote_row_read(target, after, unconstify(LogicalRepTupleData *, &remote->new));
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(target->estate));
	while ((column = bms_next_member(target->deltas, column)) >= 0)
	{
		Oid			type = TupleDescAttr(desc, column)->atttypid;
		Datum		from;
		Datum		to;

		result[column].isnull = before->tts_isnull[column] || after->tts_isnull[column] ||
			!delta_to_numeric(type, before->tts_values[column], &from) ||
			!delta_to_numeric(type, after->tts_values[column], &to);
		if (!result[column].isnull)
			result[column].value = DirectFunctionCall2(numeric_sub, to, from);
	}
	MemoryContextSwitchTo(old);
	return result;
}

/* Sets a column of a row to a value plus a difference. */
void
delta_set(Target *target, TupleTableSlot *row, int column, Datum value, Datum difference)
{
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(target->estate));

	row->tts_values[column] =
		from_numeric(TupleDescAttr(RelationGetDescr(target->rel), column),
					 DirectFunctionCall2(numeric_add, value, difference));
	row->tts_isnull[column] = false;
	MemoryContextSwitchTo(old);
}

/*
 * Sets the counters of "row", which is to replace the local row, to the local values plus
 * the differences that an UPDATE makes.  Fails if the old row was not sent.
 */
void
delta_merge(Target *target, TupleTableSlot *row, TupleTableSlot *local, const Remote *remote)
{
	TupleDesc	desc = RelationGetDescr(target->rel);
	NullableDatum *differences = delta_differences(target, remote);
	int			column = -1;

	slot_getallattrs(local);
	slot_getallattrs(row);
	while ((column = bms_next_member(target->deltas, column)) >= 0)
	{
		MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(target->estate));
		Datum		value;
		bool		is_number = !differences[column].isnull && !local->tts_isnull[column] &&
			delta_to_numeric(TupleDescAttr(desc, column)->atttypid,
							 local->tts_values[column], &value);

		MemoryContextSwitchTo(old);
		if (is_number)
			delta_set(target, row, column, value, differences[column].value);
	}
}
