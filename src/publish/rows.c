/*
 * rows.c
 *	  Writing the rows of ordinary tables in place of pgoutput.
 *
 * pgoutput looks up type and function of each value that it sends, and takes
 * each row through slots and filters.  For tables that have neither filters nor
 * anything else to decide we write the same messages with less work: all that
 * depends on the table is looked up once.  Everything else is left to pgoutput:
 * transactions in progress (stream_change_cb is not ours), TRUNCATE, messages,
 * begin and end of transactions, RELATION and TYPE, and rows of all other tables.
 *
 * What is learned.  We do not decide what is published.  The first change of
 * each kind - insert, update, delete - of a table goes to pgoutput, and the row
 * that it sends is compared with the one that we would send.  If they are the
 * same, the next changes of that kind are ours; if it sends none, or another one,
 * they are left to pgoutput.  So no row is ever left out by us.  This holds for
 * the next rows, too, since nothing in pgoutput's decision depends on the row
 * once there is no row filter, which is_plain() makes sure of.
 *
 * When it is forgotten.  pgoutput keeps what it knows of a table until it is told
 * of a change of the table, of publications, or of schemas, and we forget
 * whenever it does: our callbacks are for the same events, and some more, and all
 * callbacks for an event run before anything else.  Change and invalidation come
 * in the right order since reading the WAL brings both, and invalidations apply
 * to transactions that are decoded as well as to what is read of the catalogs.
 *
 * Why RELATION always precedes.  pgoutput sends RELATION with the first row
 * outside of streaming after it has forgotten the table.  We write a row only if
 * it has written one outside of streaming since then.  Streamed transactions do
 * not take that back: they can only add to whom it has sent RELATION, or bring
 * invalidations, of which we are told as well.
 *
 * Why BEGIN always precedes.  pgoutput sends BEGIN with the first thing of a
 * transaction that it publishes, and COMMIT if it has sent BEGIN.  If that thing
 * is a row of ours, it is given an empty message for the subscriber before, of
 * the kind that pg_logical_emit_message() writes.  That makes it send BEGIN, and
 * ORIGIN where there is one; the message itself is not sent.  For this pgoutput
 * must believe that the subscriber wants such messages.  If it does not, real
 * ones do not get as far as pgoutput.  A prepared transaction has its BEGIN
 * PREPARE before everything else.
 *
 * Types and functions.  What is looked up of these is looked up again after any
 * change of a type or a function.  What a function keeps for itself, such as the
 * types within a composite one, is not kept from one row to the next.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_publication_rel.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "compat.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "message_builder.h"
#include "nodes/makefuncs.h"
#include "nodes/value.h"
#include "publish/rows.h"
#include "replication/logicalproto.h"
#include "replication/output_plugin.h"
#include "replication/reorderbuffer.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

/* Inserts, updates and deletes come first among the changes. */
#define NUM_ACTIONS (REORDER_BUFFER_CHANGE_DELETE + 1)

/* Who writes the rows for one kind of change of a table. */
typedef enum RowWriter
{
	WRITER_UNKNOWN,				/* pgoutput writes the next one */
	WRITER_LEARNING,			/* it is doing that, or has failed */
	WRITER_PGOUTPUT,
	WRITER_OURS,
} RowWriter;

/* How a value is written. */
typedef enum ValueForm
{
	FORM_FUNCTION,				/* by its type's function */
	FORM_FIXED1,				/* as it is, in network byte order */
	FORM_FIXED2,
	FORM_FIXED4,
	FORM_FIXED8,
	FORM_REFERENCE,				/* as it is, of the length of its type */
	FORM_BYTES,					/* as it is, of its own length */
	FORM_CHARACTERS,			/* the same, in the client's encoding */
	FORM_DIGITS2,				/* an integer as text */
	FORM_DIGITS4,
	FORM_DIGITS8,
} ValueForm;

typedef struct RowColumn
{
	int			index;			/* among the table's, dropped ones included */
	int			length;			/* of the type; -1 if that varies */
	char		status;			/* LOGICALREP_COLUMN_BINARY or _TEXT */
	ValueForm	form;
	Oid			function_oid;
	FmgrInfo	function;		/* looked up when it is needed first */
} RowColumn;

typedef struct RowRelation
{
	Oid			relid;			/* the hash key */
	RowWriter	writers[NUM_ACTIONS];
	uint64		types_seen;		/* "types_changed" before the look-up */
	int			num_columns;	/* without dropped ones */
	RowColumn  *columns;
} RowRelation;

/* The change that pgoutput is to write for us to see. */
typedef struct Lesson
{
	RowRelation *entry;
	Relation	relation;
	ReorderBufferChange *change;
	bool		seen;			/* it has been written */
	bool		same;			/* as we would write it */
} Lesson;

static LogicalDecodeBeginCB pgoutput_begin;
static LogicalDecodeChangeCB pgoutput_change;
static LogicalDecodeMessageCB pgoutput_message;

static MemoryContext rows_context;	/* as long as the decoding context */
static MemoryContext row_context;	/* reset for each row */
static HTAB *relations;			/* NULL while nothing is decoded */
static RowRelation *recent[64]; /* by the last bits of "relid" */
static Datum *values;			/* of the row that is written */
static bool *nulls;

static bool binary;				/* as the subscriber has asked */
static bool messages_wanted;	/* the same */
static bool begun;				/* BEGIN has been written for the transaction */
static bool only_begin;			/* the message that comes is not to be sent */
static Lesson *lesson;
static uint64 types_changed = 1;

static void
forget(RowRelation *entry)
{
	for (int i = 0; i < NUM_ACTIONS; i++)
		entry->writers[i] = WRITER_UNKNOWN;
	entry->types_seen = 0;
}

/* A table, or every one, has changed. */
static void
relation_changed(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS scan;
	RowRelation *entry;

	if (relations == NULL)
		return;
	if (OidIsValid(relid))
	{
		entry = hash_search(relations, &relid, HASH_FIND, NULL);
		if (entry)
			forget(entry);
		return;
	}
	hash_seq_init(&scan, relations);
	while ((entry = hash_seq_search(&scan)) != NULL)
		forget(entry);
}

static void
publications_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	relation_changed(arg, InvalidOid);
}

static void
type_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	types_changed++;
}

/* These stay for the life of the process. */
static void
register_callbacks(void)
{
	static bool registered = false;

	if (registered)
		return;
	registered = true;
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	compat_register_relsync_callback(relation_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, publications_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(PUBLICATIONOID, publications_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(PUBLICATIONNAMESPACEMAP, publications_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(PUBLICATIONRELMAP, publications_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(PROCOID, type_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPEOID, type_changed, (Datum) 0);
}

/* A decoding context goes away, which may be one that an error has left behind. */
static void
rows_end(void *context)
{
	if (context == rows_context)
	{
		relations = NULL;
		lesson = NULL;
	}
}

/* The form of a value that is sent in binary. */
static ValueForm
binary_form(Form_pg_attribute attribute, Oid send)
{
	switch (send)
	{
		case F_BOOLSEND:
		case F_CASH_SEND:
		case F_CHARSEND:
		case F_DATE_SEND:
		case F_FLOAT4SEND:
		case F_FLOAT8SEND:
		case F_INT2SEND:
		case F_INT4SEND:
		case F_INT8SEND:
		case F_OIDSEND:
		case F_TIMESTAMPTZ_SEND:
		case F_TIMESTAMP_SEND:
		case F_TIME_SEND:
			if (!attribute->attbyval)
				return FORM_FUNCTION;
			switch (attribute->attlen)
			{
				case 1:
					return FORM_FIXED1;
				case 2:
					return FORM_FIXED2;
				case 4:
					return FORM_FIXED4;
				case 8:
					return FORM_FIXED8;
			}
			return FORM_FUNCTION;
		case F_UUID_SEND:
			return FORM_REFERENCE;
		case F_BYTEASEND:
			return FORM_BYTES;
		case F_BPCHARSEND:
		case F_JSON_SEND:
		case F_TEXTSEND:
		case F_VARCHARSEND:
			return FORM_CHARACTERS;
		default:
			return FORM_FUNCTION;
	}
}

/* The form of a value that is sent as text. */
static ValueForm
text_form(Form_pg_attribute attribute, Oid output)
{
	switch (output)
	{
		case F_INT2OUT:
			return FORM_DIGITS2;
		case F_INT4OUT:
			return FORM_DIGITS4;
		case F_INT8OUT:
			return attribute->attbyval ? FORM_DIGITS8 : FORM_FUNCTION;
		case F_BPCHAROUT:
		case F_JSON_OUT:
		case F_TEXTOUT:
		case F_VARCHAROUT:
			return FORM_CHARACTERS;
		default:
			return FORM_FUNCTION;
	}
}

static void
look_up_column(RowColumn *column, Form_pg_attribute attribute)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(attribute->atttypid));
	Form_pg_type type;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for type %u", attribute->atttypid);
	type = (Form_pg_type) GETSTRUCT(tuple);

	column->index = attribute->attnum - 1;
	column->length = attribute->attlen;
	if (binary && OidIsValid(type->typsend))
	{
		column->status = LOGICALREP_COLUMN_BINARY;
		column->form = binary_form(attribute, type->typsend);
		column->function_oid = type->typsend;
	}
	else
	{
		column->status = LOGICALREP_COLUMN_TEXT;
		column->form = text_form(attribute, type->typoutput);
		column->function_oid = type->typoutput;
	}
	ReleaseSysCache(tuple);
}

/*
 * Looks up how the columns are written.  Should anything change meanwhile, the
 * table is forgotten, or the look-up repeated for the next row.
 */
static void
look_up_columns(RowRelation *entry, Relation relation)
{
	TupleDesc	desc = RelationGetDescr(relation);
	uint64		seen = types_changed;

	if (entry->columns)
		pfree(entry->columns);
	entry->columns = NULL;
	entry->num_columns = 0;
	entry->columns = MemoryContextAllocZero(rows_context,
											Max(desc->natts, 1) * sizeof(RowColumn));
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (!attribute->attisdropped)
			look_up_column(&entry->columns[entry->num_columns++], attribute);
	}
	entry->types_seen = seen;
}

/* Does any publication, be it one of the subscriber's or not, restrict the rows? */
static bool
is_filtered(Oid relid)
{
	List	   *publications = GetRelationPublications(relid);
	ListCell   *cell;
	bool		filtered = false;

	foreach(cell, publications)
	{
		HeapTuple	tuple = SearchSysCache2(PUBLICATIONRELMAP,
											ObjectIdGetDatum(relid),
											ObjectIdGetDatum(lfirst_oid(cell)));

		if (!HeapTupleIsValid(tuple))
			return true;
		if (!heap_attisnull(tuple, Anum_pg_publication_rel_prqual, NULL) ||
			!heap_attisnull(tuple, Anum_pg_publication_rel_prattrs, NULL))
			filtered = true;
		ReleaseSysCache(tuple);
	}
	list_free(publications);
	return filtered;
}

/* Is there nothing about the table that makes its rows differ in what is sent? */
static bool
is_plain(Relation relation)
{
	TupleDesc	desc = RelationGetDescr(relation);

	if (relation->rd_rel->relkind != RELKIND_RELATION ||
		relation->rd_rel->relispartition)
		return false;
	for (int i = 0; i < desc->natts; i++)
		if (TupleDescAttr(desc, i)->attgenerated)
			return false;
	return !is_filtered(RelationGetRelid(relation));
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

/* With a copy of what has been looked up, so that nothing is added to that. */
static void
write_by_function(StringInfo out, RowColumn *column, Datum value)
{
	FmgrInfo	function;

	if (!OidIsValid(column->function.fn_oid))
		fmgr_info_cxt(column->function_oid, &column->function, rows_context);
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
 * Writes a change.  Functions of types may read catalogs, and so learn of a
 * change of the table; the description from before is the one that fits to the
 * columns, and stays until the end of the local transaction.
 */
static void
write_change(StringInfo out, RowRelation *entry, Relation relation,
			 ReorderBufferChange *change)
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

/* pgoutput has written the change that we are to learn from. */
static void
compare(const char *data, int length)
{
	MemoryContext caller = MemoryContextSwitchTo(row_context);
	StringInfoData own;

	initStringInfo(&own);
	write_change(&own, lesson->entry, lesson->relation, lesson->change);
	lesson->seen = true;
	lesson->same = own.len == length && memcmp(own.data, data, length) == 0;
	MemoryContextSwitchTo(caller);
	MemoryContextReset(row_context);
}

/* A message has been written; returns whether it is to be sent. */
bool
rows_message(const char *data, int length)
{
	switch (data[0])
	{
		case LOGICAL_REP_MSG_BEGIN:
		case LOGICAL_REP_MSG_BEGIN_PREPARE:
			begun = true;
			break;
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:
			/* If the table was forgotten meanwhile, the columns may not fit. */
			if (lesson && lesson->entry->writers[lesson->change->action] == WRITER_LEARNING)
				compare(data, length);
			break;
		case LOGICAL_REP_MSG_MESSAGE:
			return !only_begin;
	}
	return true;
}

/* Has pgoutput write a change, and finds out who writes the next of its kind. */
static void
learn(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation,
	  ReorderBufferChange *change, RowRelation *entry)
{
	RowWriter  *writer = &entry->writers[change->action];
	Lesson		here = {entry, relation, change, false, false};
	bool		plain;

	*writer = WRITER_LEARNING;
	plain = is_plain(relation);
	if (plain)
		look_up_columns(entry, relation);

	PG_TRY();
	{
		lesson = plain ? &here : NULL;
		pgoutput_change(ctx, txn, relation, change);
	}
	PG_FINALLY();
	{
		lesson = NULL;
	}
	PG_END_TRY();

	/* If it was forgotten again meanwhile, the next change will do. */
	if (*writer == WRITER_LEARNING)
	{
		*writer = here.same ? WRITER_OURS : WRITER_PGOUTPUT;
		ereport(DEBUG1,
				(errmsg_internal("table \"%s\", change %d: rows are written by %s%s",
								 RelationGetRelationName(relation), (int) change->action,
								 here.same ? "Weft" : "pgoutput",
								 here.seen && !here.same ? ", since ours differ" : "")));
	}
}

/* Does the change have what a message of its kind needs? */
static bool
is_complete(Relation relation, ReorderBufferChange *change)
{
	bool		identified = relation->rd_rel->relreplident != REPLICA_IDENTITY_NOTHING;

	switch (change->action)
	{
		case REORDER_BUFFER_CHANGE_INSERT:
			return change->data.tp.newtuple != NULL;
		case REORDER_BUFFER_CHANGE_UPDATE:
			return change->data.tp.newtuple != NULL && identified;
		case REORDER_BUFFER_CHANGE_DELETE:
			return change->data.tp.oldtuple != NULL && identified;
		default:
			return false;
	}
}

static RowRelation *
find_entry(Oid relid)
{
	RowRelation **found_last = &recent[relid % lengthof(recent)];
	RowRelation *entry = *found_last;
	bool		found;

	/* Entries are never removed, so they stay where they are. */
	if (entry && entry->relid == relid)
		return entry;

	entry = hash_search(relations, &relid, HASH_ENTER, &found);
	*found_last = entry;
	if (!found)
	{
		forget(entry);
		entry->num_columns = 0;
		entry->columns = NULL;
	}
	return entry;
}

/* In place of pgoutput's. */
static void
rows_begin(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	begun = false;
	only_begin = false;
	pgoutput_begin(ctx, txn);
}

/* Has pgoutput write BEGIN if it has not done that yet. */
static void
ensure_begun(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	if (begun)
		return;
	only_begin = true;
	pgoutput_message(ctx, txn, InvalidXLogRecPtr, true, "", 0, "");
	only_begin = false;
}

/* In place of pgoutput's. */
static void
rows_change(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation,
			ReorderBufferChange *change)
{
	RowRelation *entry;
	RowWriter  *writer;

	if (!is_complete(relation, change))
	{
		pgoutput_change(ctx, txn, relation, change);
		return;
	}

	entry = find_entry(RelationGetRelid(relation));
	writer = &entry->writers[change->action];
	if (*writer < WRITER_PGOUTPUT)
	{
		learn(ctx, txn, relation, change, entry);
		return;
	}

	/* Each of these may find out that the table has changed. */
	if (*writer == WRITER_OURS)
		ensure_begun(ctx, txn);
	if (*writer == WRITER_OURS && entry->types_seen != types_changed)
		look_up_columns(entry, relation);

	if (*writer == WRITER_OURS && begun)
	{
		MemoryContext caller;

		OutputPluginPrepareWrite(ctx, true);
		caller = MemoryContextSwitchTo(row_context);
		write_change(ctx->out, entry, relation, change);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(row_context);
		OutputPluginWrite(ctx, true);
	}
	else
		pgoutput_change(ctx, txn, relation, change);
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

bool
rows_larger_than(Relation relation, ReorderBufferChange *change, Size limit)
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

/* Reads the options that are for us, too, and has pgoutput accept messages. */
void
rows_take_options(List **options)
{
	ListCell   *cell;
	DefElem    *messages = NULL;

	binary = false;
	foreach(cell, *options)
	{
		DefElem    *option = lfirst(cell);

		if (strcmp(option->defname, "binary") == 0)
			binary = defGetBoolean(option);
		else if (strcmp(option->defname, "messages") == 0)
			messages = option;
	}

	messages_wanted = messages != NULL && defGetBoolean(messages);
	if (messages == NULL)
	{
		messages = makeDefElem("messages", NULL, -1);
		*options = lappend(*options, messages);
	}
	messages->arg = (Node *) makeString("true");
}

void
rows_start(LogicalDecodingContext *ctx)
{
	HASHCTL		info;
	MemoryContextCallback *end;

	register_callbacks();

	rows_context = AllocSetContextCreate(ctx->context, "weft rows", ALLOCSET_DEFAULT_SIZES);
	row_context = AllocSetContextCreate(rows_context, "weft row", ALLOCSET_DEFAULT_SIZES);
	end = MemoryContextAllocZero(rows_context, sizeof(MemoryContextCallback));
	end->func = rows_end;
	end->arg = rows_context;
	MemoryContextRegisterResetCallback(rows_context, end);

	info.keysize = sizeof(Oid);
	info.entrysize = sizeof(RowRelation);
	info.hcxt = rows_context;
	relations = hash_create("weft rows", 128, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	memset(recent, 0, sizeof(recent));
	values = MemoryContextAlloc(rows_context, MaxTupleAttributeNumber * sizeof(Datum));
	nulls = MemoryContextAlloc(rows_context, MaxTupleAttributeNumber * sizeof(bool));
	begun = false;
	only_begin = false;
	lesson = NULL;

	pgoutput_begin = ctx->callbacks.begin_cb;
	pgoutput_change = ctx->callbacks.change_cb;
	pgoutput_message = ctx->callbacks.message_cb;
	ctx->callbacks.begin_cb = rows_begin;
	ctx->callbacks.change_cb = rows_change;
	if (!messages_wanted)
	{
		ctx->callbacks.message_cb = NULL;
		ctx->callbacks.stream_message_cb = NULL;
	}
}
