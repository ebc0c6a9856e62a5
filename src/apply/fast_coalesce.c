/*
 * fast_coalesce.c
 *	  The fast path: an update that a later one of the same row makes needless.
 *
 * An UPDATE brings all columns of its row.  Of two that share a commit, and with
 * nothing in between that touches the row, the earlier one changes nothing that
 * anybody could see, except
 *	 - where the later one leaves a value out because it has not changed (TOAST):
 *	   then the earlier one must leave it out, too;
 *	 - if it is refused.  The later one would be as well where the earlier one brings a
 *	   NULL only if that does, too.  Tables with constraints of another kind, or
 *	   with domains that have any, are left alone.
 * Both keep the row's key: what changes it comes with the old one.
 */
#include "postgres.h"

#include "apply/fast.h"
#include "replication/logicalproto.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/typcache.h"
#include "wire.h"

/* Can an update of the table be needless?  Its columns and key are described. */
bool
fast_describe_coalescing(FastRelation *relation, Relation rel)
{
	TupleConstr *constraints = RelationGetDescr(rel)->constr;

	if (relation->key_reason || rel->rd_rel->relispartition ||
		(constraints && constraints->num_check > 0))
		return false;
	for (int i = 0; i < relation->num_columns; i++)
	{
		FastColumn *column = &relation->columns[i];

		if (get_typtype(column->type) == TYPTYPE_DOMAIN && DomainHasConstraints(column->type))
			return false;
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
		memcmp(a->data, b->data, a->length) == 0;
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
		if (relation->columns[i].is_key && !same_value(&old, &new))
			return false;
		if (old.status != new.status &&
			(old.status == LOGICALREP_COLUMN_NULL || new.status == LOGICALREP_COLUMN_UNCHANGED))
			return false;
	}
	return true;
}
