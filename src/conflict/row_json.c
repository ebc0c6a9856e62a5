/*
 * row_json.c
 *	  Converts rows and their keys to jsonb, for weft.conflict_history.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "compat.h"
#include "conflict/row_json.h"
#include "executor/executor.h"
#include "utils/jsonb.h"
#include "utils/jsonfuncs.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

/* A row with more bytes than this is too large for the history. */
#define MAX_HISTORY_ROW (1024 * 1024)

static Datum
value_jsonb(Oid type, Datum value)
{
	JsonTypeCategory category;
	Oid			function;

	json_categorize_type(type, true, &category, &function);
	return datum_to_jsonb(value, category, function);
}

/* Returns the key of a row as a jsonb object. */
Datum
row_json_key(Target *target, TupleTableSlot *slot)
{
	Relation	index = index_open(target->key_index, AccessShareLock);
	CompatJsonbState state = COMPAT_JSONB_BEGIN;
	JsonbValue *result;

	compat_push_jsonb(&state, WJB_BEGIN_OBJECT, NULL);
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
		compat_push_jsonb(&state, WJB_KEY, &part);
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
		compat_push_jsonb(&state, WJB_VALUE, &part);
	}
	result = compat_push_jsonb(&state, WJB_END_OBJECT, NULL);
	index_close(index, AccessShareLock);
	return JsonbPGetDatum(JsonbValueToJsonb(result));
}

static void
push_string(CompatJsonbState *state, JsonbIteratorToken token, char *text)
{
	JsonbValue	value;

	value.type = jbvString;
	value.val.string.val = text;

	value.val.string.len = strlen(text);
	compat_push_jsonb(state, token, &value);
}

/*
 * Returns a row as a jsonb object with each value's text.  If key_index is valid, then the
 * object contains only the columns of that index.
 */
Datum
row_json_text(TupleTableSlot *slot, Oid key_index)
{
	TupleDesc	desc = slot->tts_tupleDescriptor;
	Relation	index = OidIsValid(key_index) ? index_open(key_index, AccessShareLock) : NULL;
	int			count = index ? IndexRelationGetNumberOfKeyAttributes(index) : desc->natts;
	CompatJsonbState state = COMPAT_JSONB_BEGIN;
	JsonbValue *result;

	compat_push_jsonb(&state, WJB_BEGIN_OBJECT, NULL);
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
			compat_push_jsonb(&state, WJB_VALUE, &null);
		else
		{
			getTypeOutputInfo(attribute->atttypid, &function, &is_varlena);
			push_string(&state, WJB_VALUE, OidOutputFunctionCall(function, value));
		}
	}
	result = compat_push_jsonb(&state, WJB_END_OBJECT, NULL);
	if (index)
		index_close(index, AccessShareLock);
	return JsonbPGetDatum(JsonbValueToJsonb(result));
}

/* Converts a row to a jsonb object.  Returns false if it is too large. */
bool
row_json(TupleTableSlot *slot, Datum *result)
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
