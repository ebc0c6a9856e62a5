/*
 * key_order.c
 *	  The fast path: whose changes may be applied in another order than they came in.
 *
 * A writer defers changes, and applies later ones before them (apply/order.c).  Nobody
 * may notice that, neither by the resulting rows, nor by an error.
 *
 * Two changes of one row keep their order because they have the same key.  The leader
 * and the writer compare keys as the publisher sends them, byte by byte
 * (receive/dependency.c).  Therefore changes of a table may be deferred only if changes of
 * one row always come with the same bytes: each value of each key column must have
 * exactly one form, whatever the publisher's settings are or become.  That does not hold
 *	 - if values are equal without being identical: numeric with any scale, floating
 *	   point (zero), interval, jsonb, citext, text and names in a nondeterministic
 *	   collation;
 *	 - if a setting, or the name of an object, decides how a value looks:
 *	   timestamp with time zone, bytea, money, enums, regclass and the like (the connection
 *	   sets DateStyle, IntervalStyle and extra_float_digits);
 *	 - if the local column has another type, and takes several texts for one value;
 *	 - if the publisher distinguishes rows by more columns than the local key has.
 * has_one_form() lists the types that are known to have one form.  No type of an extension
 * is among them.
 *
 * Whether a row may have a value can depend on another row.  If there is a unique index
 * besides the key, or an exclusion constraint, then an error may occur in one order only.
 *
 * The changes of one such table keep the order in which they came, but those of different
 * tables need not.  That order does not show that a transaction of another writer
 * has touched the same row.  The row itself shows it: it is locked, or missing, or
 * already there; then the writer whose transaction is too early applies it again.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/transam.h"
#include "catalog/pg_type.h"
#include "fast/fast_context.h"
#include "fast/key_order.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

/* Is the local type the same?  So must the modifier be, if there is a local one. */
static bool
same_type(const WireAttribute *sent, const FastColumn *column)
{
	return sent->type == column->type &&
		(column->typmod < 0 || sent->typmod == column->typmod);
}

/* Does each value of a key column have exactly one form in which it is sent? */
static bool
has_one_form(const WireAttribute *sent, const FastColumn *column, Oid collation)
{
	switch (column->type)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
			return sent->type == INT2OID || sent->type == INT4OID || sent->type == INT8OID;

		case BOOLOID:
		case DATEOID:
		case OIDOID:
		case TIMEOID:
		case TIMESTAMPOID:
		case UUIDOID:
			return same_type(sent, column);

		case NAMEOID:
			return same_type(sent, column) && get_collation_isdeterministic(collation);

		case NUMERICOID:
			/* With a scale, all have the same number of decimals. */
			return sent->typmod >= 0 && same_type(sent, column);

		case TEXTOID:
			return get_collation_isdeterministic(collation);

		case VARCHAROID:
			/* A value that is too long may lose spaces. */
			return (column->typmod < 0 || same_type(sent, column)) &&
				get_collation_isdeterministic(collation);

		case BPCHAROID:
			/* With a length, all values are padded with spaces. */
			return sent->type == BPCHAROID && sent->typmod >= 0 &&
				get_collation_isdeterministic(collation);

		default:
			return false;
	}
}

/* Is a column that is sent part of the local key, with one form for each value? */
static bool
is_plain_key(FastRelation *relation, const WireAttribute *sent, const FastColumn *column,
			 Relation index)
{
	for (int i = 0; i < relation->num_keys; i++)
		if (relation->key_columns[i] == column->local)
			return index->rd_opfamily[i] < FirstNormalObjectId &&
				has_one_form(sent, column, index->rd_indcollation[i]);
	return false;
}

/* Does the publisher name each local row by one sequence of bytes only? */
static bool
has_plain_key(FastRelation *relation)
{
	WireRelation remote;
	Relation	index;
	int			found = 0;
	bool		result = true;

	if (!fast_context.find_remote(relation->remote_relid, &remote) ||
		remote.natts != relation->num_columns)
		return false;
	index = index_open(relation->index, AccessShareLock);
	for (int i = 0; i < remote.natts && result; i++)
	{
		WireAttribute sent;

		wire_read_attribute(&remote.attributes, &sent);
		if (!sent.is_key)
			continue;
		result = is_plain_key(relation, &sent, &relation->columns[i], index);
		found++;
	}
	index_close(index, AccessShareLock);
	return result && found == relation->num_keys;
}

/* Can a row be refused because of another one, even if their keys differ? */
static bool
rows_exclude_each_other(FastRelation *relation, Relation rel)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *cell;
	bool		result = false;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		if (RelationGetRelid(index) != relation->index &&
			(index->rd_index->indisunique || index->rd_index->indisexclusion))
			result = true;
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return result;
}

/*
 * Do only changes of one row have to keep their order?  Columns and key have been
 * described.
 */
bool
key_order_describe(FastRelation *relation, Relation rel)
{
	return relation->reason == NULL && relation->key_reason == NULL &&
		has_plain_key(relation) && !rows_exclude_each_other(relation, rel);
}
