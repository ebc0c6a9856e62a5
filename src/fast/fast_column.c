/*
 * fast_column.c
 *	  The fast path: columns, and values of them as they are sent.
 *
 * The type's own function reads values, in binary as in text.  The exception is binary
 * numbers of a fixed length of which every bit pattern is a value: for them, the function
 * would check nothing but the length.
 */
#include "postgres.h"

#include "fast/fast_column.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "nodes/miscnodes.h"
#include "replication/logicalproto.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

/* Records how values of a column's type are made. */
void
fast_column_describe(FastColumn *column, Oid type, int32 typmod)
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

/* Returns the type's function, looking it up when it is needed first. */
static FastInput *
input_of(FastColumn *column, MemoryContext context, bool binary)
{
	FastInput  *input = binary ? &column->binary_input : &column->text_input;

	if (!OidIsValid(input->function.fn_oid))
	{
		Oid			function;

		if (binary)
			getTypeBinaryInputInfo(column->type, &function, &input->param);
		else
			getTypeInputInfo(column->type, &function, &input->param);
		fmgr_info_cxt(function, &input->function, context);
	}
	return input;
}

/* Reads a number that is sent in binary; floating point has the form of an integer. */
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

/*
 * Reads an integer in whatever form it is sent; in binary, it has "length" bytes (2, 4 or 8).
 * Returns false if it is none.
 */
bool
fast_column_integer(const WireColumn *sent, int length, int64 *value)
{
	ErrorSaveContext refused = {T_ErrorSaveContext};
	char		digits[32];

	if (sent->status == LOGICALREP_COLUMN_BINARY && sent->length == length)
	{
		*value = fast_column_number(fixed_value(sent), sent->length);
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
 * Makes a column's value of what was sent, in the current memory context; what is kept
 * for the column goes into "context".  Returns false if the fast path cannot make it.
 */
bool
fast_column_value(FastColumn *column, MemoryContext context, const WireColumn *sent,
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
		FastInput  *input = input_of(column, context, true);
		StringInfoData buffer;

		initStringInfoFromString(&buffer, copy, sent->length);
		*value = ReceiveFunctionCall(&input->function, &buffer, input->param, column->typmod);
		return buffer.cursor == buffer.len;
	}
	if (sent->status == LOGICALREP_COLUMN_TEXT)
	{
		FastInput  *input = input_of(column, context, false);

		if (!pg_verify_mbstr(GetDatabaseEncoding(), copy, sent->length, true))
			return false;
		*value = InputFunctionCall(&input->function, copy, input->param, column->typmod);
		return true;
	}
	return false;
}
