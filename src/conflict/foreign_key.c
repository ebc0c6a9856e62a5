/*
 * foreign_key.c
 *	  Rows that arrive after the row that they refer to has been deleted.
 *
 * Foreign keys are not enforced when changes are applied: the publisher has checked them.
 * But node N1 may delete a parent row while node N2 adds a reference to it.  Nobody can
 * tell which of the two was meant.  All members end with the reference and without the
 * parent.  Each node on which the reference arrives after the parent was deleted records
 * this (parent_missing); N1, at least, is such a node.
 *
 * On N1, the session that deletes the parent and the writer that stores the reference do not see
 * each other's rows before they commit.  As the server's own check does, the writer locks the
 * parent against deletion until it commits.  If the session was first, the writer waits for it, and
 * then finds the parent deleted; if the writer was first, the session waits, and then finds the
 * reference, so that its statement fails.  If each waits for the other, the server's deadlock
 * detection cancels one.  A writer that waits for its turn gives up its locks to an earlier one
 * that needs them (turn.c).
 *
 * A parent that is missing may also be one that a third node has inserted and that has not
 * arrived yet.  Therefore it counts as deleted only if there is a tombstone of it, or, if
 * the reference is to a unique index other than the key, a claim to its value.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "conflict/decision.h"
#include "conflict/foreign_key.h"
#include "conflict/history.h"
#include "conflict/remote_transaction.h"
#include "conflict/row_key.h"
#include "conflict/tombstone.h"
#include "conflict/unique_index.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/* A row's reference to another table. */
typedef struct Reference
{
	const ForeignKeyCacheInfo *key;
	Relation	parent;
	Relation	index;			/* of the parent, by which it is found */
	TupleTableSlot *row;		/* a row of the parent, in which only the
								 * values referred to are set */
} Reference;

static Oid
index_of(const ForeignKeyCacheInfo *key)
{
	HeapTuple	tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(key->conoid));
	Oid			result = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		result = ((Form_pg_constraint) GETSTRUCT(tuple))->conindid;
		ReleaseSysCache(tuple);
	}
	return result;
}

static bool
is_integer(Oid type)
{
	return type == INT2OID || type == INT4OID || type == INT8OID;
}

/* Do two types store equal values in the same form? */
static bool
same_form(Oid type, Oid other)
{
	return type == other || (is_integer(type) && is_integer(other)) ||
		((type == TEXTOID || type == VARCHAROID) && (other == TEXTOID || other == VARCHAROID));
}

/*
 * Sets reference->row to the values that a row refers to.  Returns false if it refers to
 * nothing, or to the same values as "replaced", the row that it replaces, which may be
 * NULL.
 */
static bool
read_reference(Target *target, Reference *reference, TupleTableSlot *row,
			   TupleTableSlot *replaced)
{
	const ForeignKeyCacheInfo *key = reference->key;
	bool		changed = replaced == NULL;

	ExecStoreAllNullTuple(reference->row);
	for (int i = 0; i < key->nkeys; i++)
	{
		Form_pg_attribute from = TupleDescAttr(RelationGetDescr(target->rel), key->conkey[i] - 1);
		Form_pg_attribute to = TupleDescAttr(RelationGetDescr(reference->parent),
											 key->confkey[i] - 1);
		bool		isnull;
		bool		was_null = true;
		Datum		value = slot_getattr(row, key->conkey[i], &isnull);
		Datum		before = (Datum) 0;

		if (isnull || !same_form(from->atttypid, to->atttypid))
			return false;
		if (replaced)
			before = slot_getattr(replaced, key->conkey[i], &was_null);
		changed = changed || was_null ||
			!datum_image_eq(value, before, from->attbyval, from->attlen);
		reference->row->tts_values[key->confkey[i] - 1] = value;
		reference->row->tts_isnull[key->confkey[i] - 1] = false;
	}
	return changed;
}

/* Looks for the parent row. */
static bool
find_parent(Reference *reference, TupleTableSlot *found)
{
	const ForeignKeyCacheInfo *key = reference->key;
	ScanKeyData keys[INDEX_MAX_KEYS];
	IndexScanDesc scan;
	bool		result;

	for (int i = 0; i < key->nkeys; i++)
	{
		AttrNumber	column = reference->index->rd_index->indkey.values[i];
		int			number = 0;

		while (number < key->nkeys - 1 && key->confkey[number] != column)
			number++;
		ScanKeyEntryInitialize(&keys[i], 0, i + 1, BTEqualStrategyNumber,
							   get_atttype(key->conrelid, key->conkey[number]),
							   reference->index->rd_indcollation[i],
							   get_opcode(key->conpfeqop[number]),
							   reference->row->tts_values[column - 1]);
	}
	scan = compat_index_beginscan(reference->parent, reference->index, SnapshotSelf, key->nkeys);
	index_rescan(scan, keys, key->nkeys, NULL, 0);
	result = index_getnext_slot(scan, ForwardScanDirection, found);
	if (result)
		ExecMaterializeSlot(found);
	index_endscan(scan);
	return result;
}

/* Does the parent row exist?  If so, nobody can delete it before this transaction ends. */
static bool
parent_exists(Reference *reference)
{
	TupleTableSlot *found = table_slot_create(reference->parent, NULL);
	TM_Result	locked = TM_Updated;

	while (locked != TM_Ok && find_parent(reference, found))
	{
		TM_FailureData failure;

		CHECK_FOR_INTERRUPTS();
		PushActiveSnapshot(GetLatestSnapshot());
		locked = table_tuple_lock(reference->parent, &found->tts_tid, GetActiveSnapshot(), found,
								  GetCurrentCommandId(false), LockTupleKeyShare, LockWaitBlock, 0,
								  &failure);
		PopActiveSnapshot();
		/* If it has changed meanwhile, it is looked for again. */
		if (locked != TM_Ok && locked != TM_Updated && locked != TM_Deleted)
			elog(ERROR, "unexpected result of locking a row: %u", locked);
	}
	ExecDropSingleTupleTableSlot(found);
	return locked == TM_Ok;
}

/* Hashes the values that are referred to; returns false if the index has no such entry. */
static bool
value_hash(Reference *reference, pg_uuid_t *hash)
{
	EState	   *estate = CreateExecutorState();
	bool		result = unique_index_hash(reference->parent, reference->index,
										   BuildIndexInfo(reference->index), estate,
										   reference->row, hash);

	FreeExecutorState(estate);
	return result;
}

/* Was the parent row deleted, and when? */
static bool
parent_deleted(Reference *reference, RowVersion *version)
{
	Oid			key_index = GetRelationIdentityOrPK(reference->parent);
	pg_uuid_t	hash;

	if (RelationGetRelid(reference->index) == key_index)
		hash = row_key_hash(reference->parent, key_index, reference->row);
	else if (!value_hash(reference, &hash))
		return false;
	return tombstone_find_hash(reference->parent, &hash, false, version);
}

static void
check_reference(Target *target, Reference *reference, TupleTableSlot *row,
				TupleTableSlot *replaced)
{
	LocalRow	deleted = {0};

	if (!read_reference(target, reference, row, replaced))
		return;
	do
	{
		if (parent_exists(reference) || !parent_deleted(reference, &deleted.version))
			return;
	} while (decision_wait_turn());
	deleted.index = RelationGetRelid(reference->index);
	remote_transaction.met[KIND_PARENT_MISSING]++;
	history_record(target, KIND_PARENT_MISSING, RESOLVER_APPLY_REMOTE, true, row, &deleted,
				   row);
}

/*
 * Records a parent_missing conflict for each deleted row that "row" refers to.  "row" is
 * to be stored, in place of "replaced" unless that is NULL.
 */
void
foreign_key_check(Target *target, TupleTableSlot *row, TupleTableSlot *replaced)
{
	ListCell   *cell;

	if (RelationGetFKeyList(target->rel) == NIL)
		return;
	foreach(cell, copyObject(RelationGetFKeyList(target->rel)))
	{
		Reference	reference = {lfirst(cell)};
		Oid			index = index_of(reference.key);

		if (!compat_foreign_key_enforced(reference.key) || !OidIsValid(index))
			continue;
		reference.parent = table_open(reference.key->confrelid, RowShareLock);
		if (reference.parent->rd_rel->relkind == RELKIND_RELATION)
		{
			reference.index = index_open(index, AccessShareLock);
			reference.row = MakeSingleTupleTableSlot(RelationGetDescr(reference.parent),
													 &TTSOpsVirtual);
			/* A temporal key refers to several rows together. */
			if (reference.index->rd_rel->relam == BTREE_AM_OID)
				check_reference(target, &reference, row, replaced);
			ExecDropSingleTupleTableSlot(reference.row);
			index_close(reference.index, NoLock);
		}
		table_close(reference.parent, NoLock);
	}
}
