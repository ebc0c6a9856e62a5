/*
 * column_filter.c
 *	  Removes columns that were dropped here from rows that still carry them.
 *
 * A member of a group drops a column, without a lock; another one still writes rows with it.  Where
 * the column is gone already, these rows are applied without it: the writer removes it from the
 * description of the relation, and from each row, before anything else of Weft or of the
 * server sees them.  So nothing but this module knows of the column.
 *
 * schema_wait.c decides which columns those are.  A filter belongs to one RELATION message, and
 * ends with the next one that says something else, or when the columns are here again: the publisher may have dropped
 * them and added them again without writing anything in between, so that its message is the same.  Each writer has
 * its own, and finds out by itself.  The columns of the key are never removed.
 *
 * A changed row is in memory of the attempt, since it may be deferred (order.c).
 */
#include "postgres.h"

#include "apply/attempt.h"
#include "apply/column_filter.h"
#include "lib/stringinfo.h"
#include "replication/worker_internal.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "wire.h"

typedef struct ColumnFilter
{
	LogicalRepRelId relid;		/* hash key */
	bool		active;			/* else there is none, for now */
	bool		taken;			/* the message has been taken in since */
	MemoryContext context;		/* of the rest */
	char	   *original;		/* the RELATION message that it belongs to */
	int			original_length;
	char	   *filtered;		/* the same without the columns */
	int			filtered_length;
	int			natts;			/* of the original */
	Bitmapset  *dropped;		/* columns, counted from 0 */
} ColumnFilter;

static HTAB *filters = NULL;

/* Has a table changed here since the filters were looked at? */
static bool tables_changed = false;

/* Rows that were changed; reset with each attempt. */
static MemoryContext rows_context = NULL;

static ColumnFilter *
find(LogicalRepRelId relid)
{
	ColumnFilter *filter = filters ? hash_search(filters, &relid, HASH_FIND, NULL) : NULL;

	return filter != NULL && filter->active ? filter : NULL;
}

static void
note_change(Datum arg, Oid relid)
{
	tables_changed = true;
}

static void
init(void)
{
	HASHCTL		info;

	info.keysize = sizeof(LogicalRepRelId);
	info.entrysize = sizeof(ColumnFilter);
	info.hcxt = ApplyContext;
	filters = hash_create("weft column filters", 16, &info,
						  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	rows_context = AllocSetContextCreate(ApplyContext, "weft filtered rows",
										 ALLOCSET_DEFAULT_SIZES);
	CacheRegisterRelcacheCallback(note_change, (Datum) 0);
}

/* Returns the relations of whose rows columns are removed, if a table has changed here since they were returned last. */
List *
column_filter_to_check(void)
{
	HASH_SEQ_STATUS scan;
	ColumnFilter *filter;
	List	   *result = NIL;

	if (filters == NULL)
		return NIL;
	AcceptInvalidationMessages();
	if (!tables_changed)
		return NIL;
	tables_changed = false;
	hash_seq_init(&scan, filters);
	while ((filter = hash_seq_search(&scan)) != NULL)
		if (filter->active)
			result = lappend_oid(result, filter->relid);
	return result;
}

/* Nothing is removed from rows of a relation any more, once its RELATION message is taken in again. */
void
column_filter_end(LogicalRepRelId relid)
{
	ColumnFilter *filter = find(relid);

	if (filter != NULL)
		filter->active = false;
}

/* An attempt begins. */
void
column_filter_begin(void)
{
	if (rows_context)
		MemoryContextReset(rows_context);
}

/* Writes a RELATION message without the columns. */
static void
filter_relation(ColumnFilter *filter)
{
	WireRelation relation;
	WireCursor	cursor;
	StringInfoData result;
	int			count_offset;
	uint16		count;

	wire_read_relation(filter->original, filter->original_length, false, &relation);
	filter->natts = relation.natts;
	cursor = relation.attributes;
	count_offset = cursor.next - filter->original - sizeof(count);
	count = pg_hton16(relation.natts - bms_num_members(filter->dropped));
	initStringInfo(&result);
	appendBinaryStringInfo(&result, filter->original, count_offset);
	appendBinaryStringInfo(&result, &count, sizeof(count));
	for (int i = 0; i < relation.natts; i++)
	{
		const char *start = cursor.next;
		WireAttribute attribute;

		wire_read_attribute(&cursor, &attribute);
		if (!bms_is_member(i, filter->dropped))
			appendBinaryStringInfo(&result, start, cursor.next - start);
	}
	filter->filtered = result.data;
	filter->filtered_length = result.len;
}

/*
 * Columns "dropped" (by number, from 0) of a relation are to be removed, from now on if the RELATION
 * message is taken in again, else once it is taken in.  Returns false if that has happened already.
 */
bool
column_filter_plan(const char *message, int length, const Bitmapset *dropped)
{
	WireRelation relation;
	ColumnFilter *filter;
	bool		found;
	MemoryContext old;

	if (filters == NULL)
		init();
	wire_read_relation(message, length, false, &relation);
	filter = hash_search(filters, &relation.relid, HASH_ENTER, &found);
	if (!found)
	{
		filter->active = false;
		filter->context = AllocSetContextCreate(ApplyContext, "weft column filter",
												ALLOCSET_SMALL_SIZES);
	}
	if (filter->active && filter->original_length == length &&
		memcmp(filter->original, message, length) == 0 && bms_equal(filter->dropped, dropped))
		return !filter->taken;
	MemoryContextReset(filter->context);
	old = MemoryContextSwitchTo(filter->context);
	filter->original = palloc(length);
	memcpy(filter->original, message, length);
	filter->original_length = length;
	filter->dropped = bms_copy(dropped);
	filter_relation(filter);
	filter->active = true;
	filter->taken = false;
	MemoryContextSwitchTo(old);
	return true;
}

/* A RELATION message is taken in: returns what to take in instead, which may be the same. */
const char *
column_filter_relation(LogicalRepRelId relid, const char *message, int *length)
{
	ColumnFilter *filter = find(relid);

	if (filter == NULL)
		return message;
	if (filter->original_length != *length || memcmp(filter->original, message, *length) != 0)
	{
		filter->active = false;
		return message;
	}
	filter->taken = true;
	*length = filter->filtered_length;
	return filter->filtered;
}

/* Are columns removed from rows of this relation? */
bool
column_filter_has(LogicalRepRelId relid)
{
	return find(relid) != NULL;
}

/* Appends a tuple without the columns; returns false if it is not one of the relation. */
static bool
filter_tuple(const ColumnFilter *filter, WireCursor *tuple, StringInfo result)
{
	int			natts = wire_uint16(tuple);
	uint16		count = pg_hton16(natts - bms_num_members(filter->dropped));

	if (natts != filter->natts)
		return false;
	appendBinaryStringInfo(result, &count, sizeof(count));
	for (int i = 0; i < natts; i++)
	{
		const char *start = tuple->next;
		WireColumn	column;

		if (!wire_column(tuple, &column))
			return false;
		if (!bms_is_member(i, filter->dropped))
			appendBinaryStringInfo(result, start, tuple->next - start);
	}
	return true;
}

/* Returns a row without the columns. */
static RowChange
filter_row(const ColumnFilter *filter, RowChange change)
{
	WireCursor	cursor;
	StringInfoData result;
	MemoryContext old = MemoryContextSwitchTo(rows_context);
	bool		valid = true;

	initStringInfo(&result);
	MemoryContextSwitchTo(old);
	wire_start(&cursor, change.message, change.length);
	appendBinaryStringInfo(&result, wire_bytes(&cursor, 1 + sizeof(LogicalRepRelId)),
						   1 + sizeof(LogicalRepRelId));
	while (valid && cursor.next < cursor.end)
	{
		/* the kind of the tuple */
		appendStringInfoChar(&result, (char) wire_uint8(&cursor));
		valid = filter_tuple(filter, &cursor, &result);
	}
	return valid ? row_change_read(result.data, result.len) : change;
}

/* Decodes a message of a transaction, without the columns. */
RowChange
column_filter_read(const char *message, int length)
{
	RowChange	change = row_change_read(message, length);
	ColumnFilter *filter = change.is_row ? find(change.relid) : NULL;

	if (filter == NULL)
		return change;

	/* On the general path, nothing is deferred. */
	if (attempt_stage() >= ATTEMPT_GENERAL)
		MemoryContextReset(rows_context);
	return filter_row(filter, change);
}
