/*
 * row_relation.c
 *	  What the output plugin has looked up of a table, to write its rows.
 *
 * When an entry is forgotten.  pgoutput keeps what it knows of a table until it is told of
 * a change of the table, of publications, or of schemas.  Weft forgets whenever pgoutput
 * does: Weft's callbacks are for the same events, and some more, and all callbacks for an
 * event run before anything else does.  Change and invalidation arrive in the right order,
 * since both come from reading the WAL, and invalidations apply to the transactions that
 * are decoded as well as to what is read of the catalogs.
 *
 * Types and functions.  What is looked up of these is looked up again after any change of
 * a type or a function.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_publication_rel.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "publish/row_relation.h"
#include "replication/logicalproto.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

/*
 * Static because the server's invalidation callbacks, which stay registered for the life
 * of the process, need them.
 */
static MemoryContext context;	/* lives as long as the decoding context */
static HTAB *relations;			/* NULL while nothing is decoded */
static bool binary;				/* as the subscriber has asked */

uint64		row_relation_types = 1;
uint64		row_relation_aborts = 0;

static void
forget(RowRelation *entry)
{
	for (int i = 0; i < NUM_ACTIONS; i++)
		entry->writers[i] = WRITER_UNKNOWN;
	entry->announced = false;
	entry->stream_xid = InvalidTransactionId;
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
	row_relation_types++;
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
end(void *ended_context)
{
	if (ended_context == context)
		relations = NULL;
}

/* Begins with no entries, for as long as the parent context lives. */
void
row_relation_start(MemoryContext parent, bool in_binary)
{
	HASHCTL		info;
	MemoryContextCallback *callback;

	register_callbacks();
	binary = in_binary;
	context = AllocSetContextCreate(parent, "weft row relations", ALLOCSET_DEFAULT_SIZES);
	callback = MemoryContextAllocZero(context, sizeof(MemoryContextCallback));
	callback->func = end;
	callback->arg = context;
	MemoryContextRegisterResetCallback(context, callback);

	info.keysize = sizeof(Oid);
	info.entrysize = sizeof(RowRelation);
	info.hcxt = context;
	relations = hash_create("weft row relations", 128, &info,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* Returns the entry of a table.  Entries are never removed, so they stay where they are. */
RowRelation *
row_relation_find(Oid relid)
{
	bool		found;
	RowRelation *entry = hash_search(relations, &relid, HASH_ENTER, &found);

	if (!found)
	{
		forget(entry);
		entry->num_columns = 0;
		entry->columns = NULL;
	}
	return entry;
}

/*
 * Will the subscriber have RELATION before the next row?  Pass the top-level transaction if
 * the row is part of a stream, otherwise an invalid one.
 */
bool
row_relation_is_announced(const RowRelation *entry, TransactionId stream_xid)
{
	if (!TransactionIdIsValid(stream_xid))
		return entry->announced;
	return entry->stream_xid == stream_xid && entry->aborts_seen == row_relation_aborts;
}

/* pgoutput has written a row there. */
void
row_relation_set_announced(RowRelation *entry, TransactionId stream_xid)
{
	if (!TransactionIdIsValid(stream_xid))
		entry->announced = true;
	else
	{
		entry->stream_xid = stream_xid;
		entry->aborts_seen = row_relation_aborts;
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
 * Looks up how the columns are written.  If anything changes meanwhile, the table is
 * forgotten, or the look-up is repeated for the next row.
 */
void
row_relation_look_up(RowRelation *entry, Relation relation)
{
	TupleDesc	desc = RelationGetDescr(relation);
	uint64		seen = row_relation_types;

	entry->types_seen = 0;		/* in case of an error */
	if (entry->columns)
		pfree(entry->columns);
	entry->columns = NULL;
	entry->num_columns = 0;
	entry->columns = MemoryContextAllocZero(context,
											Max(desc->natts, 1) * sizeof(RowColumn));
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (!attribute->attisdropped)
			look_up_column(&entry->columns[entry->num_columns++], attribute);
	}
	entry->types_seen = seen;
}

/* Does any publication, of the subscriber or not, restrict the rows or columns? */
static bool
is_filtered(Oid relid)
{
	List	   *publications = compat_relation_publications(relid);
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

/* Are all rows of the table sent alike: no filters, column lists or generated columns? */
bool
row_relation_is_plain(Relation relation)
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
