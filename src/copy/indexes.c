/*
 * indexes.c
 *	  Suspends the indexes of a table while it is filled, and builds them afterwards.
 *
 * Both happen in transaction T, which copies the table.  First T marks the indexes in
 * pg_index as not ready, so that inserts skip them; only T and its helpers see that, and
 * all other sessions see, and maintain, the indexes as they were.  After the copy, T builds
 * each index from scratch, into new files, under a lock that keeps everybody out, and marks it as
 * ready again.  If T does not commit, for instance because the server crashes, the old
 * files and the old rows of pg_index remain, and they are correct: the copied rows are dead,
 * and the rows of other sessions are in the indexes.
 *
 * T locks the table and its indexes together, and never waits for these locks in a queue.
 *
 * Deadlocks:
 * 1. X has read the table and then analyzes it, which waits for T's ShareUpdateExclusiveLock.
 *	  If T waited for X's lock, neither would ever end.
 * 2. T waits for X, which has read the table and is idle in its transaction.  This is no
 *	  deadlock, but all other readers would wait behind T.
 * Therefore T tests repeatedly whether the locks are free, and gives up if that never
 * happens.
 *
 * If T gives up, or if an index cannot be built (each is built in a subtransaction), T
 * inserts its rows into the old files, one by one.  That is what the server's own copy does,
 * and it needs only the locks that T has taken at its start, as the server does.  Therefore
 * copied rows are never thrown away because of an index.
 *
 * Indexes of deferrable constraints are not suspended: natively these constraints are not
 * checked on a replica, but building would check them.
 */
#include "postgres.h"

#include "access/attmap.h"
#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "compat.h"
#include "copy/indexes.h"
#include "executor/executor.h"
#include "local_table.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/*
 * How long to look for a moment without readers, in milliseconds: half the time that
 * copying the rows has taken, within these limits.  Filling an index takes longer than
 * building it, but not by orders of magnitude.
 */
#define MIN_PATIENCE 200
#define MAX_PATIENCE 10000
#define LOOK_INTERVAL 10

static void
set_ready(Relation catalog, HeapTuple tuple, bool ready)
{
	((Form_pg_index) GETSTRUCT(tuple))->indisready = ready;
	CatalogTupleUpdate(catalog, &tuple->t_self, tuple);
}

static HeapTuple
copy_of_row(Oid index)
{
	HeapTuple	tuple = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(index));

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", index);
	return tuple;
}

/*
 * Suspends an index; returns false if it must be maintained, or is not in use, for instance
 * because building it concurrently has failed.
 */
static bool
suspend(Relation catalog, Oid index)
{
	HeapTuple	tuple;
	Form_pg_index form;
	bool		result;

	/* As COPY FROM does, so that filling it needs no other lock. */
	LockRelationOid(index, RowExclusiveLock);
	tuple = copy_of_row(index);
	form = (Form_pg_index) GETSTRUCT(tuple);
	result = form->indislive && form->indisready && form->indisvalid && form->indimmediate;
	if (result)
		set_ready(catalog, tuple, false);
	heap_freetuple(tuple);
	return result;
}

/* The table, and its partitions. */
static List *
tables_of(Relation rel)
{
	if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		return list_make1_oid(RelationGetRelid(rel));
	return find_all_inheritors(RelationGetRelid(rel), NoLock, NULL);
}

/* Suspends the indexes of a table and its partitions, and returns their OIDs. */
List *
copy_indexes_suspend(Relation rel)
{
	Relation	catalog = table_open(IndexRelationId, RowExclusiveLock);
	List	   *result = NIL;

	foreach_oid(relid, tables_of(rel))
	{
		Relation	part = table_open(relid, NoLock);

		if (part->rd_rel->relkind == RELKIND_RELATION)
			foreach_oid(index, RelationGetIndexList(part))
				if (suspend(catalog, index))
				result = lappend_oid(result, index);
		table_close(part, NoLock);
	}
	table_close(catalog, RowExclusiveLock);
	CommandCounterIncrement();
	return result;
}

/* Is the relation locked by no other session? */
static bool
is_free(Oid relid)
{
	LOCKTAG		tag;
	int			others;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	pfree(GetLockConflicts(&tag, AccessExclusiveLock, &others));
	return others == 0;
}

/*
 * Locks all of these relations, or none.  It first tests whether they are free, because an
 * attempt to lock would be sent to standbys.
 */
static bool
try_lock(List *relids)
{
	int			locked = 0;

	foreach_oid(relid, relids)
		if (!is_free(relid))
		return false;
	foreach_oid(relid, relids)
	{
		if (!ConditionalLockRelationOid(relid, AccessExclusiveLock))
			break;
		locked++;
	}
	if (locked == list_length(relids))
		return true;
	while (locked-- > 0)
		UnlockRelationOid(list_nth_oid(relids, locked), AccessExclusiveLock);
	return false;
}

/*
 * Locks tables and indexes against all other sessions; returns false if there is always one
 * that uses them.
 */
static bool
lock_all(List *relids, const CopyProgress *progress)
{
	TimestampTz start = GetCurrentTimestamp();
	long		patience = TimestampDifferenceMilliseconds(progress->started_at, start) / 2;

	patience = Min(Max(patience, MIN_PATIENCE), MAX_PATIENCE);
	while (!try_lock(relids))
	{
		CHECK_FOR_INTERRUPTS();
		if (TimestampDifferenceExceeds(start, GetCurrentTimestamp(), patience))
			return false;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LOOK_INTERVAL, WAIT_EVENT_LOGICAL_SYNC_DATA);
		ResetLatch(MyLatch);
	}
	return true;
}

/* Reports a duplicate with the message that an insert would give, which users look for. */
static void
report_duplicate(Oid index, const ErrorData *error)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNIQUE_VIOLATION),
			 errmsg("duplicate key value violates unique constraint \"%s\"",
					get_rel_name(index)),
			 error->detail ? errdetail_internal("%s", error->detail) : 0,
			 error->schema_name ? err_generic_string(PG_DIAG_SCHEMA_NAME, error->schema_name) : 0,
			 error->table_name ? err_generic_string(PG_DIAG_TABLE_NAME, error->table_name) : 0,
			 error->constraint_name ?
			 err_generic_string(PG_DIAG_CONSTRAINT_NAME, error->constraint_name) : 0));
}

/*
 * An index could not be built.  Rethrows the error if it is about the rows, or was
 * requested by somebody; any other error may be due to building, and filling may succeed.
 */
static void
look_at_error(Oid index, ErrorData *error)
{
	int			category = ERRCODE_TO_CATEGORY(error->sqlerrcode);

	if (error->sqlerrcode == ERRCODE_UNIQUE_VIOLATION)
		report_duplicate(index, error);
	if (category == ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION ||
		category == ERRCODE_OPERATOR_INTERVENTION)
		ReThrowError(error);
	ereport(LOG,
			(errmsg("index \"%s\" could not be built after an initial copy, so it is filled row by row: %s",
					get_rel_name(index), error->message)));
}

/* Builds an index; returns false if that failed and its old files are in place. */
static bool
build(Oid index)
{
	ReindexParams params = {.options = REINDEXOPT_REPORT_PROGRESS};
	MemoryContext old = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		reindex_index(NULL, index, false, get_rel_persistence(index), &params);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		RepOriginId origin = replorigin_session_origin;

		MemoryContextSwitchTo(old);
		error = CopyErrorData();
		FlushErrorState();

		/* The rollback must not advance the replication origin. */
		replorigin_session_origin = InvalidRepOriginId;
		RollbackAndReleaseCurrentSubTransaction();
		replorigin_session_origin = origin;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(old);
	CurrentResourceOwner = owner;

	if (error)
		look_at_error(index, error);
	return error == NULL;
}

/* Puts indexes into use again, with their old files. */
static void
resume(List *indexes)
{
	Relation	catalog = table_open(IndexRelationId, RowExclusiveLock);

	foreach_oid(index, indexes)
		set_ready(catalog, copy_of_row(index), true);
	table_close(catalog, RowExclusiveLock);
	CommandCounterIncrement();
}

/* Was the row copied by this transaction? */
static bool
was_copied(TupleTableSlot *slot)
{
	bool		isnull;
	Datum		xmin = slot_getsysattr(slot, MinTransactionIdAttributeNumber, &isnull);

	return TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
}

/* Inserts the copied rows into these indexes of the table. */
static void
insert_entries(Relation rel, List *indexes)
{
	MemoryContext old = CurrentMemoryContext;
	ResultRelInfo *info;
	EState	   *estate = local_table_prepare(rel, make_attrmap(0), false, &info);
	TupleTableSlot *slot = table_slot_create(rel, &estate->es_tupleTable);
	TableScanDesc scan = compat_table_beginscan(rel, GetActiveSnapshot());

	for (int i = 0; i < info->ri_NumIndices; i++)
		if (!list_member_oid(indexes, RelationGetRelid(info->ri_IndexRelationDescs[i])))
			info->ri_IndexRelationInfo[i]->ii_ReadyForInserts = false;

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		if (!was_copied(slot))
			continue;
		ResetPerTupleExprContext(estate);
		MemoryContextSwitchTo(GetPerTupleMemoryContext(estate));
		compat_insert_index_entries(info, slot, estate);
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	ExecCloseIndices(info);
	ExecResetTupleTable(estate->es_tupleTable, false);
	FreeExecutorState(estate);
}

/*
 * Fills indexes of a table.  As when an index is built, its expressions run with the rights
 * of the table's owner.
 */
static void
fill(Relation rel, List *indexes)
{
	Oid			user;
	int			context;
	int			nest_level = NewGUCNestLevel();

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(rel->rd_rel->relowner, context | SECURITY_RESTRICTED_OPERATION);
	RestrictSearchPath();
	insert_entries(rel, indexes);
	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(user, context);
}

static void
fill_all(List *tables, List *indexes, CopyProgress *progress)
{
	resume(indexes);
	foreach_oid(relid, tables)
	{
		Relation	rel = table_open(relid, NoLock);
		List	   *its = NIL;

		foreach_oid(index, indexes)
			if (IndexGetRelation(index, false) == relid)
			its = lappend_oid(its, index);
		if (its != NIL)
			fill(rel, its);
		pg_atomic_fetch_add_u32(&progress->indexes_done, list_length(its));
		table_close(rel, NoLock);
	}
}

/* Builds, or fills, the suspended indexes. */
void
copy_indexes_build(Relation rel, List *indexes, CopyProgress *progress)
{
	List	   *tables = tables_of(rel);
	List	   *unbuilt = NIL;

	if (indexes == NIL)
		return;
	pg_atomic_write_u32(&progress->indexes, list_length(indexes));
	pg_atomic_write_u32(&progress->phase, COPY_INDEXING);

	if (!lock_all(list_concat_copy(tables, indexes), progress))
	{
		ereport(LOG,
				(errmsg("indexes of table \"%s\" are filled row by row after its initial copy: other sessions are using the table",
						RelationGetRelationName(rel))));
		unbuilt = indexes;
	}
	else
		foreach_oid(index, indexes)
	{
		if (build(index))
			pg_atomic_fetch_add_u32(&progress->indexes_done, 1);
		else
			unbuilt = lappend_oid(unbuilt, index);
		CommandCounterIncrement();
	}
	if (unbuilt != NIL)
		fill_all(tables, unbuilt, progress);
}
