/*
 * fast_column.c
 *	  The fast path: values of what is sent.
 *
 * In binary as in text, the type's own function reads them, but for numbers of a fixed
 * length of which every bit pattern is a value: there is nothing that the function
 * would check, or refuse, but the length.
 */
#include "postgres.h"

#include "fast/fast.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "nodes/miscnodes.h"
#include "replication/logicalproto.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

/* Takes down how values of a column's type are made. */
void
fast_describe_values(FastColumn *column, Oid type, int32 typmod)
{
	column->type = type;
	column->typmod = typmod;
	switch (type)
	{
		case INT2OID:
			column->fixed_length = sizeof(int16);
			break;
		case INT4OID:
		case FLOAT4OID:
			column->fixed_length = sizeof(int32);
			break;
		case INT8OID:
		case FLOAT8OID:
			column->fixed_length = sizeof(int64);
			break;
		default:
			column->fixed_length = 0;
	}
}

/* Returns the type's function, looked up when it is needed first. */
static FastInput *
input_of(FastRelation *relation, FastColumn *column, bool binary)
{
	FastInput  *input = binary ? &column->binary_input : &column->text_input;

	if (!OidIsValid(input->function.fn_oid))
	{
		Oid			function;

		if (binary)
			getTypeBinaryInputInfo(column->type, &function, &input->param);
		else
			getTypeInputInfo(column->type, &function, &input->param);
		fmgr_info_cxt(function, &input->function, relation->context);
	}
	return input;
}

/* A number that is sent in binary; a floating-point number is stored as one, too. */
static Datum
fixed_value(const WireColumn *sent)
{
	WireCursor	cursor;

	wire_start(&cursor, sent->data, sent->length);
	switch (sent->length)
	{
		case sizeof(int16):
			return Int16GetDatum((int16) wire_uint16(&cursor));
		case sizeof(int32):
			return Int32GetDatum((int32) wire_uint32(&cursor));
		default:
			return Int64GetDatum((int64) wire_uint64(&cursor));
	}
}

/* Reads an integer in whatever form it is sent; false if it is none. */
bool
fast_read_integer(const FastColumn *column, const WireColumn *sent, int64 *value)
{
	ErrorSaveContext refused = {T_ErrorSaveContext};
	char		digits[32];

	if (sent->status == LOGICALREP_COLUMN_BINARY && sent->length == column->fixed_length)
	{
		*value = fast_integer(fixed_value(sent), sent->length);
		return true;
	}
	if (sent->status != LOGICALREP_COLUMN_TEXT || sent->length >= sizeof(digits))
		return false;
	memcpy(digits, sent->data, sent->length);
	digits[sent->length] = '\0';
	*value = pg_strtoint64_safe(digits, (Node *) &refused);
	return !refused.error_occurred;
}

/*
 * Makes a column's value of what was sent, in the current memory context.  Returns
 * false if that is nothing for the fast path.
 */
bool
fast_make_value(FastRelation *relation, FastColumn *column, const WireColumn *sent,
				Datum *value, bool *isnull)
{
	char	   *copy;

	*isnull = sent->status == LOGICALREP_COLUMN_NULL;
	*value = (Datum) 0;
	if (*isnull)
		return true;
	if (sent->status == LOGICALREP_COLUMN_BINARY && column->fixed_length > 0)
	{
		if (sent->length != column->fixed_length)
			return false;
		*value = fixed_value(sent);
		return true;
	}

	/* Input functions rely on a terminating null byte. */
	copy = palloc(sent->length + 1);
	memcpy(copy, sent->data, sent->length);
	copy[sent->length] = '\0';

	if (sent->status == LOGICALREP_COLUMN_BINARY)
	{
		FastInput  *input = input_of(relation, column, true);
		StringInfoData buffer;

		initStringInfoFromString(&buffer, copy, sent->length);
		*value = ReceiveFunctionCall(&input->function, &buffer, input->param, column->typmod);
		return buffer.cursor == buffer.len;
	}
	if (sent->status == LOGICALREP_COLUMN_TEXT)
	{
		FastInput  *input = input_of(relation, column, false);

		if (!pg_verify_mbstr(GetDatabaseEncoding(), copy, sent->length, true))
			return false;
		*value = InputFunctionCall(&input->function, copy, input->param, column->typmod);
		return true;
	}
	return false;
}
