/*
 * row_message.c
 *	  Writes the message of an INSERT, UPDATE or DELETE, byte for byte as pgoutput would.
 *
 * Everything here runs for each row or value.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "mb/pg_wchar.h"
#include "message_builder.h"
#include "publish/row_message.h"
#include "replication/logicalproto.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

/* Static to be allocated once, and not for each row. */
static MemoryContext context;	/* lives as long as the decoding context */
static Datum *values;			/* of the row that is written */
static bool *nulls;

void
row_message_start(MemoryContext decoding_context)
{
	context = decoding_context;
	values = MemoryContextAlloc(context, MaxTupleAttributeNumber * sizeof(Datum));
	nulls = MemoryContextAlloc(context, MaxTupleAttributeNumber * sizeof(bool));
}

/* Makes room at the end of a message, and returns where it is. */
static inline char *
add_bytes(StringInfo out, int length)
{
	char	   *result;

	if (out->maxlen - out->len <= length)
		enlargeStringInfo(out, length);
	result = out->data + out->len;
	out->len += length;
	return result;
}

/* Makes room for a value, and returns where it is. */
static inline char *
add_value(StringInfo out, char status, int length)
{
	char	   *start = add_bytes(out, 1 + sizeof(uint32) + length);

	*start = status;
	return message_put_uint32(start + 1, length);
}

static void
write_characters(StringInfo out, char status, const char *characters, int length)
{
	char	   *converted = pg_server_to_client(characters, length);

	if (converted != characters)
		length = strlen(converted);
	memcpy(add_value(out, status, length), converted, length);
}

static void
write_digits(StringInfo out, const RowColumn *column, Datum value)
{
	char		digits[MAXINT8LEN + 1];
	int			length;

	if (column->form == FORM_DIGITS2)
		length = pg_itoa(DatumGetInt16(value), digits);
	else if (column->form == FORM_DIGITS4)
		length = pg_ltoa(DatumGetInt32(value), digits);
	else
		length = pg_lltoa(DatumGetInt64(value), digits);
	memcpy(add_value(out, column->status, length), digits, length);
}

/*
 * Uses a copy of what has been looked up of the function.  What the function keeps for
 * itself, such as the types within a composite one, is not kept from one row to the next.
 */
static void
write_by_function(StringInfo out, RowColumn *column, Datum value)
{
	FmgrInfo	function;

	if (!OidIsValid(column->function.fn_oid))
		fmgr_info_cxt(column->function_oid, &column->function, context);
	function = column->function;
	function.fn_mcxt = CurrentMemoryContext;

	if (column->status == LOGICALREP_COLUMN_BINARY)
	{
		bytea	   *bytes = SendFunctionCall(&function, value);
		int			length = VARSIZE(bytes) - VARHDRSZ;

		memcpy(add_value(out, column->status, length), VARDATA(bytes), length);
	}
	else
	{
		char	   *text = OutputFunctionCall(&function, value);

		write_characters(out, column->status, text, strlen(text));
	}
}

static void
write_value(StringInfo out, RowColumn *column, Datum value)
{
	switch (column->form)
	{
		case FORM_FUNCTION:
			write_by_function(out, column, value);
			break;
		case FORM_FIXED1:
			*add_value(out, column->status, 1) = DatumGetChar(value);
			break;
		case FORM_FIXED2:
			(void) message_put_uint16(add_value(out, column->status, sizeof(uint16)),
									  DatumGetUInt16(value));
			break;
		case FORM_FIXED4:
			(void) message_put_uint32(add_value(out, column->status, sizeof(uint32)),
									  DatumGetUInt32(value));
			break;
		case FORM_FIXED8:
			(void) message_put_uint64(add_value(out, column->status, sizeof(uint64)),
									  DatumGetUInt64(value));
			break;
		case FORM_REFERENCE:
			memcpy(add_value(out, column->status, column->length), DatumGetPointer(value),
				   column->length);
			break;
		case FORM_BYTES:
			{
				struct varlena *bytes = PG_DETOAST_DATUM_PACKED(value);
				int			length = VARSIZE_ANY_EXHDR(bytes);

				memcpy(add_value(out, column->status, length), VARDATA_ANY(bytes), length);
				break;
			}
		case FORM_CHARACTERS:
			{
				struct varlena *text = PG_DETOAST_DATUM_PACKED(value);

				write_characters(out, column->status, VARDATA_ANY(text), VARSIZE_ANY_EXHDR(text));
				break;
			}
		case FORM_DIGITS2:
		case FORM_DIGITS4:
		case FORM_DIGITS8:
			write_digits(out, column, value);
			break;
	}
}

static void
write_tuple(StringInfo out, RowRelation *entry, TupleDesc desc, HeapTuple tuple)
{
	heap_deform_tuple(tuple, desc, values, nulls);
	(void) message_put_uint16(add_bytes(out, sizeof(uint16)), entry->num_columns);
	for (int i = 0; i < entry->num_columns; i++)
	{
		RowColumn  *column = &entry->columns[i];
		Datum		value = values[column->index];

		if (nulls[column->index])
			*add_bytes(out, 1) = LOGICALREP_COLUMN_NULL;
		else if (column->length == -1 && VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(value)))
			*add_bytes(out, 1) = LOGICALREP_COLUMN_UNCHANGED;
		else
			write_value(out, column, value);
	}
}

/*
 * Writes a change; within a stream, "streamed" is the transaction that made it, otherwise
 * invalid.  Functions of types may read catalogs, and may learn there of a change of the
 * table.  The description from before fits the columns that have been looked up, and stays
 * valid until the end of the local transaction.
 */
void
row_message_write(StringInfo out, RowRelation *entry, Relation relation,
				  ReorderBufferChange *change, TransactionId streamed)
{
	TupleDesc	desc = RelationGetDescr(relation);
	HeapTuple	old_tuple = change->data.tp.oldtuple;
	HeapTuple	new_tuple = change->data.tp.newtuple;
	char		type = LOGICAL_REP_MSG_INSERT;
	char		old_kind = relation->rd_rel->relreplident == REPLICA_IDENTITY_FULL ? 'O' : 'K';

	if (change->action == REORDER_BUFFER_CHANGE_UPDATE)
		type = LOGICAL_REP_MSG_UPDATE;
	else if (change->action == REORDER_BUFFER_CHANGE_DELETE)
		type = LOGICAL_REP_MSG_DELETE;

	*add_bytes(out, 1) = type;
	if (TransactionIdIsValid(streamed))
		(void) message_put_uint32(add_bytes(out, sizeof(uint32)), streamed);
	(void) message_put_uint32(add_bytes(out, sizeof(uint32)), entry->relid);
	if (type != LOGICAL_REP_MSG_INSERT && old_tuple)
	{
		*add_bytes(out, 1) = old_kind;
		write_tuple(out, entry, desc, old_tuple);
	}
	if (type != LOGICAL_REP_MSG_DELETE)
	{
		*add_bytes(out, 1) = 'N';
		write_tuple(out, entry, desc, new_tuple);
	}
}

/* The size of a tuple with all of its values that are to be sent. */
static Size
whole_size(TupleDesc desc, HeapTuple tuple)
{
	Size		result = tuple->t_len;

	if (!HeapTupleHasExternal(tuple))
		return result;
	heap_deform_tuple(tuple, desc, values, nulls);
	for (int i = 0; i < desc->natts; i++)
		if (!nulls[i] && TupleDescAttr(desc, i)->attlen == -1 &&
			VARATT_IS_EXTERNAL(DatumGetPointer(values[i])) &&
			!VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(values[i])))
			result += toast_raw_datum_size(values[i]);
	return result;
}

/* May the message of a change have more than "limit" bytes? */
bool
row_message_larger_than(Relation relation, ReorderBufferChange *change, Size limit)
{
	HeapTuple	old_tuple = change->data.tp.oldtuple;
	HeapTuple	new_tuple = change->data.tp.newtuple;
	Size		size = 0;

	if (old_tuple)
		size += whole_size(RelationGetDescr(relation), old_tuple);
	if (new_tuple)
		size += whole_size(RelationGetDescr(relation), new_tuple);
	return size > limit;
}
