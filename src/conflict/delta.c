/*
 * delta.c
 *	  Columns that are counters (weft.set_delta_columns).
 *
 * Of an UPDATE, the difference between new and old value is added to the local
 * value, whether there is a conflict or not: so nobody's change is lost, in
 * whatever order changes arrive.  That needs the old row, thus replica identity
 * full on the publisher.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "conflict/internal.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/rel.h"

/* The functions that subtract and add values of a type. */
static bool
arithmetic(Oid type, Oid *subtract, Oid *add)
{
	switch (type)
	{
		case INT2OID:
			*subtract = F_INT2MI;
			*add = F_INT2PL;
			return true;
		case INT4OID:
			*subtract = F_INT4MI;
			*add = F_INT4PL;
			return true;
		case INT8OID:
			*subtract = F_INT8MI;
			*add = F_INT8PL;
			return true;
		case NUMERICOID:
			*subtract = F_NUMERIC_SUB;
			*add = F_NUMERIC_ADD;
			return true;
		default:
			return false;
	}
}

/* Puts the merged value of a counter into a row. */
static void
merge_column(Target *target, TupleTableSlot *row, TupleTableSlot *local,
			 TupleTableSlot *before, TupleTableSlot *after, int column)
{
	Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(target->rel), column);
	Oid			subtract;
	Oid			add;
	Datum		value;

	if (!arithmetic(attribute->atttypid, &subtract, &add) ||
		before->tts_isnull[column] || after->tts_isnull[column] ||
		local->tts_isnull[column])
		return;
	value = OidFunctionCall2(subtract, after->tts_values[column], before->tts_values[column]);
	value = OidFunctionCall2(add, local->tts_values[column], value);
	if (attribute->atttypid == NUMERICOID && attribute->atttypmod >= 0)
		value = DirectFunctionCall2(numeric, value, Int32GetDatum(attribute->atttypmod));
	row->tts_values[column] = value;
	row->tts_isnull[column] = false;
}

/*
 * Puts the counters' merged values into a row that is to replace the local one.
 * Fails if the old row was not sent.
 */
void
delta_merge(Target *target, TupleTableSlot *row, TupleTableSlot *local, const Remote *remote)
{
	TupleTableSlot *before;
	TupleTableSlot *after;
	MemoryContext old;
	int			column = -1;

	if (!remote->old_full)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("delta columns of relation \"%s.%s\" cannot be applied without the old row",
						target->entry->remoterel.nspname, target->entry->remoterel.relname),
				 errhint("Set REPLICA IDENTITY FULL for the table on the publisher.")));

	before = ExecInitExtraTupleSlot(target->estate, RelationGetDescr(target->rel), &TTSOpsVirtual);
	after = ExecInitExtraTupleSlot(target->estate, RelationGetDescr(target->rel), &TTSOpsVirtual);
	tuple_read(target, before, unconstify(LogicalRepTupleData *, &remote->old));
	tuple_read(target, after, unconstify(LogicalRepTupleData *, &remote->new));
	slot_getallattrs(local);
	slot_getallattrs(row);
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(target->estate));
	while ((column = bms_next_member(target->deltas, column)) >= 0)
		merge_column(target, row, local, before, after, column);
	MemoryContextSwitchTo(old);
}
