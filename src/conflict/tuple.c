/*
 * tuple.c
 *	  Rows: making them of what was sent, their keys, and how history shows them.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "common/hashfn.h"
#include "conflict/internal.h"
#include "optimizer/optimizer.h"
#include "rewrite/rewriteHandler.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/jsonb.h"
#include "utils/jsonfuncs.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

/* A row of so many bytes is too large for the history. */
#define MAX_HISTORY_ROW (1024 * 1024)

/* Makes a column's value of what was sent; false if that is "unchanged". */
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

/* Fills a slot with what was sent of a row; all else is null. */
void
tuple_read(Target *target, TupleTableSlot *slot, LogicalRepTupleData *data)
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

/* The value of a column that the publisher does not have, in a row that is new. */
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
 * Makes the row that the publisher has after an INSERT or UPDATE.  A value out of
 * line that has not changed was not sent: it is that of the old row, if all of
 * that was sent, else of "base", the row here, which may be missing (NULL).
 * Returns false if a value is not known then; it is null in the row.
 */
bool
tuple_make(Target *target, TupleTableSlot *row, TupleTableSlot *base, const Remote *remote)
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

/* Are there values out of line that were not sent, because they have not changed? */
bool
tuple_lacks_values(const Remote *remote)
{
	for (int i = 0; i < remote->new.ncols && !remote->old_full; i++)
		if (remote->new.colstatus[i] == LOGICALREP_COLUMN_UNCHANGED)
			return true;
	return false;
}

/* Adds a value to a hash of 128 bits. */
void
tuple_add_hash(uint64 *hash, Oid type, Oid collation, Datum value, bool isnull)
{
	for (int i = 0; i < 2; i++)
		hash[i] = hash_combine64(hash[i],
								 isnull ? 0 : key_hash_value(type, collation, value, i + 1));
}

/* Returns a hash of the columns of a row that are in an index of its table. */
pg_uuid_t
tuple_key_hash(Relation rel, Oid key_index, TupleTableSlot *slot)
{
	Relation	index = index_open(key_index, AccessShareLock);
	uint64		hash[2] = {0, 0};
	pg_uuid_t	result;

	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
	{
		AttrNumber	column = index->rd_index->indkey.values[i];
		bool		isnull;
		Datum		value = slot_getattr(slot, column, &isnull);

		tuple_add_hash(hash, TupleDescAttr(RelationGetDescr(rel), column - 1)->atttypid,
					   index->rd_indcollation[i], value, isnull);
	}
	index_close(index, AccessShareLock);
	StaticAssertStmt(sizeof(hash) == sizeof(result), "a hash fills a UUID");
	memcpy(&result, hash, sizeof(result));
	return result;
}

/* Have two rows the same key? */
bool
tuple_same_key(Target *target, TupleTableSlot *a, TupleTableSlot *b)
{
	pg_uuid_t	hash_a = tuple_key_hash(target->rel, target->key_index, a);
	pg_uuid_t	hash_b = tuple_key_hash(target->rel, target->key_index, b);

	return memcmp(&hash_a, &hash_b, sizeof(pg_uuid_t)) == 0;
}

static Datum
value_jsonb(Oid type, Datum value)
{
	JsonTypeCategory category;
	Oid			function;

	json_categorize_type(type, true, &category, &function);
	return datum_to_jsonb(value, category, function);
}

/* Returns the key of a row as an object. */
Datum
tuple_key_jsonb(Target *target, TupleTableSlot *slot)
{
	Relation	index = index_open(target->key_index, AccessShareLock);
	JsonbParseState *state = NULL;
	JsonbValue *result;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
	{
		AttrNumber	column = index->rd_index->indkey.values[i];
		Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(target->rel), column - 1);
		bool		isnull;
		Datum		value = slot_getattr(slot, column, &isnull);
		JsonbValue	part;

		part.type = jbvString;
		part.val.string.val = pstrdup(NameStr(attribute->attname));
		part.val.string.len = strlen(part.val.string.val);
		pushJsonbValue(&state, WJB_KEY, &part);
		if (isnull)
			part.type = jbvNull;
		else
			JsonbToJsonbValue(DatumGetJsonbP(value_jsonb(attribute->atttypid, value)), &part);
		if (part.type == jbvBinary && JsonContainerIsScalar(part.val.binary.data))
		{
			JsonbValue	scalar;

			(void) JsonbExtractScalar(part.val.binary.data, &scalar);
			part = scalar;
		}
		pushJsonbValue(&state, WJB_VALUE, &part);
	}
	result = pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	index_close(index, AccessShareLock);
	return JsonbPGetDatum(JsonbValueToJsonb(result));
}

static void
push_string(JsonbParseState **state, JsonbIteratorToken token, char *text)
{
	JsonbValue	value;

	value.type = jbvString;
	value.val.string.val = text;

	value.val.string.len = strlen(text);
	pushJsonbValue(state, token, &value);
}

/*
 * Returns a row, or the columns of it that are in an index unless that is invalid, as an
 * object with the values' text.
 */
Datum
tuple_text_jsonb(TupleTableSlot *slot, Oid key_index)
{
	TupleDesc	desc = slot->tts_tupleDescriptor;
	Relation	index = OidIsValid(key_index) ? index_open(key_index, AccessShareLock) : NULL;
	int			count = index ? IndexRelationGetNumberOfKeyAttributes(index) : desc->natts;
	JsonbParseState *state = NULL;
	JsonbValue *result;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < count; i++)
	{
		AttrNumber	column = index ? index->rd_index->indkey.values[i] : i + 1;
		Form_pg_attribute attribute = TupleDescAttr(desc, column - 1);
		bool		isnull;
		Datum		value = slot_getattr(slot, column, &isnull);
		JsonbValue	null = {.type = jbvNull};
		Oid			function;
		bool		is_varlena;

		if (attribute->attisdropped)
			continue;
		push_string(&state, WJB_KEY, pstrdup(NameStr(attribute->attname)));
		if (isnull)
			pushJsonbValue(&state, WJB_VALUE, &null);
		else
		{
			getTypeOutputInfo(attribute->atttypid, &function, &is_varlena);
			push_string(&state, WJB_VALUE, OidOutputFunctionCall(function, value));
		}
	}
	result = pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	if (index)
		index_close(index, AccessShareLock);
	return JsonbPGetDatum(JsonbValueToJsonb(result));
}

/* Returns a row as an object; false if it is too large. */
bool
tuple_jsonb(TupleTableSlot *slot, Datum *result)
{
	TupleDesc	desc = slot->tts_tupleDescriptor;
	Size		size = 0;

	slot_getallattrs(slot);
	for (int i = 0; i < desc->natts; i++)
		if (!slot->tts_isnull[i] && TupleDescAttr(desc, i)->attlen == -1)
			size += toast_raw_datum_size(slot->tts_values[i]);
	if (size > MAX_HISTORY_ROW)
		return false;
	*result = datum_to_jsonb(ExecFetchSlotHeapTupleDatum(slot), JSONTYPE_COMPOSITE, InvalidOid);
	return true;
}
