/*
 * recent_rows.c
 *	  Reads rows that were changed recently on the member that is copied, and writes them
 *	  again on the member that joins (recent.c).
 *
 * Both work below the level of SQL.  Therefore neither runs code of a table's owner that a
 * statement would run: triggers, rules, views, and the expressions of indexes, which are
 * simplified when a statement is planned.  The remaining code, the expressions of indexes
 * that get an entry, runs as the table's owner.
 *
 * A row is identified by the columns of its key, each as text that depends on no setting
 * (pinned_settings.c), and is found again with the index, which knows which keys are equal.
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "access/genam.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "group/recent_rows.h"
#include "group_times.h"
#include "local_query.h"
#include "local_table.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "replication/logicalrelation.h"
#include "replication/origin.h"
#include "result_rows.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/usercontext.h"

#define COLUMNS 3

PG_FUNCTION_INFO_V1(weft_member_recent_rows);

/* A table whose rows are read, and the columns of its key. */
typedef struct KeyReader
{
	Relation	rel;
	int			count;
	AttrNumber *columns;
	FmgrInfo   *output;
	TransactionId xid;			/* looked up last */
	bool		known;			/* its commit time is known, and it was not a
								 * copy */
	TimestampTz committed;
	TimestampTz time;			/* of the row; transactions may share a commit */
	RepOriginId origin;
	List	   *copied;			/* of CopiedRows */
} KeyReader;

/* Rows that sessions of another node have written, which this one was made from a physical copy of. */
typedef struct CopiedRows
{
	FullTransactionId until;	/* by transactions before this one */
	RepOriginId origin;			/* stands for that node */
} CopiedRows;

/* Opens a table, all rows of which the caller may read. */
static Relation
open_readable(Oid relid)
{
	Relation	rel = local_table_open(relid, ACL_SELECT, AccessShareLock);

	if (check_enable_rls(relid, InvalidOid, false) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("row-level security hides rows of table \"%s\"",
						RelationGetRelationName(rel))));
	return rel;
}

static void
find_columns(KeyReader *reader, ArrayType *names)
{
	Datum	   *values;
	bool	   *nulls;

	deconstruct_array_builtin(names, TEXTOID, &values, &nulls, &reader->count);
	reader->columns = palloc(reader->count * sizeof(AttrNumber));
	reader->output = palloc(reader->count * sizeof(FmgrInfo));
	for (int i = 0; i < reader->count; i++)
	{
		const char *name = nulls[i] ? "" : TextDatumGetCString(values[i]);
		AttrNumber	number = get_attnum(RelationGetRelid(reader->rel), name);
		Oid			function;
		bool		is_varlena;

		if (number <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("column \"%s\" of relation \"%s\" does not exist", name,
							RelationGetRelationName(reader->rel))));
		reader->columns[i] = number;
		getTypeOutputInfo(TupleDescAttr(RelationGetDescr(reader->rel), number - 1)->atttypid,
						  &function, &is_varlena);
		fmgr_info(function, &reader->output[i]);
	}
}

static TransactionId
xmin_of(TupleTableSlot *row)
{
	bool		isnull;

	return DatumGetTransactionId(slot_getsysattr(row, MinTransactionIdAttributeNumber,
												 &isnull));
}

/* The oldest copies come first. */
static List *
find_copied_rows(void)
{
	List	   *result = NIL;

	foreach_ptr(LocalValue, row, local_rows("SELECT until, roident FROM weft.copied_row_origins()", 2))
	{
		CopiedRows *copied = palloc(sizeof(CopiedRows));

		copied->until = FullTransactionIdFromU64(strtou64(row[0], NULL, 10));
		copied->origin = atooid(row[1]);
		result = lappend(result, copied);
	}
	return result;
}

/* Returns the origin that stands for the node whose session has written a row here. */
static RepOriginId
origin_of_session(KeyReader *reader, TransactionId xid)
{
	if (reader->copied != NIL)
	{
		FullTransactionId next = ReadNextFullTransactionId();
		uint32		epoch = EpochFromFullTransactionId(next);
		FullTransactionId full;

		if (xid > XidFromFullTransactionId(next))
			epoch--;
		full = FullTransactionIdFromEpochAndXid(epoch, xid);
		foreach_ptr(CopiedRows, copied, reader->copied)
			if (FullTransactionIdPrecedes(full, copied->until))
			return copied->origin;
	}
	return InvalidRepOriginId;
}

/*
 * Is it known when the row was changed, other than by being copied?  "since" saves looking
 * for the own times of old rows.
 */
static bool
look_up_change(KeyReader *reader, TupleTableSlot *row, TimestampTz since)
{
	TransactionId xid = xmin_of(row);

	if (xid != reader->xid)
	{
		reader->xid = xid;
		reader->known = TransactionIdIsNormal(xid) &&
			TransactionIdGetCommitTsData(xid, &reader->committed, &reader->origin) &&
			reader->origin != DoNotReplicateId;
		if (reader->known && reader->origin == InvalidRepOriginId)
			reader->origin = origin_of_session(reader, xid);
	}
	reader->time = reader->committed;
	if (reader->known && reader->origin != InvalidRepOriginId &&
		reader->committed >= since - 2 * GROUP_TIMES_SPAN)
		(void) row_time_find(reader->rel, row, xid, GetActiveSnapshot(), &reader->time);
	return reader->known;
}

static Datum
key_texts(KeyReader *reader, TupleTableSlot *row)
{
	Datum	   *texts = palloc(reader->count * sizeof(Datum));
	bool	   *nulls = palloc(reader->count * sizeof(bool));
	int			lower = 1;

	for (int i = 0; i < reader->count; i++)
	{
		Datum		value = slot_getattr(row, reader->columns[i], &nulls[i]);

		if (!nulls[i])
			texts[i] = CStringGetTextDatum(OutputFunctionCall(&reader->output[i], value));
	}
	return PointerGetDatum(construct_md_array(texts, nulls, 1, &reader->count, &lower,
											  TEXTOID, -1, false, TYPALIGN_INT));
}

static void
read_rows(KeyReader *reader, TimestampTz since, ReturnSetInfo *result)
{
	TupleTableSlot *row = table_slot_create(reader->rel, NULL);
	TableScanDesc scan = compat_table_beginscan(reader->rel, GetActiveSnapshot());
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "weft recent rows",
												  ALLOCSET_DEFAULT_SIZES);

	while (table_scan_getnextslot(scan, ForwardScanDirection, row))
	{
		CHECK_FOR_INTERRUPTS();
		if (look_up_change(reader, row, since) && reader->time >= since)
		{
			MemoryContext old = MemoryContextSwitchTo(context);
			Datum		values[COLUMNS] = {
				key_texts(reader, row),
				TimestampTzGetDatum(reader->time),
				ObjectIdGetDatum(reader->origin)
			};
			bool		nulls[COLUMNS] = {0};

			MemoryContextSwitchTo(old);
			tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
			MemoryContextReset(context);
		}
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(row);
	MemoryContextDelete(context);
}

/*
 * weft.member_recent_rows(relation regclass, columns text[], since timestamptz,
 *						   OUT row_key text[], OUT changed timestamptz, OUT roident oid)
 *
 * Returns the rows of a table that were changed since then: the columns of their key, and
 * when and under which origin they were changed.  A row that was only copied does not count.
 */
Datum
weft_member_recent_rows(PG_FUNCTION_ARGS)
{
	KeyReader	reader = {
		.rel = open_readable(PG_GETARG_OID(0)),
		.copied = find_copied_rows()
	};

	result_rows_begin(fcinfo, COLUMNS);
	find_columns(&reader, PG_GETARG_ARRAYTYPE_P(1));
	read_rows(&reader, PG_GETARG_TIMESTAMPTZ(2), (ReturnSetInfo *) fcinfo->resultinfo);
	table_close(reader.rel, AccessShareLock);
	return (Datum) 0;
}

/* Fills a slot with the columns of a key; returns false if the texts are not a key. */
static bool
read_key(Relation rel, Oid key_index, const char *texts, TupleTableSlot *slot)
{
	Relation	index = index_open(key_index, AccessShareLock);
	ArrayType  *array = DatumGetArrayTypeP(OidInputFunctionCall(F_ARRAY_IN, unconstify(char *, texts),
																TEXTOID, -1));
	Datum	   *values;
	bool	   *nulls;
	int			count;
	bool		result;

	deconstruct_array_builtin(array, TEXTOID, &values, &nulls, &count);
	result = count == IndexRelationGetNumberOfKeyAttributes(index);
	ExecClearTuple(slot);
	memset(slot->tts_isnull, true, slot->tts_tupleDescriptor->natts * sizeof(bool));
	for (int i = 0; result && i < count; i++)
	{
		AttrNumber	column = index->rd_index->indkey.values[i];
		Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(rel), column - 1);
		int32		typmod = attribute->atttypmod;
		Oid			type = getBaseTypeAndTypmod(attribute->atttypid, &typmod);
		Oid			function;
		Oid			param;

		/*
		 * Uses the base type, because the constraints of a domain need not be
		 * checked again.
		 */
		getTypeInputInfo(type, &function, &param);
		result = !nulls[i];
		if (result)
			slot->tts_values[column - 1] =
				OidInputFunctionCall(function, TextDatumGetCString(values[i]), param, typmod);
		slot->tts_isnull[column - 1] = nulls[i];
	}
	ExecStoreVirtualTuple(slot);
	index_close(index, AccessShareLock);
	return result;
}

/* Was the row copied by a join, and not changed since then? */
static bool
is_copied(TupleTableSlot *row)
{
	TransactionId xid = xmin_of(row);
	TimestampTz time;
	RepOriginId origin;

	return TransactionIdIsNormal(xid) &&
		TransactionIdGetCommitTsData(xid, &time, &origin) && origin == DoNotReplicateId;
}

/* Writes a locked row again, unchanged. */
static void
write_again(ResultRelInfo *info, EState *estate, TupleTableSlot *row)
{
	ItemPointerData place = row->tts_tid;
	TU_UpdateIndexes update_indexes;

	simple_table_tuple_update(info->ri_RelationDesc, &place, row, GetActiveSnapshot(),
							  &update_indexes);
	if (info->ri_NumIndices > 0 && update_indexes != TU_None)
		compat_update_index_entries(info, row, estate, update_indexes == TU_Summarizing);
	ResetPerTupleExprContext(estate);
	CommandCounterIncrement();
}

static void
stamp_rows(Relation rel, List *keys)
{
	Oid			key_index = GetRelationIdentityOrPK(rel);
	AttrMap    *no_columns = make_attrmap(RelationGetDescr(rel)->natts);
	TupleTableSlot *key = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsVirtual);
	TupleTableSlot *row = table_slot_create(rel, NULL);
	ResultRelInfo *info;
	EState	   *estate;

	for (int i = 0; i < no_columns->maplen; i++)
		no_columns->attnums[i] = -1;
	PushActiveSnapshot(GetTransactionSnapshot());
	estate = local_table_prepare(rel, no_columns, false, &info);
	foreach_ptr(const char, texts, keys)
	{
		CHECK_FOR_INTERRUPTS();
		if (OidIsValid(key_index) && read_key(rel, key_index, texts, key) &&
			compat_find_by_index(rel, key_index, LockTupleNoKeyExclusive, key, row) &&
			is_copied(row))
			write_again(info, estate, row);
	}
	ExecCloseIndices(info);
	FreeExecutorState(estate);
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(row);
	ExecDropSingleTupleTableSlot(key);
}

/*
 * Writes rows of a table again, which gives them the commit time and the origin of the
 * current transaction.  "keys" contains arrays as text.  A row that was changed here
 * meanwhile, or no longer exists, is left alone; so is a table that no longer exists.
 */
void
recent_rows_stamp(Oid relid, List *keys)
{
	Relation	rel = try_table_open(relid, RowExclusiveLock);
	UserContext context;

	if (rel == NULL)
		return;
	local_table_check_rights(rel, ACL_UPDATE);
	SwitchToUntrustedUser(rel->rd_rel->relowner, &context);
	stamp_rows(rel, keys);
	RestoreUserContext(&context);
	table_close(rel, NoLock);
}
