/*
 * unique_index.c
 *	  Unique indexes of a table, except its key's, and the values that rows have in them.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/sysattr.h"
#include "catalog/index.h"
#include "common/hashfn.h"
#include "conflict/row_key.h"
#include "conflict/unique_index.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/rel.h"
#include "utils/ruleutils.h"

/* Is the index one of those in which unique values are compared?  The key's is not. */
bool
unique_index_is_checked(Relation index, Oid key_index)
{
	return index->rd_index->indisunique && index->rd_index->indimmediate &&
		!index->rd_index->indisexclusion && index->rd_index->indisready &&
		RelationGetRelid(index) != key_index;
}

/* Does the index have an entry for the row in the slot? */
static bool
satisfies_predicate(IndexInfo *info, EState *estate)
{
	if (info->ii_Predicate == NIL)
		return true;
	if (info->ii_PredicateState == NULL)
		info->ii_PredicateState = ExecPrepareQual(info->ii_Predicate, estate);
	return ExecQual(info->ii_PredicateState, GetPerTupleExprContext(estate));
}

static void
add_name(uint64 *hash, const char *name)
{
	for (int i = 0; i < 2; i++)
		hash[i] = hash_combine64(hash[i], hash_bytes_extended((const unsigned char *) name,
															  strlen(name), i + 1));
}

/*
 * Adds what identifies an index on all members to a hash: the names of its columns, its
 * expressions, and its own name if it is partial.
 */
static void
add_index(uint64 *hash, Relation rel, Relation index)
{
	bool		has_expressions = false;

	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
	{
		AttrNumber	column = index->rd_index->indkey.values[i];

		if (column == 0)
			has_expressions = true;
		else
			add_name(hash, NameStr(TupleDescAttr(RelationGetDescr(rel), column - 1)->attname));
	}
	if (has_expressions)
		add_name(hash, pg_get_indexdef_columns(RelationGetRelid(index), false));
	if (RelationGetIndexPredicate(index) != NIL)
		add_name(hash, RelationGetRelationName(index));
}

/*
 * Computes the hash of the value that a row has in a unique index.  Returns false if it
 * has no value there that another row could share.
 */
bool
unique_index_hash(Relation rel, Relation index, IndexInfo *info, EState *estate,
				  TupleTableSlot *row, pg_uuid_t *result)
{
	ExprContext *context = GetPerTupleExprContext(estate);
	TupleTableSlot *before = context->ecxt_scantuple;
	uint64		hash[2] = {1, 1};
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];
	ListCell   *expression = list_head(info->ii_Expressions);
	bool		found;

	context->ecxt_scantuple = row;
	found = satisfies_predicate(info, estate);
	if (found)
		FormIndexDatum(info, row, estate, values, nulls);
	context->ecxt_scantuple = before;
	if (!found)
		return false;

	add_index(hash, rel, index);
	for (int i = 0; i < info->ii_NumIndexKeyAttrs; i++)
	{
		AttrNumber	column = info->ii_IndexAttrNumbers[i];
		Oid			type;

		if (nulls[i] && !info->ii_NullsNotDistinct)
			return false;
		if (column != 0)
			type = TupleDescAttr(RelationGetDescr(rel), column - 1)->atttypid;
		else
		{
			type = exprType(lfirst(expression));
			expression = lnext(info->ii_Expressions, expression);
		}
		row_key_add(hash, type, index->rd_indcollation[i], values[i], nulls[i]);
	}
	StaticAssertStmt(sizeof(hash) == sizeof(*result), "a hash fills a UUID");
	memcpy(result, hash, sizeof(*result));
	return true;
}

/* Adds all columns of a table to a set. */
static Bitmapset *
add_all_columns(Bitmapset *set, TupleDesc desc)
{
	for (int i = 0; i < desc->natts; i++)
		if (!TupleDescAttr(desc, i)->attisdropped)
			set = bms_add_member(set, i);
	return set;
}

/*
 * Returns the columns of a table, numbered from 0, on which values in unique indexes depend: all
 * of them if an index depends on the row as a whole, or on no column.
 */
Bitmapset *
conflict_unique_columns(Relation rel)
{
	Oid			key_index = GetRelationIdentityOrPK(rel);
	Bitmapset  *numbers = NULL;
	Bitmapset  *result = NULL;
	ListCell   *cell;
	int			number = -1;
	bool		found = false;

	foreach(cell, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		if (unique_index_is_checked(index, key_index))
		{
			found = true;
			for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
				if (index->rd_index->indkey.values[i] != 0)
					result = bms_add_member(result, index->rd_index->indkey.values[i] - 1);
			pull_varattnos((Node *) RelationGetIndexExpressions(index), 1, &numbers);
			pull_varattnos((Node *) RelationGetIndexPredicate(index), 1, &numbers);
		}
		index_close(index, AccessShareLock);
	}
	while ((number = bms_next_member(numbers, number)) >= 0)
	{
		int			column = number + FirstLowInvalidHeapAttributeNumber;

		if (column > 0)
			result = bms_add_member(result, column - 1);
		else if (column == 0)
			result = add_all_columns(result, RelationGetDescr(rel));
	}
	if (found && bms_is_empty(result))
		result = add_all_columns(result, RelationGetDescr(rel));
	bms_free(numbers);
	return result;
}
