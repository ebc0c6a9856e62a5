/*
 * key_order.c
 *	  The fast path: which changes may be applied in another order than they came in.
 *
 * order.c puts changes aside, and applies others before them.  Nobody must notice:
 * neither in the rows that come of it, nor in an error.
 *
 * Two changes of one row keep their order because they have the same key.  The leader,
 * and order.c, compare keys as the publisher sends them, byte by byte
 * (receive/dependency.c).  So a table's changes may be put aside only if rows here that
 * are the same have come with the same bytes: where each value of each key column has
 * just one form, whatever the publisher's settings are now, or become.  That is not so
 *	 - where values are equal without being the same: numeric with any scale, floating
 *	   point (zero), interval, jsonb, citext, text and names in a nondeterministic
 *	   collation;
 *	 - where a setting, or the name of something, decides how a value looks:
 *	   timestamp with time zone, bytea, money, enums, regclass and its like (DateStyle,
 *	   IntervalStyle and extra_float_digits are set by the connection);
 *	 - where the column here is of another type, and takes several texts for the same;
 *	 - where the publisher tells rows apart by more columns than are in the key here.
 * The list below is of what is known to have one form; types of extensions are not.
 *
 * Whether a row may have a value can depend on another row: if there is a unique index
 * besides the key, or an exclusion constraint, an error may be one in one order only.
 *
 * The changes of all other tables are applied in the order in which they came, but
 * among those of different tables.  What that order does not show - that a transaction of
 * another writer has touched the same row - is found out where the row is: it is
 * locked, or missing, or there already, and who is too early begins again.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/transam.h"
#include "fast/fast.h"
#include "apply/writer.h"
#include "catalog/pg_type.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "wire.h"

/* The same type, and modifier unless values are taken here as they come. */
static bool
same_type(const WireAttribute *sent, const FastColumn *column)
{
	return sent->type == column->type &&
		(column->typmod < 0 || sent->typmod == column->typmod);
}

/* Has each value of a key column just one form in which it is sent? */
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
			/* With a scale, all have as many digits. */
			return sent->typmod >= 0 && same_type(sent, column);

		case TEXTOID:
			return get_collation_isdeterministic(collation);

		case VARCHAROID:
			/* What is too long may lose spaces. */
			return (column->typmod < 0 || same_type(sent, column)) &&
				get_collation_isdeterministic(collation);

		case BPCHAROID:
			/* With a length, all are filled up with spaces. */
			return sent->type == BPCHAROID && sent->typmod >= 0 &&
				get_collation_isdeterministic(collation);

		default:
			return false;
	}
}

/* Is a column that is sent one of the key here, with one form for each value? */
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

/* Is a row here that which the publisher means, byte by byte? */
static bool
has_plain_key(FastRelation *relation)
{
	WireRelation remote;
	Relation	index;
	int			found = 0;
	bool		result = true;

	if (!change_find_relation(relation->remote_relid, &remote) ||
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

/* Can a row be refused because of another one, apart from their keys? */
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
 * Do only changes of one row have to keep their order?  The columns and the key are
 * described.
 */
bool
fast_describe_order(FastRelation *relation, Relation rel)
{
	return relation->reason == NULL && relation->key_reason == NULL &&
		has_plain_key(relation) && !rows_exclude_each_other(relation, rel);
}

/* Says what may be done with a message while others are put aside, as far as is known. */
FastOrder
fast_order(const char *message, int length)
{
	WireChange	change;

	switch (message[0])
	{
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:
			if (wire_read_change(message, length, false, &change) != NULL ||
				!fast_known(change.relid, change.type == LOGICAL_REP_MSG_INSERT))
				return FAST_ORDER_STRICT;
			return fast_find_relation(change.relid)->own_order ?
				FAST_ORDER_OF_ROW : FAST_ORDER_OF_TABLE;
		default:
			return FAST_ORDER_STRICT;
	}
}
