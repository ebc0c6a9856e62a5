/*
 * coalesce.c
 *	  The fast path: an update that a later one of the same row makes needless.
 *
 * An UPDATE brings all columns of its row.  Of two that share a commit, and with
 * nothing in between that touches the row, the earlier one changes nothing that
 * anybody could see, except
 *	 - where the later one leaves a value out because it has not changed (TOAST):
 *	   then the earlier one must leave it out, too;
 *	 - if it is refused: natively, replication would stop there.
 * Whether transactions share a commit is chance, so it must not decide about errors.
 * An update is left out only if it would have been accepted:
 *	 - It brings a NULL only if the later one does, too.
 *	 - Each other value that the later one does not bring as well is read, with the
 *	   length and range that its column allows.  An error there ends the attempt, as
 *	   one of the fast path; what cannot be read here makes the update needed.
 *	 - Tables are left alone where more can go wrong: with constraints, with domains
 *	   that have any, partitions, rows that exclude each other (key_order.c), indexes
 *	   with expressions or of other kinds than btree and hash, rows that might not
 *	   fit into a page.  A long value of an indexed column makes its update needed.
 * Both keep the row's key: what changes it comes with the old one.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "access/tupmacs.h"
#include "fast/fast.h"
#include "catalog/pg_am.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "replication/logicalproto.h"
#include "replication/worker_internal.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/typcache.h"
#include "wire.h"

/*
 * With no more columns in an index, none of a greater length, an entry always fits into
 * a page of a btree, which takes a third of one.
 */
#define MAX_INDEX_COLUMNS 8
#define MAX_INDEXED_LENGTH 256

/* Is an indexed value of the column never much longer than what was sent? */
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

/* Does an index take all values that are not long?  Notes which columns it has. */
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

/* Does a row always fit into a page, with its values out of line if need be? */
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

/* Is a type's input function the server's own, the same for all users? */
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

/* Can an update of the table be needless?  Its columns, key and order are described. */
bool
fast_describe_coalescing(FastRelation *relation, Relation rel)
{
	TupleConstr *constraints = RelationGetDescr(rel)->constr;

	if (!relation->own_order || rel->rd_rel->relispartition ||
		(constraints && constraints->num_check > 0) ||
		!always_fits(RelationGetDescr(rel)) || !indexes_take_all(relation, rel))
		return false;
	for (int i = 0; i < relation->num_columns; i++)
	{
		FastColumn *column = &relation->columns[i];

		if (get_typtype(column->type) == TYPTYPE_DOMAIN && DomainHasConstraints(column->type))
			return false;
		column->can_be_read = can_be_read(column->type);
		for (int key = 0; key < relation->num_keys; key++)
			if (relation->key_columns[key] == column->local)
				column->is_key = true;
	}
	return true;
}

/* Is the message an UPDATE that could be needless, or make one so? */
static FastRelation *
coalescing_relation(const char *message, int length, WireChange *change)
{
	FastRelation *relation;

	if (message[0] != LOGICAL_REP_MSG_UPDATE ||
		wire_read_change(message, length, false, change) != NULL ||
		change->old_kind != 0 || !fast_known(change->relid, false))
		return NULL;
	relation = fast_find_relation(change->relid);
	if (!relation->coalesces || wire_uint16(&change->tuples) != relation->num_columns)
		return NULL;
	return relation;
}

/*
 * Is the message an UPDATE that could be needless, or make one so?  Sets *row then, to
 * the same for each change of the same row.
 */
bool
fast_may_coalesce(const char *message, int length, uint32 *row)
{
	WireChange	change;
	FastRelation *relation = coalescing_relation(message, length, &change);

	if (relation == NULL)
		return false;
	*row = relation->remote_relid;
	for (int i = 0; i < relation->num_columns; i++)
	{
		WireColumn	column;

		if (!wire_column(&change.tuples, &column))
			return false;
		if (!relation->columns[i].is_key)
			continue;
		if (column.data == NULL)
			return false;
		*row = fast_hash_key(*row, &column);
	}
	return true;
}

static bool
same_value(const WireColumn *a, const WireColumn *b)
{
	return a->status == b->status && a->length == b->length &&
		(a->data == NULL || memcmp(a->data, b->data, a->length) == 0);
}

/* Is a value a number with so few digits that its column takes it for certain? */
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

/*
 * Would the table take a value of an update that is to be left out?  Fails if it is
 * refused.
 */
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
	fast_prepare();
	old = MemoryContextSwitchTo(ApplyMessageContext);
	result = fast_make_value(relation, column, sent, &value, &isnull);
	MemoryContextSwitchTo(old);
	MemoryContextReset(ApplyMessageContext);
	return result;
}

/*
 * Does the later of two messages that may coalesce make the earlier one needless?
 * Whatever touched the row between them, the caller knows of.
 */
bool
fast_makes_needless(const char *later, int later_length,
					const char *earlier, int earlier_length)
{
	WireChange	after;
	WireChange	before;
	FastRelation *relation = coalescing_relation(later, later_length, &after);

	if (relation == NULL || coalescing_relation(earlier, earlier_length, &before) != relation)
		return false;
	for (int i = 0; i < relation->num_columns; i++)
	{
		WireColumn	old;
		WireColumn	new;

		if (!wire_column(&before.tuples, &old) || !wire_column(&after.tuples, &new))
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
