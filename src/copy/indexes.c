/*
 * indexes.c
 *	  No index is maintained while a table is filled; all are built afterwards.
 *
 * Both happen in the transaction that copies the table.  At first pg_index says
 * that the indexes are not ready, which makes inserts leave them alone; only this
 * transaction and its helpers see that, everybody else sees, and maintains, the
 * indexes as they were.  Afterwards each is built anew, into new files, under a
 * lock that keeps everybody out, and is ready again.  So if the transaction does
 * not commit, be it that the server crashes, the old files and the old rows of
 * pg_index are what there is, and they are right: the rows that were copied are
 * dead, and rows of others are in them.
 *
 * A lock that keeps readers out, too, is taken at once, since queries lock the
 * indexes of a table, and building locks out who does that: somebody who has read
 * the table and then writes it would meet us in a deadlock.  He is still let
 * through before we get this lock.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "copy/copy.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

/*
 * Sets an index aside; returns false if it is not in use anyway, for instance
 * because building it concurrently has failed.
 */
static bool
suspend(Relation catalog, Oid index)
{
	HeapTuple	tuple = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", index);
	form = (Form_pg_index) GETSTRUCT(tuple);
	result = form->indislive && form->indisready && form->indisvalid;
	if (result)
	{
		form->indisready = false;
		CatalogTupleUpdate(catalog, &tuple->t_self, tuple);
	}
	heap_freetuple(tuple);
	return result;
}

/*
 * Sets the indexes of a table and its partitions aside, and returns their OIDs.
 */
List *
copy_indexes_suspend(Relation rel)
{
	Relation	catalog = table_open(IndexRelationId, RowExclusiveLock);
	List	   *relids = list_make1_oid(RelationGetRelid(rel));
	List	   *result = NIL;
	ListCell   *cell;

	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		relids = find_all_inheritors(RelationGetRelid(rel), NoLock, NULL);
	foreach(cell, relids)
	{
		Relation	part = table_open(lfirst_oid(cell), NoLock);
		ListCell   *index;

		if (part->rd_rel->relkind == RELKIND_RELATION)
			foreach(index, RelationGetIndexList(part))
				if (suspend(catalog, lfirst_oid(index)))
				result = lappend_oid(result, lfirst_oid(index));
		table_close(part, NoLock);
	}
	table_close(catalog, RowExclusiveLock);
	CommandCounterIncrement();
	return result;
}

/* "Key (a)=(1) is duplicated." becomes what an insert would say. */
static char *
already_exists(const char *detail)
{
	const char *end = detail ? strstr(detail, " is duplicated.") : NULL;

	return end ? psprintf("%s already exists.", pnstrdup(detail, end - detail)) : NULL;
}

static void
build(Oid index)
{
	ReindexParams params = {.options = REINDEXOPT_REPORT_PROGRESS};
	MemoryContext old = CurrentMemoryContext;

	PG_TRY();
	{
		reindex_index(NULL, index, false, get_rel_persistence(index), &params);
	}
	PG_CATCH();
	{
		ErrorData  *error;
		char	   *detail;

		MemoryContextSwitchTo(old);
		error = CopyErrorData();
		if (error->sqlerrcode != ERRCODE_UNIQUE_VIOLATION)
			PG_RE_THROW();
		FlushErrorState();

		/* Whoever looks for it will look for what the server says natively. */
		detail = already_exists(error->detail);
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("duplicate key value violates unique constraint \"%s\"",
						get_rel_name(index)),
				 detail ? errdetail_internal("%s", detail) : 0,
				 error->schema_name ? err_generic_string(PG_DIAG_SCHEMA_NAME, error->schema_name) : 0,
				 error->table_name ? err_generic_string(PG_DIAG_TABLE_NAME, error->table_name) : 0,
				 error->constraint_name ?
				 err_generic_string(PG_DIAG_CONSTRAINT_NAME, error->constraint_name) : 0));
	}
	PG_END_TRY();
}

/* Builds what has been set aside. */
void
copy_indexes_build(Relation rel, List *indexes, CopyProgress *progress)
{
	ListCell   *cell;

	if (indexes == NIL)
		return;
	pg_atomic_write_u32(&progress->indexes, list_length(indexes));
	pg_atomic_write_u32(&progress->phase, COPY_INDEXING);

	LockRelationOid(RelationGetRelid(rel), AccessExclusiveLock);
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		(void) find_all_inheritors(RelationGetRelid(rel), AccessExclusiveLock, NULL);
	foreach(cell, indexes)
	{
		build(lfirst_oid(cell));
		CommandCounterIncrement();
		pg_atomic_fetch_add_u32(&progress->indexes_done, 1);
	}
}
