/*
 * coalesce.c
 *	  The fast path: updates that a later one of the same row supersedes.
 *
 * An UPDATE brings all columns of its row.  If two UPDATEs of a row share a commit, and
 * nothing in between touches the row, then nobody can see what the earlier one changes,
 * and it is coalesced with the later one.  There are two exceptions:
 *	 - The later one does not bring a value, because it has not changed (TOAST).
 *	   Then the earlier one must not bring it, either.
 *	 - The earlier one is refused.  Natively, replication would stop there.
 * Chance decides whether transactions share a commit, so that must not decide whether there
 * is an error.  Therefore an update is coalesced only if it would have been accepted:
 *	 - It brings a NULL only if the later one brings a NULL, too.
 *	 - Every other value that differs from the later one's is read, with the
 *	   length and range that its column allows.  An error while reading is one of the
 *	   fast path, and ends the attempt.  If a value cannot be read here, then the update
 *	   is not coalesced.
 *	 - Tables where more can go wrong are excluded: those with check constraints or
 *	   domains with constraints, partitions, tables with rows that exclude each other
 *	   (key_order.c), with indexes that have expressions or are neither btree nor hash, and
 *	   with rows that might not fit into a page.  An update with a long value of an
 *	   indexed column is not coalesced.
 * Both updates keep the row's key: one that changes it comes with the old key.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "access/tupmacs.h"
#include "catalog/pg_am.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "fast/coalesce.h"
#include "fast/fast_session.h"
#include "fast/row_count.h"
#include "mb/pg_wchar.h"
#include "replication/logicalproto.h"
#include "replication/worker_internal.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/typcache.h"

/*
 * Limits for the columns of an index, and for the length of each, within which an entry
 * always fits into a btree, which allows a third of a page.
 */
#define MAX_INDEX_COLUMNS 8
#define MAX_INDEXED_LENGTH 256

/* Is an indexed value of the column never much longer than it was when it was sent? */
static bool
may_be_indexed(Form_pg_attribute attribute)
{
	if (attribute->attlen > 0)
		return true;
	switch (attribute->atttypid)
	{
		case NUMERICOID:
		case TEXTOID:
		case VARCHAROID:
			return true;
		case BPCHAROID:
			return attribute->atttypmod >= 0 &&
				attribute->atttypmod - VARHDRSZ <= MAX_INDEXED_LENGTH / MAX_MULTIBYTE_CHAR_LEN;
		default:
			return false;
	}
}

/* Does an index accept all values that are not long?  Marks the columns that it has. */
static bool
takes_all(FastRelation *relation, Relation rel, Relation index)
{
	int			num = IndexRelationGetNumberOfAttributes(index);

	if ((index->rd_rel->relam != BTREE_AM_OID && index->rd_rel->relam != HASH_AM_OID) ||
		num > MAX_INDEX_COLUMNS || RelationGetIndexPredicate(index) != NIL)
		return false;
	for (int i = 0; i < num; i++)
	{
		int			column = index->rd_index->indkey.values[i];

		if (column <= 0 ||
			(i < IndexRelationGetNumberOfKeyAttributes(index) &&
			 index->rd_opfamily[i] >= FirstNormalObjectId) ||
			!may_be_indexed(TupleDescAttr(RelationGetDescr(rel), column - 1)))
			return false;
		for (int j = 0; j < relation->num_columns; j++)
			if (relation->columns[j].local == column - 1)
				relation->columns[j].is_indexed = true;
	}
	return true;
}

static bool
indexes_take_all(FastRelation *relation, Relation rel)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *cell;
	bool		result = true;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		result = result && takes_all(relation, rel, index);
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return result;
}

/* Does a row always fit into a page, with its values out of line if necessary? */
static bool
always_fits(TupleDesc desc)
{
	Size		size = SizeofHeapTupleHeader + BITMAPLEN(desc->natts);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (attribute->attisdropped)
			continue;
		if (attribute->attlen > 0)
			size = att_align_nominal(size, attribute->attalign) + attribute->attlen;
		else if (attribute->attstorage == TYPSTORAGE_PLAIN)
			return false;
		else
			size += MAXIMUM_ALIGNOF + TOAST_POINTER_SIZE;
	}
	return MAXALIGN(size) <= MaxHeapTupleSize;
}

/* Is a type's input function one of the server's, and the same for all users? */
static bool
can_be_read(Oid type)
{
	switch (type)
	{
		case BOOLOID:
		case BPCHAROID:
		case BYTEAOID:
		case DATEOID:
		case FLOAT4OID:
		case FLOAT8OID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case INTERVALOID:
		case JSONBOID:
		case JSONOID:
		case NUMERICOID:
		case TEXTOID:
		case TIMEOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
		case UUIDOID:
		case VARCHAROID:
			return true;
		default:
			return get_typtype(type) == TYPTYPE_ENUM;
	}
}

/* Can updates of the table be coalesced?  Columns, key and order have been described. */
bool
coalesce_describe(FastRelation *relation, Relation rel)
{
	TupleConstr *constraints = RelationGetDescr(rel)->constr;

	if (!relation->own_order || rel->rd_rel->relispartition ||
		(constraints && constraints->num_check > 0) ||
		!always_fits(RelationGetDescr(rel)) || !indexes_take_all(relation, rel))
		return false;
	for (int i = 0; i < relation->num_columns; i++)
	{
		FastColumn *column = &relation->columns[i];

		if (get_typtype(column->type) == TYPTYPE_DOMAIN && compat_domain_has_constraints(column->type))
			return false;
		column->can_be_read = can_be_read(column->type);
		for (int key = 0; key < relation->num_keys; key++)
			if (relation->key_columns[key] == column->local)
				column->is_key = true;
	}
	return true;
}

/* Returns the relation of an UPDATE that could be coalesced with another one, or NULL. */
static FastRelation *
coalescing_relation(const RowChange *change)
{
	FastRelation *relation;

	if (change->type != LOGICAL_REP_MSG_UPDATE || change->old_kind != 0)
		return NULL;
	relation = fast_relation_find(change->relid);
	return fast_relation_known(relation, false) && relation->coalesces ? relation : NULL;
}

/*
 * Is the change an UPDATE that could be coalesced with another one of its row?  If so, sets
 * *row, to the same for each change of that row.
 */
bool
coalesce_is_possible(const RowChange *change, uint32 *row)
{
	FastRelation *relation = coalescing_relation(change);
	WireCursor	cursor;

	if (relation == NULL)
		return false;
	cursor = row_change_tuples(change);
	if (wire_uint16(&cursor) != relation->num_columns)
		return false;
	*row = relation->remote_relid;
	for (int i = 0; i < relation->num_columns; i++)
	{
		WireColumn	column;

		if (!wire_column(&cursor, &column))
			return false;
		if (!relation->columns[i].is_key)
			continue;
		if (column.data == NULL)
			return false;
		*row = fast_column_hash(*row, &column);
	}
	return true;
}

static bool
same_value(const WireColumn *a, const WireColumn *b)
{
	return a->status == b->status && a->length == b->length &&
		(a->data == NULL || memcmp(a->data, b->data, a->length) == 0);
}

/* Is a value a number with so few digits that its column certainly accepts it? */
static bool
is_small_number(const FastColumn *column, const WireColumn *sent)
{
	const char *next = sent->data;
	const char *end = sent->data + sent->length;

	if (sent->status != LOGICALREP_COLUMN_TEXT)
		return false;
	if (next < end && *next == '-')
		next++;
	if (next == end || end - next > 2 * column->fixed_length)
		return false;
	while (next < end)
		if (*next < '0' || *next++ > '9')
			return false;
	return true;
}

/* Would the table accept a value of an update to coalesce?  Throws an error if not. */
static bool
is_accepted(FastRelation *relation, FastColumn *column, const WireColumn *sent)
{
	MemoryContext old;
	Datum		value;
	bool		isnull;
	bool		result;

	if (sent->data == NULL || is_small_number(column, sent))
		return true;
	if (!column->can_be_read || (column->is_indexed && sent->length > MAX_INDEXED_LENGTH))
		return false;
	fast_session_prepare();
	old = MemoryContextSwitchTo(ApplyMessageContext);
	result = fast_column_value(column, relation->context, sent, &value, &isnull);
	MemoryContextSwitchTo(old);
	MemoryContextReset(ApplyMessageContext);
	return result;
}

/* Does the later of two UPDATEs of a relation supersede the earlier one? */
static bool
supersedes(FastRelation *relation, const RowChange *later, const RowChange *earlier)
{
	WireCursor	after = row_change_tuples(later);
	WireCursor	before = row_change_tuples(earlier);

	if (wire_uint16(&after) != relation->num_columns ||
		wire_uint16(&before) != relation->num_columns)
		return false;
	for (int i = 0; i < relation->num_columns; i++)
	{
		WireColumn	old;
		WireColumn	new;

		if (!wire_column(&before, &old) || !wire_column(&after, &new))
			return false;
		if (same_value(&old, &new))
			continue;
		if (relation->columns[i].is_key ||
			(old.status != new.status &&
			 (old.status == LOGICALREP_COLUMN_NULL || new.status == LOGICALREP_COLUMN_UNCHANGED)) ||
			!is_accepted(relation, &relation->columns[i], &old))
			return false;
	}
	return true;
}

/*
 * Coalesces two UPDATEs for which coalesce_is_possible() has returned true and the same
 * row, if the later one supersedes the earlier one: then the earlier one is counted as
 * applied, and the caller drops it.  The caller ensures that nothing in between touches
 * the row.
 */
bool
coalesce_updates(const RowChange *later, const RowChange *earlier)
{
	FastRelation *relation = coalescing_relation(later);

	if (relation == NULL || coalescing_relation(earlier) != relation ||
		!supersedes(relation, later, earlier))
		return false;
	row_count_touch(relation);
	relation->counts.updates++;
	relation->counts.coalesced_rows++;
	return true;
}
